"""How a verb that has something to put back ends when it is told to: in order, whoever tells it. Knows no verb."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def polite_end() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block as Ctrl-C does, by a KeyboardInterrupt.

    Once, and from then on they do nothing: a closed terminal brings one of each, and the second must not end what the
    first has begun. Where SIGHUP is ignored, as after `nohup`, it stays so.
    """
    told = False

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal told
        first, told = not told, True
        if first:
            raise KeyboardInterrupt

    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            # A handler of Python's would be taken away while the interpreter ends, and the code that it ends with.
            signal.signal(number, signal.SIG_IGN if told else handler)
