"""What a batch will cost: l(b) = a*b + c, fitted online with forgetting.

Least squares over exponentially weighted sums, so that one update is a handful of multiplications and old behaviour
fades within about fifty batches. Used for deadline slack, hang detection and Retry-After, never to hold back work
from an idle worker.
"""

from msgspec import Struct

_FORGET = 0.98


class CostModel:
    """Batch latency of one lane as a line over its rows. Seconds."""

    __slots__ = ("_n", "_x", "_xx", "_xy", "_y")

    def __init__(self) -> None:
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether at least one batch was observed."""
        return self._n > 0.0

    def observe(self, rows: int, seconds: float) -> None:
        """Take in one executed batch."""
        self._n = self._n * _FORGET + 1.0
        self._x = self._x * _FORGET + rows
        self._y = self._y * _FORGET + seconds
        self._xx = self._xx * _FORGET + rows * rows
        self._xy = self._xy * _FORGET + rows * seconds

    def predict(self, rows: int) -> float:
        """Return the expected seconds of a batch of `rows`; 0 while nothing is known.

        With batches of one size only, the line is not determined: cost is then taken as proportional beyond that size
        and constant below it, which errs on the safe (long) side.
        """
        if self._n == 0.0:
            return 0.0
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance <= 1e-9 * mean_x * mean_x:  # relative: at thousands of rows rounding alone is above any constant
            return mean_y * max(1.0, rows / mean_x)
        slope = max(0.0, (self._xy / self._n - mean_x * mean_y) / variance)
        return max(mean_y + slope * (rows - mean_x), mean_y * min(1.0, rows / mean_x) * 0.5)

    def stats(self) -> "CostStats":
        """Return the fit as values."""
        one, two = self.predict(1), self.predict(2)
        return CostStats(per_row_s=max(0.0, two - one), fixed_s=max(0.0, 2 * one - two), known=self.known)


class CostStats(Struct, frozen=True):
    """The fitted line: seconds per row and per batch."""

    per_row_s: float
    fixed_s: float
    known: bool
