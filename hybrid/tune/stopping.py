"""When enough requests were seen to say that a latency objective holds, or that it does not. Pure.

Owns the early-stopping rule of MLPerf Inference: `late` requests over the objective among `n` are few enough when a
server whose share of late requests is exactly the allowed one would show so few with a chance of 1 % at most; and too
many by the same rule the other way round. Between both nothing is known yet. A bare comparison of the measured
quantile would call every second server at the limit good. Must never know what was measured, or for how long.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Final, Literal

Verdict = Literal["pass", "fail", "undecided"]

QUANTILE: Final = 0.99
CONFIDENCE: Final = 0.99
_TINY: Final = 1e-300
_STEPS: Final = 2000
_MOST: Final = 1 << 40


def judge(n: int, late: int, quantile: float = QUANTILE, confidence: float = CONFIDENCE) -> Verdict:
    """Say whether at least `quantile` of all requests are in time, after `late` of `n` were not.

    Raises:
        ValueError: `late` is not in 0..n, or `quantile` or `confidence` is not between 0 and 1.
    """
    _check(quantile, confidence)
    if not 0 <= late <= n:
        raise ValueError(f"late: expected 0 to {n}, got {late}")
    if late < n and n >= needed(late, quantile, confidence):
        return "pass"
    return "fail" if late and _chance_of_more(n, late, quantile) <= 1.0 - confidence else "undecided"


@lru_cache(maxsize=4096)
def needed(late: int, quantile: float = QUANTILE, confidence: float = CONFIDENCE) -> int:
    """Return how many requests must have been seen for `late` late ones to be few enough."""
    _check(quantile, confidence)

    def enough(in_time: int) -> bool:
        return beta(in_time, late + 1, quantile) <= 1.0 - confidence

    return late + _first(enough)


def hopeless(n: int, quantile: float = QUANTILE, confidence: float = CONFIDENCE) -> int:
    """Return the fewest late requests with which `n` fail, whatever else they were: a run may end at this one."""
    _check(quantile, confidence)
    return min(n, _first(lambda late: _chance_of_more(n, min(late, n), quantile) <= 1.0 - confidence))


def beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function I_x(a, b), for a, b > 0 and x in 0..1.

    By Lentz's continued fraction, which converges fast on one side of the mean; the other side is its mirror.
    """
    if x <= 0.0 or x >= 1.0:
        return float(x > 0.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - beta(b, a, 1.0 - x)
    front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(front) / (a * _fraction(a, b, x))


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction 1 + d1/(1 + d2/(1 + ...)) of the incomplete beta function."""
    value = c = 1.0
    d = 0.0
    for step in range(1, _STEPS):
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        d = 1.0 / _away_from_zero(1.0 + term * d)
        c = _away_from_zero(1.0 + term / c)
        value *= c * d
        if abs(c * d - 1.0) < 1e-14:
            break
    return value


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def _chance_of_more(n: int, late: int, quantile: float) -> float:
    """The chance of `late` or more late ones among `n`, where each is late with 1 - `quantile`."""
    return beta(late, n - late + 1, 1.0 - quantile) if late else 1.0


def _first(holds: Callable[[int], bool]) -> int:
    """Return the first of 1, 2, ... from which on `holds` is true."""
    high = 1
    while not holds(high):
        high *= 2
        if high > _MOST:
            raise ValueError("quantile or confidence: too close to 1")
    low = high // 2  # false there, or 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _check(quantile: float, confidence: float) -> None:
    if not 0.0 < quantile < 1.0 or not 0.0 < confidence < 1.0:
        raise ValueError(f"quantile and confidence: expected between 0 and 1, got {quantile:g} and {confidence:g}")
