"""The whole search, as a dialogue: it yields what it wants measured and is sent what was seen. Pure.

Probes describe the shapes, the prediction ranks the space, halving thins out the best of it, bisection finds the
goodput of the last two, a longer run confirms it, and a curve shows where the winner bends.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hybrid.errors import ConfigError, StartupError
from hybrid.load.bottleneck import BatchTime
from hybrid.planner.measures import Setting
from hybrid.tune import halving
from hybrid.tune.book import Book, Steps, cost_s
from hybrid.tune.halving import Scored, rounds
from hybrid.tune.rates import Rate, Rates, planned_s
from hybrid.tune.seeds import MOST, Bounds, Shape, default_setting, pick, probes, rank, shape_of, space
from hybrid.tune.values import Curve, Found, Terms

_FINALISTS: Final = 2
#: Without an objective: the 99th percentile within this many times a single request, where batching has room to pay.
_OWN_OBJECTIVE: Final = 10.0
_NO_TIME: Final = (
    "there was no time left to measure the rate that is given: it is below one that held, whose p99 it has; a larger"
    " --budget-s would do"
)


class _Best(Struct, frozen=True):
    setting: Setting
    rps: float
    p99_s: float | None
    certain: bool
    curve: Curve
    note: str = ""


def search(bounds: Bounds, terms: Terms, budget_s: float, most: int = MOST) -> Steps[Found]:
    """Search the space for the best setting, in about `budget_s`.

    Raises:
        ConfigError: a single request alone takes longer than the objective.
        StartupError: no setting could be run, or none held the objective at any rate.
    """
    book = Book(budget_s)
    default = default_setting(bounds)
    _plan(book, bounds, terms, most)
    times = yield from _probe(book, bounds, terms)
    singles = {shape: points[0].seconds for shape, points in times.items()}
    single_s = min(singles.values())
    terms = _settled(terms, single_s)
    settings = space(bounds, single_s)
    picked = pick(rank(settings, times, terms), default, most)
    scored = yield from rounds(book, picked, terms, 1 if terms.objective == "throughput" else _FINALISTS)
    book.todo_s["round"] = 0.0
    if not scored:
        raise StartupError(f"no setting could be used; {_first_reason(book)}")
    throughput = terms.objective == "throughput"
    for entry in scored[1 if throughput else _FINALISTS :]:
        share = 100.0 * entry.score / scored[0].score if scored[0].score else 0.0
        book.reject(entry.setting, "round", f"{share:.0f} % of the round's best, and no time for another round")
    if throughput:
        best = yield from _saturated(book, scored[0], terms)
    else:
        best = yield from _goodput(book, scored, terms, singles)
    return Found(
        setting=best.setting,
        rps=best.rps,
        p99_s=best.p99_s,
        certain=best.certain,
        slo_s=terms.slo_s,
        trials=tuple(book.trials),
        space_n=len(settings),
        curve=best.curve,
        default=default,
        gain_over_default=_gain(book, best.setting, default),
        single_s=single_s,
        notes=(*((best.note,) if best.note else ()), *_notes(book)),
    )


def _plan(book: Book, bounds: Bounds, terms: Terms, most: int) -> None:
    """Enter what each phase will take."""
    rate_s, confirm_s, curve_s = planned_s(terms)
    latency = terms.objective == "latency"
    finalists = _FINALISTS if latency else 1
    book.todo_s["probe"] = sum(cost_s(load.seconds) for _, load in probes(bounds, terms.window_s))
    book.todo_s["round"] = halving.planned_s(most, finalists, terms.window_s)
    book.todo_s |= {"rate": rate_s if latency else 0.0, "confirm": confirm_s if latency else 0.0, "curve": curve_s}


def _probe(book: Book, bounds: Bounds, terms: Terms) -> Steps[dict[Shape, list[BatchTime]]]:
    """Time one row and a few rows on every shape. Shapes that cannot run have no times."""
    times: dict[Shape, list[BatchTime]] = {}
    for setting, load in probes(bounds, terms.window_s):
        text = f"{load.rows} row{'s' if load.rows > 1 else ''} on {setting.instances} x {setting.threads} threads"
        seen = yield from book.ask(setting, load, "probe", text)
        if seen.p50_s is None:
            book.mark("fail", seen.failure or seen.first_error or "no answer in the time")
            continue
        points = times.setdefault(shape_of(setting), [])
        points.append(BatchTime(float(load.rows), seen.p50_s))
    book.todo_s["probe"] = 0.0
    if not times:
        raise StartupError(f"no setting could be used; {_first_reason(book)}")
    return times


def _settled(terms: Terms, single_s: float) -> Terms:
    """Check the objective against what a request takes alone, or find one."""
    if terms.objective == "throughput":
        return terms
    if terms.slo_s is None:
        return replace(terms, slo_s=_OWN_OBJECTIVE * single_s)
    if terms.slo_s < single_s:
        raise ConfigError(
            f"--slo-p99-ms {1000.0 * terms.slo_s:g}: a single request takes {1000.0 * single_s:.3g} ms here when "
            "nothing else runs (p50, at the fastest setting), so no setting can hold that; expected more"
        )
    return terms


def _goodput(book: Book, scored: list[Scored], terms: Terms, singles: Mapping[Shape, float]) -> Steps[_Best]:
    """Find the finalist with the largest goodput, confirm it and draw its curve."""
    assert terms.slo_s is not None
    rates = Rates(book, terms, terms.slo_s)
    best: tuple[Setting, Rate] | None = None
    for entry in scored[:_FINALISTS]:
        single_s = singles.get(shape_of(entry.setting))
        beat_rps = best[1].rps if best is not None else None
        if best is not None and not book.time_for(4.0 * terms.window_s, "confirm"):
            book.reject(entry.setting, "round", "second in the last round; no time to measure its goodput")
            break
        found = yield from rates.largest(entry.setting, entry.seen.rps, beat_rps, single_s)
        if found is not None:
            if best is not None:
                book.reject(best[0], "rate", f"goodput {best[1].rps:.4g}/s, below {found.rps:.4g}/s of the best")
            best = entry.setting, found
        elif best is not None:
            book.reject(entry.setting, "rate", f"does not hold {beat_rps:.4g}/s as the best does")
        else:
            book.reject(entry.setting, "rate", "held none of the rates that were tried")
    book.todo_s["rate"] = 0.0
    confirmed = None
    if best is not None:
        confirmed = yield from rates.confirm(best[0], best[1], singles.get(shape_of(best[0])))
    book.todo_s["confirm"] = 0.0
    if best is None or confirmed is None:
        raise StartupError(_nothing_holds(book, terms.slo_s))
    at = next((t for t in reversed(book.trials) if t.seen is confirmed.seen), None)
    curve = yield from rates.curve(best[0], at, confirmed.rps)
    note = "" if confirmed.measured else _NO_TIME
    return _Best(best[0], confirmed.rps, confirmed.p99_s, confirmed.certain, curve, note)


def _saturated(book: Book, winner: Scored, terms: Terms) -> Steps[_Best]:
    """Draw the curve of the setting with the most throughput."""
    curve = yield from Rates(book, terms, terms.slo_s or 0.0).curve(winner.setting, None, winner.seen.rps)
    return _Best(winner.setting, winner.seen.rps, winner.seen.p99_s, True, curve)


def _gain(book: Book, setting: Setting, default: Setting) -> float | None:
    """Requests/s of the winner over those of the default in the first round, the one that always has both.

    A later one would be another comparison in every run: with other clients, and for as long as the default lasts.
    """
    first = {t.ask.setting: t.seen.rps for t in book.trials if t.ask.round == 1 and t.score is not None}
    return first[setting] / first[default] if setting in first and first.get(default) else None


def _notes(book: Book) -> tuple[str, ...]:
    void_n = sum(trial.seen.void for trial in book.trials)
    if not void_n:
        return ()
    return (
        f"in {void_n} of {len(book.trials)} trials the load generator itself was late, also when they were repeated:"
        " something else used the CPUs",
    )


def _first_reason(book: Book) -> str:
    return next((trial.rejected for trial in book.trials if trial.rejected), "nothing answered")


def _nothing_holds(book: Book, slo_s: float) -> str:
    tried = [trial for trial in book.trials if trial.ask.load.rate_rps]
    lowest = min(tried, key=lambda trial: trial.ask.load.rate_rps)
    p99 = "unknown" if lowest.seen.p99_s is None else f"{1000.0 * lowest.seen.p99_s:.3g} ms"
    _, _, why = lowest.verdict.partition("fail: ")  # more than a p99 that is too long
    return (
        f"no rate held p99 {1000.0 * slo_s:g} ms; the lowest that was tried, {lowest.ask.load.rate_rps:.3g} requests/s,"
        f" had {p99}{f'; {why}' if why else ''}"
    )
