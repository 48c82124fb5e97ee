"""Size classes learned from live traffic: what sizes came, when to look again, whether new edges are worth it. Pure.

Owns the histogram of one model. The caller puts edges into force; requests that wait already keep their class.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from hybrid.batching.classes import BatchCost, Mix, expected_cost, grid_step, learn_edges

_LOOK_AFTER: Final = 2000  # requests
_LOOK_EVERY_S: Final = 60.0
_AT_LEAST: Final = 200
_TIME_ASKED_EVERY: Final = 64
_WORTH_IT: Final = 0.05


class Learned(Struct, frozen=True):
    """New edges, how many requests they were learned from, and by which fraction a row should become cheaper."""

    edges: tuple[int, ...]
    requests: int
    gain: float


class SizeLearner:
    """Counts sizes in at most 64 bins; old traffic counts half at each look."""

    def __init__(self, max_classes: int, now: float) -> None:
        self._max_classes = max_classes
        self._counts: dict[int, int] = {}  # upper end of a bin -> rows
        self._step = grid_step(1)
        self._recent_n = 0
        self._looked_at = now

    def note(self, sizes: Iterable[int]) -> None:
        """Count the rows of one request."""
        self._recent_n += 1
        counts, step = self._counts, self._step
        for size in sizes:
            edge = -(-size // step) * step
            if edge in counts:
                counts[edge] += 1
            elif size > 0:
                self._add(size)

    def due(self, now: float) -> bool:
        """Whether it is time to look for better edges."""
        n = self._recent_n
        if n >= _LOOK_AFTER:
            return True
        return n >= _AT_LEAST and n % _TIME_ASKED_EVERY == 0 and now - self._looked_at >= _LOOK_EVERY_S

    def look(self, edges: Sequence[int], cost: BatchCost | None, mix: Mix, now: float) -> Learned | None:
        """Return edges that are predicted to make rows over 5 % cheaper than `edges`, or None.

        `cost` may be unknown: then as if a batch cost as much by itself as one row of middling size.
        """
        requests, self._recent_n, self._looked_at = self._recent_n, 0, now
        counts = self._counts
        if not counts:
            return None
        if cost is None:
            mean = sum(size * n for size, n in counts.items()) / sum(counts.values())
            cost = BatchCost(fixed_s=mean, per_unit_s=1.0)
        better = learn_edges(counts, max_classes=self._max_classes, cost=cost, mix=mix)
        now_s, then_s = (expected_cost(counts, e, cost=cost, mix=mix) for e in (edges, better))
        self._counts = {size: n // 2 for size, n in counts.items() if n > 1}
        gain = 1.0 - then_s / now_s if now_s > 0.0 else 0.0
        # The first edges are taken even if they gain little: they also name what is counted.
        return Learned(better, requests, gain) if better != tuple(edges) and (gain > _WORTH_IT or not edges) else None

    def _add(self, size: int) -> None:
        step = grid_step(size)
        if step > self._step:  # never back: edges and names of classes come from few grids, so that they stay few
            self._step = step
            merged: dict[int, int] = {}
            for edge, n in self._counts.items():
                upper = -(-edge // step) * step
                merged[upper] = merged.get(upper, 0) + n
            self._counts = merged
        edge = -(-size // self._step) * self._step
        self._counts[edge] = self._counts.get(edge, 0) + 1
