"""Size classes: which class a size belongs to, and the edges that fit the sizes of live traffic best. Pure.

Edges are chosen by dynamic programming over the histogram of sizes. A class costs what its rows cost when each is
padded to the class's upper edge, plus its share of fixed costs: rows that are split over more classes find fewer of
their kind waiting, so their batches are emptier and the fixed part of a batch is paid more often.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct

ONE_CLASS: Final = "all"
GRID_POINTS: Final = 64
_SMALLEST_STEP: Final = 8

Array = np.ndarray[Any, Any]


class BatchCost(Struct, frozen=True):
    """What a batch costs, in seconds: a fixed part, and a part per row and unit of the size it is padded to."""

    fixed_s: float
    per_unit_s: float


class Mix(Struct, frozen=True):
    """How much waits when a batch is formed: `waiting` rows of all sizes, of which `max_batch` at most travel."""

    max_batch: int
    waiting: int


def class_of(edges: Sequence[int], size: int) -> str:
    """Return the name of the class that `size` belongs to: its upper edge, or "N+" above the last edge N."""
    if not edges:
        return ONE_CLASS
    place = bisect_left(edges, size)
    return str(edges[place]) if place < len(edges) else f"{edges[-1]}+"


def grid_step(largest: int) -> int:
    """Return the distance of edges that keeps sizes up to `largest` within the grid: 8, 16, 32, ..."""
    step = _SMALLEST_STEP
    while largest > step * GRID_POINTS:
        step *= 2
    return step


def learn_edges(histogram: Mapping[int, int], *, max_classes: int, cost: BatchCost, mix: Mix) -> tuple[int, ...]:
    """Return at most `max_classes` rising edges, the last one at or above the largest size, of least expected cost.

    Edges lie on a grid of at most 64 points, so that over time few lengths and few names of classes come up. Fewer
    classes win when costs are equal. `histogram` maps sizes (at least 1) to how often they were seen.

    Raises:
        ValueError: the histogram is empty, or a bound is below 1.
    """
    if not histogram or min(max_classes, mix.max_batch, mix.waiting) < 1:
        raise ValueError("learn_edges needs sizes, and at least one class, row and waiting row")
    edges, shares = _binned(histogram)
    costs = _class_costs(edges, shares, cost, mix)
    points = len(edges)
    best = costs[0]  # best[i]: cost of points 0..i in the classes allowed so far
    cuts: list[Array] = []
    totals = [float(best[-1])]
    for _ in range(1, min(max_classes, points)):
        # One more class: its first point is 1..i, everything before is in the classes allowed so far.
        options = np.full((points, points), np.inf)
        options[1:] = best[:-1, None] + costs[1:]
        cuts.append(options.argmin(axis=0))
        best = options.min(axis=0)
        totals.append(float(best[-1]))
    classes = next(n for n, total in enumerate(totals) if total <= min(totals) * (1.0 + 1e-12))
    return tuple(int(edges[place]) for place in _places(cuts[:classes], points - 1))


def expected_cost(histogram: Mapping[int, int], edges: Sequence[int], *, cost: BatchCost, mix: Mix) -> float:
    """Return the expected seconds per row with these edges; sizes above the last edge are one more class."""
    total = sum(histogram.values())
    members: dict[int, tuple[int, int]] = {}  # class -> rows, what they are padded to
    for size, count in histogram.items():
        place = bisect_left(edges, size)
        rows, padded = members.get(place, (0, 0))
        members[place] = rows + count, edges[place] if place < len(edges) else max(padded, size)
    return sum(
        rows / total * (cost.per_unit_s * padded + cost.fixed_s / _rows_per_batch(rows / total, mix))
        for rows, padded in members.values()
    )


def _rows_per_batch(share: float, mix: Mix) -> float:
    return min(float(mix.max_batch), max(1.0, share * mix.waiting))


def _binned(histogram: Mapping[int, int]) -> tuple[Array, Array]:
    """Grid points that hold something, and the share of rows at each."""
    step = grid_step(max(histogram))
    bins: dict[int, int] = {}
    for size, count in histogram.items():
        edge = -(-size // step) * step
        bins[edge] = bins.get(edge, 0) + count
    edges = np.array(sorted(bins))
    counts = np.array([bins[edge] for edge in sorted(bins)], float)
    return edges, counts / counts.sum()


def _class_costs(edges: Array, shares: Array, cost: BatchCost, mix: Mix) -> Array:
    """Cost of a class made of points j..i, in row j and column i; infinite below the diagonal."""
    sums = np.concatenate(([0.0], np.cumsum(shares)))
    share = sums[None, 1:] - sums[:-1, None]
    rows = np.clip(share * mix.waiting, 1.0, mix.max_batch)
    costs = share * (cost.per_unit_s * edges[None, :] + cost.fixed_s / rows)
    return np.where(np.tri(len(edges), k=-1, dtype=bool), np.inf, costs)


def _places(cuts: Sequence[Array], last: int) -> list[int]:
    """The last point of each class, following the choices back from the end."""
    places = [last]
    for choices in reversed(cuts):
        places.append(int(choices[places[-1]]) - 1)
    return places[::-1]
