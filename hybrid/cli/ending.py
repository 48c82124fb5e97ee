"""How a verb that has something to put back ends when it is told to: in order, whoever tells it. Knows no verb."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Told(KeyboardInterrupt):
    """A signal other than Ctrl-C's said so: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def exit_code(interrupt: BaseException | None) -> int:
    """Return the code that shells report for what an interrupt was sent by: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (interrupt.number if isinstance(interrupt, Told) else signal.SIGINT)


@contextlib.contextmanager
def ends_at_once() -> Iterator[None]:
    """Ctrl-C in the block ends the process as SIGTERM does, without an exception: for imports.

    An exception within them is lost (in a destructor), or ends in a compiled module as a segmentation fault (orjson),
    or leaves modules half made to who cleans up. There is nothing to put back yet.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def polite_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, by a KeyboardInterrupt, also where an event loop runs in it.

    Once, and from then on they do nothing: a closed terminal brings one of each, and the second must not end what the
    first has begun. Where SIGHUP is ignored, as after `nohup`, it stays so, and so do handlers set within the block.

    Raises:
        Told: the KeyboardInterrupt that knows the signal.
    """
    import asyncio  # which the command line alone does not need

    told = False

    def interrupt(number: int) -> None:
        nonlocal told
        first, told = not told, True
        if first:
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

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler of Python's would be taken away while the interpreter ends, and the code that it ends with.
            if signal.getsignal(number) is end:
                signal.signal(number, signal.SIG_IGN if told else handler)
