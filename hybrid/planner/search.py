"""Which times to measure next, and which setting to take: few questions, asked where they tell most. Pure.

Ask and tell: `next` says what to measure, `tell` takes the answers, `choice` is the best setting known so far. First
come seeds at the corners of the space; then the setting that is predicted best and those that could still be better are
measured themselves, until there are none. Measured times pull the model to them, so they win over predicted
ones. Knows no process and no clock.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hybrid.planner.fitted import Models, models
from hybrid.planner.latency import LatencyModel
from hybrid.planner.measures import EngineProfile, Probe, Setting, Timing
from hybrid.planner.queueing import replay
from hybrid.planner.ranking import FOUR, Rated, default_setting, rank, rate, refined
from hybrid.planner.space import SearchQuestion, batches, pairs, space, timings_of

_SEED_ROWS: Final = (1, 8, 32)
#: Where a tenth of the space is few times, two rows less at the corners pay for a lone worker, which none of them is.
_FEW_CPUS: Final = range(2, 4)
_FEW_SEED_ROWS: Final = (1, 8)
_LONE_SEED_ROWS: Final = (4,)
_DEVICE_SEED_ROWS: Final = (1, 8, 32, 128)
_SHARE_MEASURED: Final = 0.10
_FEWEST: Final = 7  # per engine: the seeds of two CPUs, and two to verify
_MOST: Final = 80
_WIDTH: Final = 3
#: Times near a setting after which more of them tell nothing new, and those that the best must have: the first of many
#: noisy times is too good to be true.
_OFTEN: Final = 16
_ENOUGH: Final = 12
_SIZES: Final = 2
_WORTH_ASKING: Final = 1.005
_HARDLY: Final = 0.2  # of what full batches carry
_ALTERNATIVES: Final = 5
_REFINED: Final = 6
_SMALL: Final = 3
_ABOUT: Final = 3
_WAIT_SHARE: Final = 0.5  # of the time of one row alone, which is the most that a wait may cost
_WORTH_WAITING: Final = 1.02
#: What more instances on one device must gain: each holds the weights once more, and how they take turns on it is less
#: certain than how long one runs.
INSTANCES_GAIN: Final = 0.04


class Choice(Struct, frozen=True):
    """The setting to take and what it was weighed against.

    `alternatives` are the best others, best first, `default` the framework's own way; `smaller` and `larger` are the
    same workers with half and twice the batch, `nearby` those with a little less and a little more, `waiting` the same
    setting with the longest wait that a device may have.
    `space` counts all settings, `measured` the times that were taken. `known` predicts any other setting.
    """

    setting: Setting
    rated: Rated
    alternatives: tuple[Rated, ...]
    default: Rated
    smaller: Rated | None
    larger: Rated | None
    nearby: tuple[Rated, ...]
    waiting: Rated | None
    space: int
    measured: int
    known: Models


class FixedBatch(Struct, frozen=True):
    """The fastest way to run a given number of rows at once: `rows_each` on each of `instances`."""

    instances: int
    threads: int
    rows_each: int
    seconds: float


class Search:
    """A search over the space of `question`; the timings that its engines bring count as measured."""

    def __init__(self, question: SearchQuestion) -> None:
        self._question = question
        self._timings = list(timings_of(question))
        self._count = len({timing.probe for timing in self._timings})  # what another question took again is free
        self._space = len(space(question))
        share = int(_SHARE_MEASURED * self._space)
        self._limit = max(_FEWEST * len(question.engines), min(share, _MOST))

    def next(self) -> tuple[Probe, ...]:
        """What to measure now, in an order that serves whoever runs it; empty when nothing more is worth it."""
        timed = {timing.probe.engine for timing in self._timings}
        new = [engine for engine in self._question.engines if engine.engine not in timed]
        seeds = [probe for engine in new for probe in _seeds(self._question, engine)]
        if seeds:  # at the beginning of all engines, later of one that was installed since
            self._limit = max(self._limit, self._count + len(seeds))
            return self._ask(seeds)
        if all(timing.failure for timing in self._timings):
            return ()
        return self._ask(self._wanted())

    def tell(self, timings: Sequence[Timing]) -> None:
        """Take in answers; those that nobody asked for count as well."""
        self._timings.extend(timings)

    def choice(self) -> Choice:
        """The best setting by what is known.

        Raises:
            ValueError: nothing has been measured.
        """
        return choose(self._question, self._timings)

    def _ask(self, probes: Sequence[Probe]) -> tuple[Probe, ...]:
        asked = tuple(probes[: max(0, self._limit - self._count)])
        self._count += len(asked)
        return asked

    def _wanted(self) -> list[Probe]:
        """Times of the best and of those that may be better, until there are none or each was timed often enough."""
        if self._count >= self._limit:
            return []
        known = models(self._question, self._timings)
        ranked = rank(known)
        best = ranked[0]
        if best.rps < _HARDLY * known.server(best.setting).capacity_rps and (rows := self._fastest_rows(known)):
            return rows
        hopeful = sorted(ranked, key=lambda one: -one.best_rps)
        worth = [one.hope for one in hopeful if one.best_rps > _WORTH_ASKING * best.rps]
        if set(worth) <= {best.setting} and self._times_told(best.setting) >= _ENOUGH:
            return []
        doubtful = [one for one in dict.fromkeys((best.setting, *worth)) if self._times_told(one) < _OFTEN]
        return [probe for one in doubtful[:_WIDTH] for probe in self._probes(one)]

    def _fastest_rows(self, known: Models) -> list[Probe]:
        """The smallest batch on the lone workers that are predicted to run it fastest, where that was not timed yet.

        Under an objective that hardly anything holds, what matters is who is fast at all. The model may be off by
        factors there, more than it doubts, and what it takes for hopeless is not asked for by any other rule.
        """
        lone = [
            Setting(engine.engine, 1, threads, batches(self._question, engine, 1)[0], device=engine.device)
            for engine in self._question.engines
            if engine.engine in known.by_engine
            for instances, threads in pairs(self._question, engine)
            if instances == 1
        ]
        fastest = sorted(lone, key=lambda one: known.seconds(one, one.max_batch))[:_WIDTH]
        return [_probe(one) for one in fastest if one.max_batch not in self._rows_told(one)]

    def _times_told(self, setting: Setting) -> int:
        """How many times are known of batches about as large, on the same workers."""
        near = range(setting.max_batch // _ABOUT, _ABOUT * setting.max_batch + 1)
        return sum(rows in near for rows in self._rows_told(setting))

    def _rows_told(self, setting: Setting) -> list[int]:
        place = replace(_probe(setting), rows=0)
        return [one.probe.rows for one in self._timings if replace(one.probe, rows=0) == place]

    def _probes(self, setting: Setting) -> list[Probe]:
        """Its full batch; once such a one is known, the sizes around it that were timed least.

        Other sizes tell as much as the same one again, and more of the curve; where the model takes others at all.
        """
        engine = next(one for one in self._question.engines if one.engine == setting.engine)
        if engine.fixed_rows is not None:
            return [_probe(setting)]
        most = batches(self._question, engine, setting.instances)[-1]
        told = self._rows_told(setting)
        sizes = sorted((rows for rows in _around(setting.max_batch) if rows <= most), key=told.count)
        chosen = sizes[:_SIZES] if self._times_told(setting) else [setting.max_batch]
        return [_probe(replace(setting, max_batch=rows)) for rows in chosen]


def _around(rows: int) -> tuple[int, ...]:
    """Row counts that tell how a setting does: its full batch and a common one; if it is small, whether more pay."""
    common = 2 * rows + 1 if rows <= _SMALL else -(-rows // 2)
    return tuple(dict.fromkeys((rows, common, rows + 1, max(1, rows - 1), common + 1, common - 1)))


def choose(question: SearchQuestion, timings: Sequence[Timing]) -> Choice:
    """The best setting of `question` by these timings, which may have been taken for a larger share of CPUs.

    Raises:
        ValueError: there is no time at all.
    """
    known = models(question, timings)
    ranked = sorted(rank(known), key=lambda one: -one.sure_rps)[:_REFINED]
    top = sorted(refined(known, ranked), key=_sure_rps, reverse=True)
    # What is shown and compared was replayed with the same arrivals.
    found = _with_latencies(known, rate(known, [default_setting(known), *(one.setting for one in top)], FOUR))
    default, best = found[0], found[1]
    if default.rps > best.rps:  # never worse than what a framework does by itself
        best = default
    rest = tuple(one for one in found[1:] if one.setting != best.setting)[:_ALTERNATIVES]
    beside = _beside(known, best)
    waiting = beside.get("waiting")
    if waiting is not None and waiting.rps > _WORTH_WAITING * best.rps:
        (best,), waiting = _with_latencies(known, [waiting]), best
    return Choice(
        setting=best.setting,
        rated=best,
        alternatives=rest,
        default=default,
        smaller=beside.get("smaller"),
        larger=beside.get("larger"),
        nearby=tuple(beside[key] for key in ("below", "above") if key in beside),
        waiting=waiting,
        space=len(space(question)),
        measured=len(timings),
        known=known,
    )


def _sure_rps(one: Rated) -> float:
    several = one.setting.device != "cpu" and one.setting.instances > 1
    return one.sure_rps * (1.0 - INSTANCES_GAIN if several else 1.0)


def _beside(known: Models, best: Rated) -> dict[str, Rated]:
    """The same workers with half the batch, with twice, with the next ones between, and with a wait; as far as any."""
    setting = best.setting
    engine = next(one for one in known.question.engines if one.engine == setting.engine)
    allowed = batches(known.question, engine, setting.instances)
    half = max((size for size in allowed if size <= setting.max_batch // 2), default=None)
    double = min((size for size in allowed if size >= setting.max_batch * 2), default=None)
    wait_s = min(_WAIT_SHARE * known.seconds(setting, 1), max(0.0, known.slo_s - best.p99_s))
    wait = setting.device != "cpu" and known.question.objective == "latency" and wait_s > 0 and setting.max_batch > 1
    sizes = {
        "smaller": half,
        "below": max((size for size in allowed if (half or 0) < size < setting.max_batch), default=None),
        "above": min((size for size in allowed if setting.max_batch < size < (double or np.inf)), default=None),
        "larger": double,
    }
    wanted = {key: replace(setting, max_batch=size) for key, size in sizes.items() if size}
    if wait:
        wanted["waiting"] = replace(setting, max_wait_ms=round(wait_s * 1000, 2))
    there = list(wanted.values())
    return dict(zip(wanted, rate(known, there, FOUR) if there else (), strict=True))


def _with_latencies(known: Models, some: Sequence[Rated]) -> list[Rated]:
    """With the latencies at the rate that each carries; at nine tenths of it where that is the most there is."""
    share = 1.0 if known.question.objective == "latency" else 0.9
    rates = np.array([max(1e-9, share * one.rps) for one in some])
    found = replay([known.server(one.setting) for one in some], rates)
    return [replace(one, p50_s=float(found.p50_s[n]), p99_s=float(found.tail_s[n])) for n, one in enumerate(some)]


def fixed_batch(model: LatencyModel, rows: int) -> FixedBatch:
    """Split `rows` over instances so that the last part ends soonest; CPUs may stay idle."""
    cpus = model.cpus
    ways = [
        (instances, threads, -(-rows // instances))
        for instances in range(1, min(cpus, rows) + 1)
        if instances == 1 or -(-rows // instances) < -(-rows // (instances - 1))  # one more must shorten the parts
        for threads in range(1, cpus // instances + 1)
    ]
    table = np.array(ways, dtype=np.float64).T
    times = model.times(table[0], table[1], table[2])
    fastest = int(times.argmin())
    return FixedBatch(*ways[fastest], seconds=float(times[fastest]))


def _probe(setting: Setting) -> Probe:
    return Probe(setting.engine, setting.instances, setting.threads, setting.max_batch, device=setting.device)


def _seeds(question: SearchQuestion, engine: EngineProfile) -> Iterator[Probe]:
    """The corners of the space: many workers and one worker on all threads, one row and many."""
    allowed = pairs(question, engine)
    widest = max(allowed, key=lambda pair: (pair[0] * pair[1], pair[0]))
    fattest = max(allowed, key=lambda pair: (pair[0] * pair[1], pair[1]))
    few = engine.device == "cpu" and question.cpus in _FEW_CPUS and question.objective == "latency"
    wanted = _DEVICE_SEED_ROWS if engine.device != "cpu" else _FEW_SEED_ROWS if few else _SEED_ROWS
    corners: list[tuple[tuple[int, int], Sequence[int]]] = [(widest, wanted), (fattest, wanted)]
    if engine.device != "cpu":
        corners = [(allowed[0], wanted), *[(pair, (8, 32)) for pair in allowed[1:2]]]
    elif few:
        corners.append(((1, 1), _LONE_SEED_ROWS))
    elif question.cpus >= 4:
        middle = min(allowed, key=lambda pair: (abs(np.log(pair[0] / pair[1])) - np.log(pair[0] * pair[1]), pair))
        corners += [((1, 1), (1, 8)), (middle, (8,))]
    seen = set()
    for (instances, threads), sizes in corners:
        if (instances, threads) not in allowed:
            continue
        limits = batches(question, engine, instances)
        for size in sizes:
            rows = max((limit for limit in limits if limit <= size), default=limits[0])
            if (instances, threads, rows) not in seen:
                seen.add((instances, threads, rows))
                yield Probe(engine.engine, instances, threads, rows, device=engine.device)
