"""A timer that is not a millisecond late: a timerfd on the event loop.

Timers of asyncio and of uvloop are rounded to milliseconds, which is longer than a small server takes to answer; to
spin through the rest would take a core from the server that is measured. Knows nothing of what it is set for.
"""

import asyncio
import ctypes
import os
from collections.abc import Callable
from typing import Final

_CLOCK_MONOTONIC: Final = 1
_ABSOLUTE: Final = 1
_SOON_NS: Final = 1  # the absolute time 0 would disarm the timer


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class Ticker:
    """Calls `tick` once for every `arm`, at a monotonic time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Callable[[], None]) -> None:
        self._loop = loop
        self._tick = tick
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(_CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _Itimerspec()
        self._pointer = ctypes.byref(self._spec)
        loop.add_reader(self._fd, self._read)

    def arm(self, at_s: float) -> None:
        """Ask for one tick at `at_s` of the monotonic clock, soon if that is past; replaces what was asked before."""
        whole_ns = max(_SOON_NS, round(at_s * 1e9))
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(whole_ns, 1_000_000_000)
        self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._pointer, None)

    def close(self) -> None:
        """Tick no more."""
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # armed again after the loop had seen it fire
            return
        self._tick()
