"""What keeps a load generator in time beside the server it measures. Knows nothing of loads.

Clients on other machines do not wait for the server's CPUs. One beside the server does: its timer fires, and it is
picked up when the server's slice or a kernel thread's is over, which is several milliseconds on a small machine.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# The least urgent of the real-time priorities is above all ordinary work, and whoever is started meanwhile is ordinary
# again. A better nice value was tried: the wait is until the next clock tick all the same.
_FIRST: Final = os.SCHED_RR | os.SCHED_RESET_ON_FORK
_PRIORITY: Final = os.sched_param(1)
_REAL_TIME: Final = (os.SCHED_FIFO, os.SCHED_RR)


@contextmanager
def undisturbed_by_collections() -> Iterator[None]:
    """Keep the collector from what there is now: to look through a large heap takes longer than a send may be late."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextmanager
def first_in_line() -> Iterator[None]:
    """Run this thread before all ordinary work, where the process may ask for that; afterwards it is as it was.

    A thread that has a real-time priority keeps it.
    """
    before, param = os.sched_getscheduler(0), os.sched_getparam(0)
    if before & ~os.SCHED_RESET_ON_FORK in _REAL_TIME or not _scheduled(_FIRST, _PRIORITY):
        yield
        return
    try:
        yield
    finally:
        # Who is allowed by RLIMIT_RTPRIO alone may not take back what is said about children.
        if not _scheduled(before, param):
            _scheduled(before | os.SCHED_RESET_ON_FORK, param)


def _scheduled(policy: int, param: os.sched_param) -> bool:
    """Whether it could be set: not where the process is neither root nor allowed, or a sandbox is without the call."""
    try:
        os.sched_setscheduler(0, policy, param)
    except OSError:
        return False
    return True
