"""Signals that this process hears, each on its event loop. Owns their handlers; must never know what they mean."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from types import FrameType
from typing import Any


class Signals:
    """Handlers that the loop itself would keep leave a gap when they go, in which a signal has its default action."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._before: dict[int, Any] = {}

    def hear(self, number: signal.Signals, heard: Callable[[], object]) -> None:
        """Have `heard` called on the loop for each signal of this number; a SIGHUP that `nohup` ignores stays so."""
        if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
            return

        def handle(_number: int, _frame: FrameType | None) -> None:
            self._loop.call_soon_threadsafe(heard)

        self._before[number] = signal.signal(number, handle)

    def close(self, ending: bool) -> None:
        """Hear nothing more; what comes while an `ending` process leaves is ignored, or it would set the exit code."""
        for number, handler in self._before.items():
            signal.signal(number, signal.SIG_IGN if ending else handler)
        self._before.clear()


async def before(end: Awaitable[object], work: Awaitable[object]) -> bool:
    """Do the work unless the end comes first, which cancels it. Return whether it was done."""
    doing, ending = asyncio.ensure_future(work), asyncio.ensure_future(end)
    try:
        await asyncio.wait((doing, ending), return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            doing.result()
        return doing.done()
    finally:
        doing.cancel()
        ending.cancel()
