"""Signals that reach a whole group of processes (Ctrl-C, a closed terminal, a service manager) are the parent's.

Owns which these are and how children stay out of them, from their first instruction on: an interrupt in their imports
would print a traceback, and one of them ended while others start is a failed start. Must never know what a child does.
"""

import contextlib
import signal
from collections.abc import Iterator
from typing import Final

_OF_THE_GROUP: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def kept_from_children() -> Iterator[None]:
    """Whoever is started in the block does not hear them. What reaches this thread meanwhile comes after the block.

    Not so uvloop's children, for whom it unblocks all. They are blocked, which exec leaves as it is; ignoring them in
    a `preexec_fn` would run code in a copy of a process that may have threads.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_GROUP)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """In a child: ignore them from now on, and what came so far."""
    for number in _OF_THE_GROUP:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_GROUP)
