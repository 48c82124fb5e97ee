"""Where a latency curve bends: the rate beyond which a little more load costs much more latency. Pure.

Two methods that err differently. The hinge fits two straight lines that meet to the logarithm of the latency, since
beyond saturation latency has no level of its own: it grows with the length of the measurement. Kneedle looks for the
point farthest from the straight line between both ends. Must never know which latency, or of what.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
from msgspec import Struct

_GRID: Final = 400
_STEEPER: Final = 3.0  # the second line, against the first
_BETTER: Final = 0.25  # of the single line's squared error may be left
_FEWEST: Final = 5
_RISE: Final = 1.3  # from the lowest to the highest value; less is the noise of a flat curve
_SENSITIVITY: Final = 1.0


class Knee(Struct, frozen=True):
    """The knee of a curve at `x`, with the fitted `y` there; `cross_check` is Kneedle's x, None where it finds none.

    Not `sharp` where two lines fit hardly better than one: then it is Kneedle's, which finds one in any curve that is
    bent at all.
    """

    x: float
    y: float
    cross_check: float | None = None
    sharp: bool = True


def find_knee(xs: Sequence[float], ys: Sequence[float]) -> Knee | None:
    """Return the knee of a rising curve over rising `xs`; None where it does not bend.

    Raises:
        ValueError: `xs` do not rise, or lengths differ.
    """
    _check(xs, ys)
    found, check = hinge(xs, ys), kneedle(xs, ys)
    if found is not None:
        return Knee(found[0], math.exp(found[1]), check)
    if check is None or len(xs) < _FEWEST or max(ys) < _RISE * min(ys):
        return None
    return Knee(check, ys[list(xs).index(check)], check, sharp=False)


def hinge(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Return (x, logarithm of y) where the two lines that fit best meet; None where one line does as well."""
    if len(xs) < _FEWEST or min(ys) <= 0.0 or max(ys) < _RISE * min(ys):
        return None
    x, y = np.asarray(xs, float), np.log(np.asarray(ys, float))
    single = _fit(x, y, None)[0]
    # At least two points on each side, or one outlier at an end would make a line of its own.
    places = np.linspace(x[1], x[-2], _GRID)
    error, place, line = min(_bent(x, y, float(place)) for place in places)
    before, after = line[1], line[1] + line[2]
    steep = after > 0.0 and line[2] > 0.0 and after >= _STEEPER * max(before, 0.0)
    if not steep or error > _BETTER * single:
        return None
    return place, line[0] + line[1] * place


def kneedle(xs: Sequence[float], ys: Sequence[float], sensitivity: float = _SENSITIVITY) -> float | None:
    """Return the knee of a rising convex curve by Kneedle; None where the curve has none at this sensitivity.

    With both axes scaled to 0..1 the knee is where x - y is largest, if it falls below that maximum by `sensitivity`
    mean steps before a new one.
    """
    if len(xs) < 3 or max(ys) <= min(ys):
        return None
    x = _scaled(xs)
    difference = x - _scaled(ys)
    step = sensitivity * float(np.mean(np.diff(x)))
    best: int | None = None
    for at in range(1, len(xs) - 1):
        peak = difference[at] > difference[at - 1] and difference[at] >= difference[at + 1]
        if peak and (best is None or difference[at] > difference[best]):
            best = at
        if best is not None and difference[at] < difference[best] - step:
            break
    if best is None or not np.any(difference[best:] < difference[best] - step):
        return None
    return float(xs[best])


def _bent(x: Any, y: Any, place: float) -> tuple[float, float, tuple[float, ...]]:
    error, line = _fit(x, y, place)
    return error, place, line


def _fit(x: Any, y: Any, place: float | None) -> tuple[float, tuple[float, ...]]:
    """Least squares of one line, or of one that bends at `place`: the squared error and the coefficients."""
    columns = [np.ones_like(x), x] if place is None else [np.ones_like(x), x, np.maximum(0.0, x - place)]
    matrix = np.stack(columns, axis=1)
    coefficients = np.linalg.lstsq(matrix, y, rcond=None)[0]
    return float(np.sum((matrix @ coefficients - y) ** 2)), tuple(float(value) for value in coefficients)


def _scaled(values: Sequence[float]) -> Any:
    array = np.asarray(values, float)
    return (array - array.min()) / (array.max() - array.min())


def _check(xs: Sequence[float], ys: Sequence[float]) -> None:
    if len(xs) != len(ys) or any(b <= a for a, b in pairwise(xs)):
        raise ValueError("curve: expected as many values as rising places")
