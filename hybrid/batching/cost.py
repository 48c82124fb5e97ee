"""What a batch will cost: l(b) = a*b + c, fitted online with forgetting.

Least squares over exponentially weighted sums, so that one update is a handful of multiplications and old behaviour
fades within about fifty batches. Used for deadline slack, hang detection, Retry-After and for how much padding is
cheaper than another batch; never to hold back work from an idle worker.
"""

from typing import Final

from msgspec import Struct

#: What a batch costs beside the engine, in seconds: packing, two messages, handing out rows.
AROUND_S: Final = 0.0003
_FORGET: Final = 0.98
_FORGET_SLOWLY: Final = 0.995
_ENOUGH: Final = 8.0  # batches from which on a fitted line is believed
_MOST: Final = 1e6
_SPREAD: Final = 1e-3  # variance of sizes, relative to their mean squared, from which on they determine a line


class CostModel:
    """Batch latency of one lane as a line over its rows, or over its work where rows are padded. Seconds."""

    __slots__ = ("_forget", "_n", "_x", "_xx", "_xy", "_y")

    def __init__(self, forget: float = _FORGET) -> None:
        self._forget = forget
        self._n = self._x = self._y = self._xx = self._xy = 0.0

    @property
    def known(self) -> bool:
        """Whether at least one batch was observed."""
        return self._n > 0.0

    @property
    def tells_sizes(self) -> bool:
        """Whether batches of different size were observed, however few."""
        return self._n > 0.0 and self._xx / self._n > (1.0 + _SPREAD) * (self._x / self._n) ** 2

    def observe(self, rows: float, seconds: float) -> None:
        """Take in one executed batch."""
        forget = self._forget
        self._n = self._n * forget + 1.0
        self._x = self._x * forget + rows
        self._y = self._y * forget + seconds
        self._xx = self._xx * forget + rows * rows
        self._xy = self._xy * forget + rows * seconds

    def predict(self, rows: float) -> float:
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

    def line(self) -> tuple[float, float] | None:
        """Return (intercept, slope) of the fit; None with too few batches, or batches of one size only."""
        if self._n < _ENOUGH:
            return None
        mean_x, mean_y = self._x / self._n, self._y / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance <= _SPREAD * mean_x * mean_x:
            return None
        slope = (self._xy / self._n - mean_x * mean_y) / variance
        return mean_y - slope * mean_x, slope

    def stats(self) -> "CostStats":
        """Return the fit as values."""
        one, two = self.predict(1), self.predict(2)
        return CostStats(per_row_s=max(0.0, two - one), fixed_s=max(0.0, 2 * one - two), known=self.known)


class SizeCost:
    """How much one more batch costs beside its work: work is rows times the length that they are padded to.

    Fits seconds per unit of work over 1 / work, so that each batch counts by its relative error. An ordinary fit is
    ruled by the largest batches, whose noise alone is longer than the fixed part of a small model.
    """

    __slots__ = ("_cost",)

    def __init__(self) -> None:
        self._cost = CostModel(_FORGET_SLOWLY)

    def observe(self, work: int, seconds: float) -> None:
        """Take in one executed batch of at least one unit of work."""
        self._cost.observe(1.0 / work, seconds / work)

    def line(self) -> tuple[float, float] | None:
        """Return (fixed seconds of a batch, seconds per unit of work); None while it is not known."""
        line = self._cost.line()
        if line is None:
            return None
        per_unit_s, fixed_s = line
        return max(0.0, fixed_s) + AROUND_S, max(0.0, per_unit_s)

    def fixed_work(self) -> float | None:
        """Return the work that costs as much as one more batch; None while it is not known."""
        line = self.line()
        if line is None:
            return None
        fixed_s, per_unit_s = line
        return min(_MOST, fixed_s / per_unit_s) if per_unit_s > 0.0 else _MOST


class CostStats(Struct, frozen=True):
    """The fitted line: seconds per row and per batch."""

    per_row_s: float
    fixed_s: float
    known: bool
