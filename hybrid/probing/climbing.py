"""How far memory reaches: a line through measured peaks, and which batch to try next to confirm it. Pure.

Running out of memory while measuring is as bad as while serving, so each step goes only where the line, drawn through
everything measured so far, still leaves the headroom.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from hybrid.planner.measures import MemoryLine, MemoryPoint

#: A line through few small batches is short: what it says of batches that are many times larger is mostly noise.
_LARGEST_STEP: Final = 4
_CLOSE: Final = 0.9
_FIT_REACH: Final = 4
_ROOMY_SHARE: Final = 0.5
_DOUBT: Final = 2.0


def line_of(points: Sequence[MemoryPoint]) -> MemoryLine:
    """Return a line that no point of the larger half of batches lies above.

    It is for the end of the memory, so it is drawn through the larger batches: the first rows often cost more than
    later ones, and a line above them all would give away a row in ten. The slope is that of the best fit, or that
    between the two largest batches where it is steeper: some models need relatively more from some size on.

    Raises:
        ValueError: no points.
    """
    if not points:
        raise ValueError("no points")
    ordered = sorted(points, key=lambda point: point.rows)
    rows = np.array([point.rows for point in ordered], float)
    peaks = np.array([point.peak_bytes for point in ordered], float)
    slope = 0.0
    if rows[-1] > rows[0]:
        fitted = rows >= rows[-1] / _FIT_REACH
        slope = float(np.polyfit(rows[fitted], peaks[fitted], 1)[0]) if fitted.sum() > 1 else 0.0
        other = max(0, int(np.searchsorted(rows, rows[-1] / 2, side="right")) - 1)  # not a neighbour: noise would count
        slope = max(0.0, slope, float((peaks[-1] - peaks[other]) / (rows[-1] - rows[other])))
    large = rows >= rows[-1] / 2
    base = float(np.max(peaks[large] - slope * rows[large]))
    return MemoryLine(int(np.ceil(base)), max(1, int(np.ceil(slope))), tuple(ordered))


def rows_within(line: MemoryLine, usable_bytes: float, most_rows: int) -> int:
    """Return how many rows fit, from 0 to `most_rows`."""
    free = usable_bytes - line.base_bytes
    if free < 0:
        return 0
    return int(min(most_rows, free // line.per_row_bytes))


def next_rows(points: Sequence[MemoryPoint], usable_bytes: float, most_rows: int) -> int | None:
    """Return the batch to try next: half of what the line allows, then half of the rest, then all; None when done."""
    line = line_of(points)
    confirmed = max(point.rows for point in points)
    bound = rows_within(line, usable_bytes, most_rows)
    if bound <= confirmed:
        return None
    wanted = bound // 2 if confirmed < bound // 2 else confirmed + (bound - confirmed + 1) // 2
    if wanted >= _CLOSE * bound:
        wanted = bound
    return min(wanted, confirmed * _LARGEST_STEP)


def is_roomy(line: MemoryLine, usable_bytes: float, most_rows: int) -> bool:
    """Whether the largest batch stays below half of the memory even where the line is half as steep as the truth."""
    return line.base_bytes + _DOUBT * line.per_row_bytes * most_rows <= _ROOMY_SHARE * usable_bytes


def without(line: MemoryLine, usable_bytes: float, failed_rows: int) -> MemoryLine:
    """Return a steeper line, on which the largest confirmed batch fits and `failed_rows`, which did not fit, do not."""
    confirmed = max((point.rows for point in line.points if point.rows < failed_rows), default=0)
    free = max(0.0, usable_bytes - line.base_bytes)
    steep = int(free // max(confirmed, 1)) if confirmed else int(free) + 1
    return MemoryLine(line.base_bytes, max(line.per_row_bytes, steep), line.points)
