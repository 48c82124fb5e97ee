"""How a verb that has something to put back ends when it is told to: in order, whoever tells it. Knows no verb."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Final

_ECHO_S: Final = 0.1  # `timeout` and some supervisors signal a process and then its group: one wish, heard twice


class Told(KeyboardInterrupt):
    """An interrupt that knows its signal, `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def exit_code(interrupt: BaseException | None) -> int:
    """Return the code that shells report for an interrupt by a signal: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (interrupt.number if isinstance(interrupt, Told) else signal.SIGINT)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C in the block ends the process as SIGTERM does, without an exception: for imports.

    An exception within them is lost (in a destructor), or ends in a compiled module as a segmentation fault (orjson),
    or leaves half-made modules behind. There is nothing to put back yet. To process 1, as in a container, the kernel
    brings no signal that has its default action: it gets handlers, of which the one for Ctrl-C goes with the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    at_once = _leave if os.getpid() == 1 else signal.SIG_DFL
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, at_once)
    interrupts = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if interrupts:
        signal.signal(signal.SIGINT, at_once)
    try:
        yield
    finally:
        if interrupts:
            signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def polite_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, by a KeyboardInterrupt, also where an event loop runs in it.

    Once, and from then on they do nothing: a closed terminal brings one of each, and the second must not end what the
    first has begun. Only another Ctrl-C, of somebody in a hurry, does. What is ignored, as SIGHUP after `nohup`, stays
    so, and so do handlers set within the block.

    Raises:
        Told: the KeyboardInterrupt that knows the signal.
    """
    import asyncio  # which the command line alone does not need

    told_at: float | None = None

    def interrupt(number: int) -> None:
        nonlocal told_at
        now = time.monotonic()
        if told_at is None or (number == signal.SIGINT and now - told_at > _ECHO_S):
            told_at = now
            raise Told(number)

    def end(number: int, frame: FrameType | None) -> None:
        # A handler runs between any two bytecodes, which may be those of a protocol's `data_received`; uvloop ends that
        # connection with whatever is raised there and goes on. What a handle of its own raises leaves the loop.
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            interrupt(number)
        else:
            loop.call_soon_threadsafe(interrupt, number)

    heard = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    numbers = [number for number in heard if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler of Python's would be taken away while the interpreter ends, and the code that it ends with.
            if signal.getsignal(number) is end:
                signal.signal(number, handler if told_at is None else signal.SIG_IGN)


def _leave(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)
