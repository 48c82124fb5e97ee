"""Latency histograms on one fixed set of edges, so that any two of them can be merged.

Owns the edges and the counting. Knows nothing of requests, models, clocks or exporters. Percentiles are only ever read
from counts; they are never averaged or merged themselves, because that gives numbers that belong to no distribution.
"""

from math import ceil, isfinite, log2, sqrt
from typing import Any, Final

import numpy as np
from msgspec import Struct

PER_OCTAVE: Final = 16

#: Upper edges of the buckets in seconds: 0.1 ms to 100 s, each 2^(1/16) above the one before.
EDGES_S: Final[tuple[float, ...]] = tuple(1e-4 * 2.0 ** (i / PER_OCTAVE) for i in range(320))

#: Index of the bucket for everything above the last edge; also the highest index there is.
OVERFLOW: Final = len(EDGES_S)

_LOW_S: Final = EDGES_S[0]
_HIGH_S: Final = EDGES_S[-1]
_OFFSET: Final = 1.0 - PER_OCTAVE * log2(_LOW_S)
_LONGEST_S: Final = 86_400.0  # the longest time any setting allows; keeps one absurd value from owning the sum


class Hist(Struct, frozen=True):
    """A histogram at rest: pairs of (bucket index, count) in rising order without zeros, and the sum in seconds."""

    buckets: tuple[tuple[int, int], ...] = ()
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(n for _, n in self.buckets)


class Histogram:
    """Counts durations in log-spaced buckets; a percentile is within 2.2 % of the value it stands for.

    A dense list and one `log2` per value: an index by bisection costs twice as much, and a dict saves memory that
    nobody misses (321 counters) for a slower update.
    """

    __slots__ = ("_counts", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (OVERFLOW + 1)
        self.sum_s = 0.0

    @classmethod
    def from_sparse(cls, hist: Hist) -> "Histogram":
        """Build from the resting form.

        Raises:
            ValueError: when a bucket index is outside 0..OVERFLOW or a count is negative.
        """
        histogram = cls()
        for index, n in hist.buckets:
            if not 0 <= index <= OVERFLOW or n < 0:
                raise ValueError(
                    f"histogram bucket ({index}, {n}): expected an index in 0..{OVERFLOW} and a count >= 0"
                )
            histogram._counts[index] += n
        histogram.sum_s = hist.sum_s
        return histogram

    def observe(self, seconds: float) -> None:
        """Count one duration. Negative and NaN count as 0, infinity as the longest time; never raises."""
        if _LOW_S < seconds < _HIGH_S:  # false for NaN too
            self._counts[int(log2(seconds) * PER_OCTAVE + _OFFSET)] += 1
            self.sum_s += seconds
        else:
            self._observe_outside(seconds)

    def observe_many(self, seconds: np.ndarray[Any, Any]) -> None:
        """Count many durations at once (float64 [n]); each is treated as `observe` treats it."""
        clean = np.nan_to_num(np.asarray(seconds, np.float64), nan=0.0, posinf=_LONGEST_S, neginf=0.0)
        clean = np.clip(clean, 0.0, _LONGEST_S)
        index = (np.log2(np.clip(clean, _LOW_S, _HIGH_S)) * PER_OCTAVE + _OFFSET).astype(np.intp)
        index[clean <= _LOW_S] = 0
        index[clean == _HIGH_S] = OVERFLOW - 1
        index[clean > _HIGH_S] = OVERFLOW
        counts = self._counts
        for bucket, n in zip(*np.unique(index, return_counts=True), strict=True):
            counts[bucket] += int(n)
        self.sum_s += float(clean.sum())

    def merge(self, other: "Histogram") -> None:
        """Add everything `other` has counted."""
        self._counts = [mine + theirs for mine, theirs in zip(self._counts, other._counts, strict=True)]
        self.sum_s += other.sum_s

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self._counts)

    def percentile(self, q: float) -> float | None:
        """Return the value in seconds below or at which the fraction `q` (0..1) of all values lies; None when empty.

        It is the middle of the bucket of that rank. Outside 0.1 ms..100 s only the bound is known and returned.

        Raises:
            ValueError: when `q` is not a fraction.
        """
        if not 0.0 <= q <= 1.0:
            raise ValueError(f"percentile: expected a fraction in 0..1, got {q!r}")
        rank = max(1, ceil(q * self.count))
        below = 0
        for index, n in enumerate(self._counts):
            below += n
            if n and below >= rank:
                return _middle_s(index)
        return None

    def sparse(self) -> Hist:
        """Return the resting form, for a Snapshot."""
        return Hist(buckets=tuple((i, n) for i, n in enumerate(self._counts) if n), sum_s=self.sum_s)

    def _observe_outside(self, seconds: float) -> None:
        if seconds >= _HIGH_S:
            index = OVERFLOW if seconds > _HIGH_S else OVERFLOW - 1
            self._counts[index] += 1
            self.sum_s += min(seconds, _LONGEST_S)
            return
        self._counts[0] += 1
        if isfinite(seconds) and seconds > 0.0:
            self.sum_s += seconds


def _middle_s(index: int) -> float:
    if index == 0:
        return _LOW_S
    if index == OVERFLOW:
        return _HIGH_S
    return sqrt(EDGES_S[index - 1] * EDGES_S[index])
