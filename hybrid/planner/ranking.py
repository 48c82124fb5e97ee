"""Every setting of the space, predicted and put in order; the best batch of each (instances, threads). Pure.

Owns the rules of the two objectives. What has not been measured is told by the model, and says so by its doubt.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hybrid.planner.latency import Floats, LatencyModel, fit
from hybrid.planner.measures import EngineProfile, Setting, Timing
from hybrid.planner.queueing import STABLE_SHARE, Server, goodput_rps, rough_goodputs_rps
from hybrid.planner.space import SearchQuestion, batches, pairs

#: Without an objective of the user's: how much slower than one row alone the slowest in 100 may be, and always may be.
SLOWEST_TIMES_SINGLE: Final = 10.0
SHORTEST_OBJECTIVE_S: Final = 0.020
#: A larger batch must gain this much, or the smaller one is taken: it answers sooner and is kinder to neighbours.
BATCH_GAIN: Final = 0.01
#: The same where rows vary in length: it was measured at one length, and a batch costs what its longest row does.
VARIABLE_BATCH_GAIN: Final = 0.04
#: For throughput, what a doubling of the batch must gain.
DOUBLING_GAIN: Final = 0.05
_REPLAYED_PAIRS: Final = 12
#: Standard errors by which an unmeasured setting may be better than predicted.
_HOPE: Final = 2.0
_CAUTION: Final = 0.5
_REPLAYED_BATCHES: Final = 6
_NEAR: Final = 1.8
_REFINED_BATCHES: Final = 7
_SLOWER: Final = 1.06
#: Samples of arrivals to replay: one while searching, four for the choice.
ONE: Final = (0,)
FOUR: Final = (0, 1, 2, 3)
_WORTH_REPLAY: Final = 0.45


class Rated(Struct, frozen=True):
    """A setting with what it is predicted to carry: rows per second of goodput, or at most for throughput.

    `best_rps` and `sure_rps` are what it would be if the predicted times were wrong for the better and for the worse.
    `batch_s` is the time of a full batch, `measured` whether such a batch was timed. `p50_s` and `p99_s` are latencies
    at that rate; nan where nobody asked.
    """

    setting: Setting
    rps: float
    best_rps: float
    sure_rps: float
    batch_s: float
    measured: bool
    p50_s: float = float("nan")
    p99_s: float = float("nan")


class Models(Struct, frozen=True):
    """A fitted model per engine that has times, its curves, and the bound on the latency of the slowest in 100."""

    question: SearchQuestion
    timings: tuple[Timing, ...]
    by_engine: dict[str, LatencyModel]
    slo_s: float
    curves: dict[tuple[str, int, int], Floats]

    def curve(self, setting: Setting) -> Floats:
        """Times of batches of 1 to `max_batch` rows in this setting."""
        model = self.by_engine[setting.engine]
        engine = next(one for one in self.question.engines if one.engine == setting.engine)
        if engine.fixed_rows is not None:
            return np.full(setting.max_batch, model.seconds(setting.instances, setting.threads, engine.fixed_rows))
        ready = self.curves.get((setting.engine, setting.instances, setting.threads), ())
        if setting.max_batch <= len(ready):
            return np.asarray(ready[: setting.max_batch])
        return model.curve(setting.instances, setting.threads, setting.max_batch)

    def seconds(self, setting: Setting, rows: int) -> float:
        """Time of a batch of `rows` with these instances and threads busy."""
        return float(self.curve(replace(setting, max_batch=rows))[-1])

    def server(self, setting: Setting) -> Server:
        """The setting as a queue sees it."""
        return Server(self.curve(setting), setting.instances, setting.max_wait_ms / 1000.0)


def models(question: SearchQuestion, timings: Sequence[Timing]) -> Models:
    """Fit what was measured.

    Raises:
        ValueError: there is no time at all.
    """
    fitted = {}
    for engine in question.engines:
        if own := [one for one in timings if one.probe.engine == engine.engine and not one.failure]:
            fitted[engine.engine] = fit(own, question.cpus if engine.device == "cpu" else 4)
    if not fitted:
        raise ValueError("expected at least one measured time")
    single_s = min(
        model.seconds(instances, threads, engine.fixed_rows or 1)
        for engine in question.engines
        if (model := fitted.get(engine.engine)) is not None
        for instances, threads in pairs(question, engine)
        if instances == 1 or question.instances == instances
    )
    slo_s = question.slo_s or max(SHORTEST_OBJECTIVE_S, SLOWEST_TIMES_SINGLE * single_s)
    return Models(question, tuple(timings), fitted, slo_s, _curves(question, fitted))


def _curves(question: SearchQuestion, fitted: dict[str, LatencyModel]) -> dict[tuple[str, int, int], Floats]:
    """The whole curve of all workers that may be, made together: one by one they take most of the time of a search."""
    found: dict[tuple[str, int, int], Floats] = {}
    for engine in question.engines:
        if engine.engine in fitted and engine.fixed_rows is None:
            most = {pair: batches(question, engine, pair[0])[-1] for pair in pairs(question, engine)}
            for rows in set(most.values()):
                same = [pair for pair in most if most[pair] == rows]
                curves = fitted[engine.engine].curves(same, rows)
                found |= {(engine.engine, *pair): curve for pair, curve in zip(same, curves, strict=True)}
    return found


def rank(known: Models, samples: Sequence[int] = ONE) -> list[Rated]:
    """The best batch of each (engine, instances, threads), best first.

    Each is looked at roughly; only the most promising are replayed, and only these are returned, with the framework's
    default (one instance, all threads) always among them.
    """
    return sorted(_best_batches(known, [_thin(group) for group in _groups(known)], samples), key=lambda one: -one.rps)


def refined(known: Models, some: Sequence[Rated]) -> list[Rated]:
    """The same workers with the best of the batches near the one that was found among a few.

    Best on the whole: goodput as predicted, and if batches take a little longer than predicted. Where a full batch and
    the wait for it just fit the objective, goodput falls off a cliff behind that, and times are known to some percent.
    """
    groups = []
    for one in some:
        setting = one.setting
        engine = next(engine for engine in known.question.engines if engine.engine == setting.engine)
        sizes = _sizes(known, engine, setting.instances, setting.threads)
        near = [size for size in sizes if setting.max_batch / _NEAR <= size <= setting.max_batch * _NEAR]
        groups.append(_thin([replace(setting, max_batch=size) for size in near], _REFINED_BATCHES))
    flat = [known.server(setting) for group in groups for setting in group]
    slower = [Server(one.batch_s * _SLOWER, one.instances, one.max_wait_s) for one in flat]
    values = _values(known, [*flat, *slower], FOUR)
    as_told, sure = values[: len(flat)], (values[: len(flat)] + values[len(flat) :]) / 2
    found, start = [], 0
    for group in groups:
        own = slice(start, start + len(group))
        start += len(group)
        best = _best_of(known, group, sure[own].tolist())
        place = group.index(best.setting)
        found.append(replace(best, rps=float(as_told[own][place]), sure_rps=float(sure[own][place])))
    return found


def rate(known: Models, settings: Sequence[Setting], samples: Sequence[int] = ONE) -> list[Rated]:
    """The settings as they stand."""
    rates = _values(known, [known.server(setting) for setting in settings], samples)
    return [_rated(known, setting, float(rates[n])) for n, setting in enumerate(settings)]


def default_setting(known: Models) -> Setting:
    """One instance on all threads without batching: what a framework does by itself."""
    engine = next(one for one in known.question.engines if one.engine in known.by_engine)
    threads = max(threads for count, threads in pairs(known.question, engine) if count == 1 or known.question.instances)
    return Setting(engine.engine, known.question.instances or 1, threads, engine.fixed_rows or 1, device=engine.device)


def _groups(known: Models) -> list[list[Setting]]:
    """The promising batches of each promising (engine, instances, threads)."""
    found: list[tuple[float, list[Setting]]] = []
    for engine in known.question.engines:
        if engine.engine not in known.by_engine:
            continue
        for instances, threads in pairs(known.question, engine):
            sizes = _sizes(known, engine, instances, threads)
            settings = [Setting(engine.engine, instances, threads, size, device=engine.device) for size in sizes]
            full = known.curve(settings[-1])
            rough = _roughs(known, Server(full, instances), sizes)
            best, top = float(rough.max()), settings[int(rough.argmax())]
            hope = _scaled(known, top, full[: top.max_batch], -_HOPE)
            kept = [one for one, value in zip(settings, rough, strict=True) if value >= _WORTH_REPLAY * best]
            found.append((hope, kept))
    found.sort(key=lambda pair: -pair[0])
    first = default_setting(known)
    is_default = [(one[0].engine, one[0].instances, one[0].threads) for _, one in found]
    place = (first.engine, first.instances, first.threads)
    keep = [settings for _, settings in found[:_REPLAYED_PAIRS]]
    if place in is_default and is_default.index(place) >= _REPLAYED_PAIRS:
        keep.append(found[is_default.index(place)][1])
    return keep


def _best_batches(known: Models, groups: Sequence[list[Setting]], samples: Sequence[int]) -> list[Rated]:
    servers = [known.server(setting) for group in groups for setting in group]
    values = iter(_values(known, servers, samples).tolist())
    return [_best_of(known, group, [next(values) for _ in group]) for group in groups]


def _best_of(known: Models, group: Sequence[Setting], values: Sequence[float]) -> Rated:
    rated = [(float(value), setting) for value, setting in zip(values, group, strict=True)]
    if known.question.objective == "throughput":
        value, setting = _before_the_knee(rated)
    else:
        best = max(value for value, _ in rated)
        varies = any(one.variable for one in known.question.engines if one.engine == group[0].engine)
        gain = VARIABLE_BATCH_GAIN if varies else BATCH_GAIN
        value, setting = next(pair for pair in rated if pair[0] >= (1.0 - gain) * best)
    return _rated(known, setting, value)


def _before_the_knee(rated: list[tuple[float, Setting]]) -> tuple[float, Setting]:
    """The last batch that a doubling, or what a step is of one, led to with its gain."""
    chosen = rated[0]
    for one in rated[1:]:
        doublings = np.log2(one[1].max_batch / chosen[1].max_batch)
        if one[0] >= chosen[0] * (1.0 + DOUBLING_GAIN) ** doublings:
            chosen = one
    return chosen


def _thin(group: list[Setting], most: int = _REPLAYED_BATCHES) -> list[Setting]:
    """At most a few batches of a group, evenly over its range, the ends among them."""
    if len(group) <= most:
        return group
    return [group[int(n)] for n in np.unique(np.round(np.linspace(0, len(group) - 1, most)).astype(int))]


def _values(known: Models, servers: Sequence[Server], samples: Sequence[int]) -> Floats:
    question = known.question
    if question.objective == "throughput":
        return np.array([server.instances * len(server.batch_s) / server.batch_s[-1] for server in servers])
    return goodput_rps(servers, known.slo_s, question.quantile, samples)


def _roughs(known: Models, server: Server, sizes: Sequence[int]) -> Floats:
    """The rough estimate for each largest batch."""
    if known.question.objective == "throughput":
        return np.array([Server(server.batch_s[:size], server.instances).capacity_rps * STABLE_SHARE for size in sizes])
    return rough_goodputs_rps(server, sizes, known.slo_s, known.question.quantile)


def _rated(known: Models, setting: Setting, value: float) -> Rated:
    curve = known.curve(setting)
    # Under a tight objective a few percent of time are many of goodput, which the rough estimate knows as well.
    rough = max(1e-12, _scaled(known, setting, curve, 0.0))
    return Rated(
        setting=setting,
        rps=value,
        best_rps=value * max(1.0, _scaled(known, setting, curve, -_HOPE) / rough),
        sure_rps=value * min(1.0, _scaled(known, setting, curve, _CAUTION) / rough),
        batch_s=float(curve[-1]),
        measured=_measured(known, setting),
    )


def _scaled(known: Models, setting: Setting, curve: Floats, errors: float) -> float:
    """The rough estimate with times off by so many standard errors."""
    server = Server(curve * np.exp(errors * _doubt(known, setting)), setting.instances)
    return float(_roughs(known, server, [len(curve)])[0])


def _doubt(known: Models, setting: Setting) -> float:
    place = [np.array([float(one)]) for one in (setting.instances, setting.threads, setting.max_batch)]
    return float(known.by_engine[setting.engine].doubts(*place)[0])


def _measured(known: Models, setting: Setting) -> bool:
    return any(
        not one.failure
        and (one.probe.engine, one.probe.instances, one.probe.threads)
        == (setting.engine, setting.instances, setting.threads)
        and setting.max_batch / 1.3 <= one.probe.rows <= setting.max_batch * 1.3
        for one in known.timings
    )


def _sizes(known: Models, engine: EngineProfile, instances: int, threads: int) -> Sequence[int]:
    """The batches that did not fail. What is fixed stays, and something must: the worker reports what does not work."""
    sizes = batches(known.question, engine, instances)
    return [b for b in sizes if not _failed(known, engine, (instances, threads), b)] or sizes[:1]


def _failed(known: Models, engine: EngineProfile, pair: tuple[int, int], rows: int) -> bool:
    """Whether fewer rows on no more instances of no more threads had no time already."""
    return any(
        one.failure
        and one.probe.engine == engine.engine
        and one.probe.instances <= pair[0]
        and one.probe.threads <= pair[1]
        and one.probe.rows <= rows
        for one in known.timings
    )
