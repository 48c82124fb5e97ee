"""Every setting of the space, predicted and put in order; the best batch of each (instances, threads). Pure.

Owns the rules of the two objectives. What has not been measured is told by the model, and says so by its doubt.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hybrid.planner.fitted import Models
from hybrid.planner.latency import Floats
from hybrid.planner.measures import Setting
from hybrid.planner.queueing import STABLE_SHARE, Server, goodput_rps, rough_goodputs_rps
from hybrid.planner.space import pairs

#: A larger batch must gain this much, or the smaller one is taken: it answers sooner and is kinder to neighbours.
BATCH_GAIN: Final = 0.01
#: The same where rows vary in length: it was measured at one length, and a batch costs what its longest row does. (On
#: 2 x 1 workers batches of 4 to 32 texts carry the same within the noise: bench/results/brute_minilm.json.)
VARIABLE_BATCH_GAIN: Final = 0.02
#: For throughput, what a doubling of the batch must gain.
DOUBLING_GAIN: Final = 0.05
#: Standard errors by which an unmeasured setting may be better than predicted, and by which one should count as worse.
_HOPE: Final = 2.0
_CAUTION: Final = 0.5
#: Standard errors by which the times of what may be chosen may be off. More of them for the worse than for the better:
#: what looks best of many is mostly what was measured too fast.
_ERRORS: Final = (-0.8, 0.0, 0.8, 1.6)
_REPLAYED_PAIRS: Final = 12
_REPLAYED_BATCHES: Final = 8
_REFINED_BATCHES: Final = 7
_WORTH_REPLAY: Final = 0.45
_NEAR: Final = 1.8
#: Samples of arrivals to replay: one while searching, two with each of several errors, four for what is shown.
ONE: Final = (0,)
_TWO: Final = (0, 1)
FOUR: Final = (0, 1, 2, 3)


class Rated(Struct, frozen=True):
    """A setting with what it is predicted to carry: rows per second of goodput, or at most for throughput.

    `best_rps` is what its workers would carry with the batch of `hope` if the predicted times were too long, `sure_rps`
    if they were too short; after `refined` it is the mean over several errors. `batch_s` is the time of a full batch,
    `measured` whether one of about as many rows was timed. `p50_s` and `p99_s` are latencies at `rps`; nan where nobody
    asked.
    """

    setting: Setting
    rps: float
    best_rps: float
    hope: Setting
    sure_rps: float
    batch_s: float
    measured: bool
    p50_s: float = float("nan")
    p99_s: float = float("nan")


def rank(known: Models) -> list[Rated]:
    """The best batch of each (engine, instances, threads), best first.

    Each is looked at roughly; only the most promising are replayed, and only these are returned, with the framework's
    default (one instance, all threads) always among them.
    """
    groups = [_thin(group, _REPLAYED_BATCHES) for group in _groups(known)]
    values = iter(_values(known, [known.server(one) for group in groups for one in group], ONE).tolist())
    return sorted((_best_of(known, group, [next(values) for _ in group]) for group in groups), key=lambda one: -one.rps)


def refined(known: Models, some: Sequence[Rated]) -> list[Rated]:
    """The same workers with the best of the batches near the one that was found among a few.

    Best in the mean of several errors of the times. Where a full batch and the wait for it just fit the objective,
    goodput falls off a cliff behind that, and times are known to some percent.
    """
    groups = []
    for one in some:
        setting = one.setting
        sizes = known.sizes(known.engine(setting.engine), setting.instances, setting.threads)
        near = [size for size in sizes if 1 / _NEAR <= size.max_batch / setting.max_batch <= _NEAR]
        groups.append(_thin([replace(setting, max_batch=size.max_batch) for size in near], _REFINED_BATCHES))
    flat = [setting for group in groups for setting in group]
    servers = [_off_by(known, setting, errors) for setting in flat for errors in _ERRORS]
    values = _values(known, servers, _TWO).reshape(len(flat), len(_ERRORS))
    as_told, sure = values[:, _ERRORS.index(0.0)], values.mean(axis=1)
    found, start = [], 0
    for group in groups:
        own = slice(start, start + len(group))
        start += len(group)
        best = _best_of(known, group, sure[own].tolist())
        place = group.index(best.setting)
        found.append(replace(best, rps=float(as_told[own][place]), sure_rps=float(sure[own][place])))
    return found


def rate(known: Models, settings: Sequence[Setting], samples: Sequence[int]) -> list[Rated]:
    """The settings as they stand."""
    rates = _values(known, [known.server(setting) for setting in settings], samples)
    return [_rated(known, setting, float(rates[n])) for n, setting in enumerate(settings)]


def default_setting(known: Models) -> Setting:
    """One instance on all threads without batching: what a framework does by itself."""
    engine = next(one for one in known.question.engines if one.engine in known.by_engine)
    threads = max(threads for count, threads in pairs(known.question, engine) if count == 1 or known.question.instances)
    rows = engine.fixed_rows or (1 if engine.batching_fault else known.question.max_batch or 1)
    return Setting(engine.engine, known.question.instances or 1, threads, rows, device=engine.device)


def _groups(known: Models) -> list[list[Setting]]:
    """The promising batches of each promising (engine, instances, threads)."""
    found: list[tuple[float, list[Setting]]] = []
    for engine in known.question.engines:
        if engine.engine not in known.by_engine:
            continue
        for instances, threads in pairs(known.question, engine):
            settings = known.sizes(engine, instances, threads)
            rough = _roughs(known, known.server(settings[-1]), settings)
            kept = [one for one, value in zip(settings, rough, strict=True) if value >= _WORTH_REPLAY * rough.max()]
            found.append((float(_hopes(known, settings).max()), kept))
    found.sort(key=lambda pair: -pair[0])
    first = default_setting(known)
    is_default = [(one[0].engine, one[0].instances, one[0].threads) for _, one in found]
    place = (first.engine, first.instances, first.threads)
    keep = [settings for _, settings in found[:_REPLAYED_PAIRS]]
    if place in is_default and is_default.index(place) >= _REPLAYED_PAIRS:
        keep.append(found[is_default.index(place)][1])
    return keep


def _best_of(known: Models, group: Sequence[Setting], values: Sequence[float]) -> Rated:
    place = _picked(known, group, values)
    return _rated(known, group[place], values[place])


def _picked(known: Models, group: Sequence[Setting], values: Sequence[float]) -> int:
    """Which of the batches of the same workers to take, by what each carries."""
    if known.question.objective == "throughput":
        return _before_the_knee([setting.max_batch for setting in group], values)
    gain = VARIABLE_BATCH_GAIN if known.engine(group[0].engine).variable else BATCH_GAIN
    return next(place for place, value in enumerate(values) if value >= (1.0 - gain) * max(values))


def _before_the_knee(sizes: Sequence[int], values: Sequence[float]) -> int:
    """The last batch that a doubling, or what a step is of one, led to with its gain."""
    chosen = 0
    for place in range(1, len(sizes)):
        doublings = np.log2(sizes[place] / sizes[chosen])
        if values[place] >= values[chosen] * (1.0 + DOUBLING_GAIN) ** doublings:
            chosen = place
    return chosen


def _thin(group: list[Setting], most: int) -> list[Setting]:
    """At most a few batches of a group, the ends among them; each so many times the last, for so goodput changes."""
    rows = np.array([setting.max_batch for setting in group], dtype=np.float64)
    wanted = np.geomspace(rows[0], rows[-1], most)
    places = {int(np.abs(np.log(rows / one)).argmin()) for one in wanted}
    others = (place for place in range(len(group)) if place not in places)
    places |= {place for _, place in zip(range(most - len(places)), others, strict=False)}  # where small ones coincide
    return [group[place] for place in sorted(places)]


def _values(known: Models, servers: Sequence[Server], samples: Sequence[int]) -> Floats:
    question = known.question
    if question.objective == "throughput":
        return np.array([server.instances * len(server.batch_s) / server.batch_s[-1] for server in servers])
    return goodput_rps(servers, known.slo_s, question.quantile, samples)


def _roughs(known: Models, server: Server, settings: Sequence[Setting]) -> Floats:
    """The rough estimate for the largest batch of each of these settings, which are alike but for that."""
    sizes = [setting.max_batch for setting in settings]
    if known.question.objective == "throughput":
        return np.array([Server(server.batch_s[:size], server.instances).capacity_rps * STABLE_SHARE for size in sizes])
    return rough_goodputs_rps(server, sizes, known.slo_s, known.question.quantile)


def _rated(known: Models, setting: Setting, value: float) -> Rated:
    # Under a tight objective a few percent of time are many of goodput, which the rough estimate knows as well.
    told, worse = (float(_roughs(known, _off_by(known, setting, z), [setting])[0]) for z in (0.0, _CAUTION))
    settings = known.sizes(known.engine(setting.engine), setting.instances, setting.threads)
    hopes, most = _hopes(known, settings), float(_roughs(known, known.server(settings[-1]), settings).max())
    best = float(hopes.max()) * (value / most if most > 0.0 else 1.0)
    hope = settings[_picked(known, settings, hopes.tolist())].max_batch if best > value else setting.max_batch
    return Rated(
        setting=setting,
        rps=value,
        best_rps=max(value, best),
        hope=replace(setting, max_batch=hope),
        sure_rps=value * min(1.0, worse / told) if told > 0.0 else value,
        batch_s=float(known.curve(setting)[-1]),
        measured=known.measured(setting),
    )


def _hopes(known: Models, settings: Sequence[Setting]) -> Floats:
    """What each batch of the same workers would roughly carry if times were wrong for the better.

    All batches, not only what seems best: another one may be that, because goodput has cliffs.
    """
    return _roughs(known, _off_by(known, settings[-1], -_HOPE), settings)


def _off_by(known: Models, setting: Setting, errors: float) -> Server:
    """The setting with times off by so many standard errors; still none is longer than that of more rows."""
    told = known.server(setting)
    off = told.batch_s * np.exp(errors * known.doubts(setting))
    return replace(told, batch_s=np.minimum.accumulate(off[::-1])[::-1])
