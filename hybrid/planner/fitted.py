"""What was measured of a model, fitted: the times of every batch on every (instances, threads), and how sure they are.

Owns the bound on latency where the user set none. Knows no rule of what is good. Pure.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hybrid.planner.latency import Floats, LatencyModel, fit
from hybrid.planner.measures import Beside, EngineProfile, Setting, Timing
from hybrid.planner.queueing import Server
from hybrid.planner.space import SearchQuestion, batches, pairs

#: Without an objective of the user's: how much slower than one row alone the slowest in 100 may be, and always may be.
SLOWEST_TIMES_SINGLE: Final = 10.0
SHORTEST_OBJECTIVE_S: Final = 0.020
#: How much longer a batch is handed over where the server has no CPU for itself: each finds caches full of the other's.
#: (`minilm`, two CPUs, 2 x 1: 1.0 to 1.3 ms for batches of 1 to 4 rows; an MLP on 1 x 1 0.6 to 0.8 ms.)
_COLD_TURN: Final = 1.5
#: Of that the server's CPU time; the loop's where it is busy all the time, and its caches are warm.
_SERVER_SHARE: Final = 0.5
_LOOP_SHARE: Final = 0.25
#: What the slowest in 100 answers wait for CPUs that are all computing: each way into the server and out of it, and to
#: a worker and back, may wait for a slice of somebody else's, 1.4 to 3 ms. A judgement more than a measurement: an MLP
#: on two CPUs with its clients, at 2,000 to 4,000 rows/s, has a p99 of 8 to 14 ms above that of the replay on 2 x 1,
#: and of 5 to 9 ms on 1 x 1. No more than a share of the objective, and of what one row leaves of it: where no CPU can
#: be left, something must be planned all the same.
_HELD_UP_S: Final = 0.008
_HELD_UP_SHARE: Final = 0.3
#: A batch of about as many rows counts as this one measured.
_ALIKE: Final = 1.3


class Models(Struct, frozen=True):
    """A fitted model per engine that has times, its curves, and the bound on the latency of the slowest in 100."""

    question: SearchQuestion
    timings: tuple[Timing, ...]
    by_engine: dict[str, LatencyModel]
    slo_s: float
    curves: dict[tuple[str, int, int], Floats]
    beside: Beside = Beside()

    def engine(self, name: str) -> EngineProfile:
        """What is known of an engine."""
        return next(one for one in self.question.engines if one.engine == name)

    def curve(self, setting: Setting) -> Floats:
        """Times of batches of 1 to `max_batch` rows in this setting."""
        model = self.by_engine[setting.engine]
        fixed_rows = self.engine(setting.engine).fixed_rows
        if fixed_rows is not None:
            return np.full(setting.max_batch, model.seconds(setting.instances, setting.threads, fixed_rows))
        ready = self.curves.get((setting.engine, setting.instances, setting.threads), ())
        if setting.max_batch <= len(ready):
            return np.asarray(ready[: setting.max_batch])
        return model.curve(setting.instances, setting.threads, setting.max_batch)

    def doubts(self, setting: Setting) -> Floats:
        """Relative standard errors of `curve`."""
        rows = np.arange(1.0, setting.max_batch + 1)
        if (fixed_rows := self.engine(setting.engine).fixed_rows) is not None:
            rows = np.full_like(rows, fixed_rows)
        alike = np.full_like(rows, setting.instances), np.full_like(rows, setting.threads)
        return self.by_engine[setting.engine].doubts(*alike, rows)

    def seconds(self, setting: Setting, rows: int) -> float:
        """Time of a batch of `rows` with these instances and threads busy."""
        return float(self.curve(replace(setting, max_batch=rows))[-1])

    def server(self, setting: Setting, cpus: int | None = None) -> Server:
        """The setting as a queue sees it, with the share of the CPUs that requests take outside of the workers.

        `cpus` are those of the model, where they are others than in the question.
        """
        cpus = (self.question.cpus if cpus is None else cpus) + self.question.spare_cpus
        batch_s = self._beside_others_s(setting, cpus)
        held_up_s = 0.0
        if self.beside.cpu_s and _has_all(setting, cpus):
            held_up_s = max(0.0, min(_HELD_UP_S, _HELD_UP_SHARE * self.slo_s, self.slo_s - 2.0 * float(batch_s[0])))
        return Server(batch_s, setting.instances, setting.max_wait_ms / 1000.0, held_up_s)

    def turn_s(self, setting: Setting, cpus: int) -> float:
        """How long a worker waits for its next batch, where it is one of a model with `cpus` CPUs for everything.

        A device has been given its next batch before; a worker on CPUs would only take them from its own batch.
        """
        if setting.device != "cpu":
            return 0.0
        return self.beside.turn_s * (_COLD_TURN if _has_all(setting, cpus) else 1.0)

    def _beside_others_s(self, setting: Setting, cpus: int) -> Floats:
        """`curve` of workers that are busy all the time, where the CPUs do the rest of the work as well.

        While each of n workers runs b rows, the same `cpus` take in and answer n x b requests. That costs nothing while
        it fits onto CPUs that stay idle; the rest delays workers. A worker waits while its batch is handed over. What
        holds for busy workers is taken for all: only these decide what load is carried, and so the front end needs no
        queue of its own in the replay.
        """
        own_s = self.curve(setting)
        if not self.beside.cpu_s:
            return own_s
        workers, rows = setting.instances, np.arange(1.0, setting.max_batch + 1)
        # Neither can all CPUs together do it faster, nor the loop; a device of its own leaves all CPUs to it.
        batch_cpu_s, batch_loop_s = _SERVER_SHARE * self.beside.turn_s, _LOOP_SHARE * self.beside.turn_s
        least_s: Floats = workers * np.maximum(
            (batch_cpu_s + rows * self.beside.cpu_s) / cpus, batch_loop_s + rows * self.beside.loop_s
        )
        if setting.device == "cpu":
            lost = _lost(setting.threads)
            idle_cpus = max(0, cpus - workers * setting.threads)
            own_s = own_s + self.turn_s(setting, cpus)
            delayed_s = (own_s + lost * rows * self.beside.cpu_s) / (1.0 + lost * idle_cpus / workers)
            least_s = np.maximum(least_s, delayed_s)
        return np.maximum(own_s, least_s)

    def sizes(self, engine: EngineProfile, instances: int, threads: int) -> list[Setting]:
        """The same workers with each batch that may be and did not fail, rising.

        What is fixed stays, and something must: the worker reports what does not work.
        """
        sizes = batches(self.question, engine, instances)
        good = [rows for rows in sizes if not self._failed(engine, (instances, threads), rows)] or sizes[:1]
        return [Setting(engine.engine, instances, threads, rows, device=engine.device) for rows in good]

    def _failed(self, engine: EngineProfile, pair: tuple[int, int], rows: int) -> bool:
        """Whether fewer rows on no more instances of no more threads had no time already."""
        return any(
            one.failure
            and one.probe.engine == engine.engine
            and one.probe.instances <= pair[0]
            and one.probe.threads <= pair[1]
            and one.probe.rows <= rows
            for one in self.timings
        )

    def measured(self, setting: Setting) -> bool:
        """Whether a batch of about as many rows was timed on the same workers."""
        return any(
            not one.failure
            and (one.probe.engine, one.probe.instances, one.probe.threads)
            == (setting.engine, setting.instances, setting.threads)
            and setting.max_batch / _ALIKE <= one.probe.rows <= setting.max_batch * _ALIKE
            for one in self.timings
        )


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
    # Also of workers that somebody has ruled out: what is fixed must not move the objective.
    free = replace(question, instances=None, threads=None)
    single_s = min(
        model.seconds(1, threads, engine.fixed_rows or 1)
        for engine in question.engines
        if (model := fitted.get(engine.engine)) is not None
        for instances, threads in pairs(free, engine)
        if instances == 1
    )
    beside = _beside(question.engines)
    slo_s = question.slo_s or max(SHORTEST_OBJECTIVE_S, SLOWEST_TIMES_SINGLE * (single_s + beside.cpu_s))
    return Models(question, tuple(timings), fitted, slo_s, _curves(question, fitted), beside)


def _beside(engines: Sequence[EngineProfile]) -> Beside:
    """The mean: each is measured in a moment, and a difference between engines would be chance."""
    return Beside(*(fmean(getattr(one.beside, name) for one in engines) for name in Beside.__struct_fields__))


def _has_all(setting: Setting, cpus: int) -> bool:
    """Whether the workers leave no CPU to the server."""
    return setting.device == "cpu" and setting.instances * setting.threads >= cpus


def _lost(threads: int) -> float:
    """How much longer a worker takes for each second that other work has one of its CPUs.

    Its other threads wait for the one that is held up, as far as they cannot take over its work: half of it, about.
    (nsfw, two CPUs: 1 x 2 carries 0.90 of 2 x 1, whose batches by themselves are as fast; nothing and all would be
    1.0 and 0.83. For more threads it is a guess.)
    """
    return (1.0 + 1.0 / threads) / 2.0


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
