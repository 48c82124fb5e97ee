"""How a verb that has something to put back ends when it is told to: in order, whoever tells it. Knows no verb."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def polite_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, by a KeyboardInterrupt, also where an event loop runs in it.

    Once, and from then on they do nothing: a closed terminal brings one of each, and the second must not end what the
    first has begun. Where SIGHUP is ignored, as after `nohup`, it stays so.
    """
    told = False

    def interrupt() -> None:
        nonlocal told
        first, told = not told, True
        if first:
            raise KeyboardInterrupt

    def end(number: int, frame: FrameType | None) -> None:
        # A handler runs between any two bytecodes, which may be those of a protocol's `data_received`; uvloop ends that
        # connection with whatever is raised there and goes on. What a handle of its own raises leaves the loop.
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            interrupt()
        else:
            loop.call_soon_threadsafe(interrupt)

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler of Python's would be taken away while the interpreter ends, and the code that it ends with.
            signal.signal(number, signal.SIG_IGN if told else handler)
