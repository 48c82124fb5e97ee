"""Time as a value that is handed in.

Everything inside hybrid uses monotonic seconds; wall time appears only in logs, in snapshots and as `created` of
`/v1/models`. Tests hand in `ManualClock`. Monotonic clocks have gone backwards on broken hosts, so `MonotonicClock`
never does.
"""

import time
from typing import Protocol


class Clock(Protocol):
    """Gives the current monotonic time in seconds."""

    def __call__(self) -> float:
        """Return monotonic seconds; never less than an earlier answer."""


class MonotonicClock:
    """The real clock, clamped so that it never runs backwards."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self) -> float:
        """Return monotonic seconds."""
        now = time.monotonic()
        if now < self._last:
            return self._last
        self._last = now
        return now


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self.now = start_s

    def __call__(self) -> float:
        """Return the time it was set to."""
        return self.now

    def advance(self, seconds: float) -> float:
        """Move forward by `seconds` and return the new time."""
        self.now += seconds
        return self.now
