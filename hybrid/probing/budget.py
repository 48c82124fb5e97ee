"""How much time measuring may still take. Holds a clock; knows nothing of what is measured."""

import time
from collections.abc import Callable


class Budget:
    """`total_s` seconds from now on."""

    def __init__(self, total_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._ends = self._began + total_s

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._ends - self._clock())

    def ensure(self, seconds: float) -> None:
        """Have at least so much left, more than there was in all if need be."""
        self._ends = max(self._ends, self._clock() + seconds)

    @property
    def spent_s(self) -> float:
        """Seconds since it began."""
        return self._clock() - self._began
