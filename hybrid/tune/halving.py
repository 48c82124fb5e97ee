"""Successive halving: all candidates under the same crowd, the worse half out, twice the time for the rest. Pure.

A closed loop of a fixed number of clients compares settings fairly: by Little's law the one that answers more per
second has the shorter mean latency too, so one number ranks both. The crowd is as large as the objective lets a queue
be, about a third of it in the mean, because the slowest hundredth takes about three times the mean.
"""

import math
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from hybrid.planner.measures import Setting
from hybrid.tune.book import Book, Steps, cost_s
from hybrid.tune.rules import disqualified, not_worth_it
from hybrid.tune.values import Candidate, Load, Seen, Terms

_TAIL: Final = 3.0  # the 99th percentile over the mean, about, near saturation
MOST_CLIENTS: Final = 256
_LONGEST_WINDOWS: Final = 5.0
_CYCLES: Final = 2.0  # in which every client is answered: of a slow model fewer batches than that say little


class Scored(Struct, frozen=True):
    """A setting with what its last round showed."""

    setting: Setting
    score: float
    seen: Seen


def rounds(book: Book, candidates: Sequence[Candidate], terms: Terms, finalists: int) -> Steps[list[Scored]]:
    """Run rounds until `finalists` are left or the budget of this phase is used; best first, without the rejected.

    The first round is always run, so that there is a result however small the budget is.
    """
    alive = [candidate.setting for candidate in candidates]
    expected = max(candidate.predicted_rps for candidate in candidates)
    window_s, number = terms.window_s, 1
    scored: list[Scored] = []
    while True:
        clients = crowd(terms, expected, alive)
        seconds = _window_s(window_s, clients, expected, terms)
        if number > 1 and not (len(alive) > finalists and _affordable(book, seconds, len(alive))):
            return scored
        scored = yield from _round(book, alive, Load(seconds, clients=clients, slo_s=terms.slo_s), terms, number)
        scored = _kept(book, scored, finalists)
        if len(scored) <= finalists:
            return scored
        alive = sorted(entry.setting for entry in scored)
        expected = scored[0].seen.rps
        window_s, number = min(2.0 * window_s, _LONGEST_WINDOWS * terms.window_s), number + 1


def planned_s(candidates_n: int, finalists: int, window_s: float) -> float:
    """Return how long all rounds take."""
    total, left, window = 0.0, candidates_n, window_s
    while True:
        total += left * cost_s(window)
        left = max(finalists, left // 2)
        if left <= finalists:
            return total
        window = min(2.0 * window, _LONGEST_WINDOWS * window_s)


def crowd(terms: Terms, expected_rps: float, settings: Sequence[Setting]) -> int:
    """Return the number of clients for one round: the same for all settings, or they would not be comparable."""
    if terms.slo_s is not None and terms.objective == "latency":
        wanted = math.ceil(expected_rps * terms.slo_s / _TAIL)
        return min(MOST_CLIENTS, max(2, wanted))
    return min(MOST_CLIENTS, max(2 * setting.max_batch * setting.instances for setting in settings))


def score(seen: Seen, terms: Terms) -> float:
    """Return requests per second, less where the 99th percentile is over the objective in this crowd already."""
    if terms.slo_s is None or terms.objective == "throughput" or not seen.p99_s:
        return seen.rps
    return seen.rps * min(1.0, terms.slo_s / seen.p99_s)


def _round(book: Book, settings: Sequence[Setting], load: Load, terms: Terms, number: int) -> Steps[list[Scored]]:
    """Measure every setting once, in the other direction every other round, so that a drift evens out."""
    order = list(settings) if number % 2 else list(reversed(settings))
    scored = []
    for at, setting in enumerate(order, 1):
        text = f"round {number}, setting {at} of {len(order)}"
        seen = yield from book.ask(setting, load, "round", text, number)
        why = disqualified(seen)
        if why:
            book.mark("fail", why)
        else:
            book.mark("compared", score=score(seen, terms))
            scored.append(Scored(setting, score(seen, terms), seen))
    return sorted(scored, key=lambda entry: -entry.score)


def _window_s(wanted_s: float, clients: int, expected_rps: float, terms: Terms) -> float:
    """Return how long a round measures each setting: longer where clients wait long for their answers."""
    cycles_s = _CYCLES * clients / expected_rps if expected_rps else 0.0
    return max(wanted_s, min(cycles_s, _LONGEST_WINDOWS * terms.window_s))


def _kept(book: Book, scored: Sequence[Scored], finalists: int) -> list[Scored]:
    """Return the better half, and say of the others why they are out."""
    reasons = not_worth_it({entry.setting: entry.score for entry in scored})
    worth = [entry for entry in scored if entry.setting not in reasons]
    kept = worth[: max(finalists, math.ceil(len(scored) / 2))]
    if kept:
        best = kept[0]
        for entry in scored:
            share = 100.0 * entry.score / best.score if best.score else 0.0
            if entry not in kept:
                book.reject(entry.setting, "round", reasons.get(entry.setting) or f"{share:.0f} % of the round's best")
    return kept


def _affordable(book: Book, window_s: float, settings_n: int) -> bool:
    return book.time_for(settings_n * cost_s(window_s), "rate", "confirm")
