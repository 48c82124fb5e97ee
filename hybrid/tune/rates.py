"""The goodput of one setting: the largest Poisson rate at which the 99th percentile is within the objective. Pure.

Owns the bisection over rates, the verdict on each, the confirmation and the curve. A rate is judged by counts of late
requests and the early-stopping rule, not by a percentile that was read off; where the rule cannot decide in the time
there is, the share itself decides, and the result says that it is not certain.
"""

import math
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hybrid.planner.measures import Setting
from hybrid.tune.book import Book, Steps
from hybrid.tune.knee import find_knee
from hybrid.tune.rules import exploded
from hybrid.tune.stopping import QUANTILE, hopeless, judge, needed
from hybrid.tune.values import Curve, Load, Seen, Terms, Trial

_START: Final = 0.85  # of what a closed loop got
_UP: Final = 0.12
_DOWN: Final = 0.18
_DOWN_MOST: Final = 0.3
_CLOSE: Final = 1.05  # between a rate that holds and one that does not
_STEPS: Final = 9
_BEATS: Final = 1.03
_LATE_PLANNED: Final = 2  # as many may be late in a window of planned length
_CONFIRM_LATE: Final = 5
_CONFIRM_AT: Final = 0.97
_CONFIRM_SHARE: Final = 0.7  # of the late requests that are allowed, where the rule does not decide: it must hold again
_CONFIRM_DOWN: Final = 0.05
_CONFIRMS: Final = 6
_WINDOWS: Final = 4.0  # a rate's window is at most so many of the first round's
_CONFIRM_WINDOWS: Final = 7.0
_CURVE: Final = (0.25, 0.45, 0.65, 0.8, 0.92, 1.08, 1.2)
_CURVE_WINDOWS: Final = 1.4
_RATE_SEED: Final = 100
_CONFIRM_SEED: Final = 200  # other arrivals than those that the rate was found with


class Rate(Struct, frozen=True):
    """A rate with what its last window showed; `p99_s` is an upper bound of the p99 of all its windows together.

    `certain` when the rule says that it holds, not `measured` when its windows were at a rate above it.
    """

    rps: float
    seen: Seen
    certain: bool
    p99_s: float | None
    measured: bool = True


class _Verdict(Struct, frozen=True):
    """Whether a rate holds, and whether that is more likely than not all the same."""

    rate: Rate
    holds: bool
    likely: bool


def planned_s(terms: Terms) -> tuple[float, float, float]:
    """Return how long the bisection, the confirmation and the curve take, about."""
    beside = 0.5
    return (
        7 * (_WINDOWS * terms.window_s + beside),
        1.5 * (_CONFIRM_WINDOWS * terms.window_s + beside),
        len(_CURVE) * (_CURVE_WINDOWS * terms.window_s + beside),
    )


class Rates:
    """Asks about rates of settings under one objective; `slo_s` in seconds, `singles_s` as `exploded` wants it."""

    def __init__(self, book: Book, terms: Terms, slo_s: float) -> None:
        self._book = book
        self._terms = terms
        self._slo_s = slo_s
        self._seed = 0
        self._held: list[tuple[Setting, Rate]] = []

    def largest(
        self, setting: Setting, closed_rps: float, beat_rps: float | None, single_s: float | None
    ) -> Steps[Rate | None]:
        """Find the largest rate that holds; None where none does, or with `beat_rps` where that one does not.

        `closed_rps` is what a closed loop got.
        """
        self._seed = _RATE_SEED  # the same arrivals for every setting, but for their scale
        low: Rate | None = None
        high_rps, held, failed, asked_twice = math.inf, 0, 0, False
        rate_rps = _START * closed_rps if beat_rps is None else _BEATS * beat_rps
        for step in range(_STEPS):
            verdict = yield from self._try(setting, rate_rps, single_s, f"rate {step + 1}: {rate_rps:.4g}/s")
            if verdict.holds:
                low, held = verdict.rate, held + 1
                self._held.append((setting, low))
                high_rps = high_rps if rate_rps < high_rps else math.inf
            else:
                high_rps, failed = rate_rps, failed + 1
                if beat_rps is not None and low is None:
                    return None
            if not self._book.time_for(0.0, "confirm"):
                break
            rate_rps = _next(low.rps if low is not None else 0.0, high_rps, held, failed)
            if low is not None and high_rps / low.rps <= _CLOSE:
                if asked_twice:
                    break
                # A disturbance fails a rate as well as the server does, and would have ended the search below it.
                rate_rps, asked_twice = high_rps, True
        return low

    def confirm(self, setting: Setting, rate: Rate, single_s: float | None) -> Steps[Rate | None]:
        """Measure a rate again for longer, lower where it does not hold: a largest one is the luckiest one, too."""
        self._seed = _CONFIRM_SEED
        rate_rps = _CONFIRM_AT * rate.rps
        likely: Rate | None = None
        for attempt in range(1, _CONFIRMS + 1):
            if not self._book.time_for(_CONFIRM_WINDOWS * self._terms.window_s):
                below = self._held_below(setting, rate_rps) if attempt > 1 else None
                return likely or below or replace(rate, rps=rate_rps, certain=False, measured=False)
            text = f"confirming {rate_rps:.4g}/s"
            verdict = yield from self._try(setting, rate_rps, single_s, text, confirm=True)
            if verdict.holds:
                return verdict.rate
            likely = verdict.rate if verdict.likely else None
            rate_rps *= 1.0 - _CONFIRM_DOWN * attempt
        return likely

    def curve(self, setting: Setting, best: Trial | None, best_rps: float) -> Steps[Curve]:
        """Measure latency over rates around the best one; `best` is the trial there, which becomes a point of it."""
        trials = [best] if best is not None else []
        for share in _CURVE if best is not None else (*_CURVE, 1.0):
            seconds = _CURVE_WINDOWS * self._terms.window_s
            if not self._book.time_for(seconds):
                break
            load = Load(seconds, rate_rps=share * best_rps, seed=self._next_seed(), slo_s=self._slo_s or None)
            seen = yield from self._book.ask(setting, load, "curve", f"curve: {load.rate_rps:.4g}/s")
            late = seen.late_n > (1.0 - QUANTILE) * max(1, seen.offered_n)
            self._book.mark(f"fail: {seen.failure}" if seen.failure else "late" if late else "in time")
            trials.append(self._book.trials[-1])
        return _curve(trials)

    def _try(
        self, setting: Setting, rate_rps: float, single_s: float | None, text: str, confirm: bool = False
    ) -> Steps[_Verdict]:
        """Judge one rate; where a window leaves it open, with a second one."""
        windows, late = (_CONFIRM_WINDOWS, _CONFIRM_LATE) if confirm else (_WINDOWS, _LATE_PLANNED)
        longest_s = windows * self._terms.window_s
        seconds = min(longest_s, max(self._terms.window_s, 1.05 * needed(late) / rate_rps))
        n = late_n = 0
        p99_s: float | None = None
        verdict = "undecided"
        for _ in range(2):
            limit = max(1, hopeless(max(1, n + math.ceil(1.1 * rate_rps * seconds))) - late_n)
            load = Load(seconds, rate_rps=rate_rps, seed=self._next_seed(), late_limit=limit, slo_s=self._slo_s)
            seen = yield from self._book.ask(setting, load, "confirm" if confirm else "rate", text)
            n, late_n = n + seen.offered_n, late_n + seen.late_n
            p99_s = max(p99_s or 0.0, seen.p99_s) if seen.p99_s is not None else p99_s
            why = exploded(seen, single_s)
            verdict = "fail" if seen.stopped or seen.failure or why or not n else judge(n, late_n)
            self._book.mark(f"fail: {why or seen.failure}" if why or seen.failure else verdict)
            if verdict != "undecided" or not self._book.time_for(seconds):
                break
        limit_n = (1.0 - QUANTILE) * n
        likely = verdict == "pass" or (verdict == "undecided" and late_n <= limit_n)
        holds = verdict == "pass" or (likely and (not confirm or late_n <= _CONFIRM_SHARE * limit_n))
        if verdict == "undecided":
            self._book.mark("pass, not certain" if holds else "fail, not certain")
        if p99_s is not None and late_n <= limit_n:  # of one window it may be above, of both together it is not
            p99_s = min(p99_s, self._slo_s)
        return _Verdict(Rate(rate_rps, seen, verdict == "pass", p99_s), holds, likely)

    def _held_below(self, setting: Setting, rate_rps: float) -> Rate | None:
        """The largest rate that was seen to hold on the way up and is not above one that now failed."""
        held = (rate for of, rate in self._held if of == setting and rate.rps <= rate_rps)
        found = max(held, key=lambda rate: rate.rps, default=None)
        return None if found is None else replace(found, certain=False)

    def _next_seed(self) -> int:
        self._seed += 1
        return self._seed


def _next(low_rps: float, high_rps: float, held: int, failed: int) -> float:
    """The next rate: longer steps up while all rates hold, and down while none does; then the middle."""
    if math.isinf(high_rps):
        return (1.0 + _UP * max(1, held)) * low_rps
    return math.sqrt(low_rps * high_rps) if low_rps else max(_DOWN_MOST, 1.0 - _DOWN * failed) * high_rps


def _curve(trials: list[Trial]) -> Curve:
    known = sorted((t for t in trials if t.seen.p99_s), key=lambda t: t.ask.load.rate_rps)
    points = {t.ask.load.rate_rps: t.seen.p99_s or 0.0 for t in known}
    knee = find_knee(list(points), list(points.values()))
    if knee is None:
        return Curve(tuple(known))
    return Curve(tuple(known), knee.x, knee.y, knee.cross_check, knee.sharp)
