"""How a model performs as it is: alone, then with 1 to 16 clients, and what limits it.

Owns the order of the measurements and their result. Must never know how it is printed or who asked.
"""

from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from hybrid.errors import StartupError
from hybrid.load.arrivals import Closed
from hybrid.load.bottleneck import BatchTime, Verdict, Window, judge
from hybrid.load.many import run
from hybrid.load.observed import max_batch, window, worker_busy_s
from hybrid.load.payloads import ModelMetadata, PayloadSettings, for_model
from hybrid.load.report import LoadResult
from hybrid.load.spec import LoadSpec
from hybrid.load.target import Target
from hybrid.telemetry.snapshot import Snapshot

CONCURRENCY: Final = (1, 2, 4, 8, 16)
BATCHES: Final = (1, 2, 4, 8, 16)
_SINGLE_N: Final = 100
_SINGLE_S: Final = 3.0
_WARM_S: Final = 0.3
_BATCH_N: Final = 15
_BATCH_S: Final = 0.8
_DRAIN_S: Final = 1.5
#: Steps of a baseline, for a progress bar.
STEPS: Final = 2 + len(BATCHES) + len(CONCURRENCY)


class Level(Struct, frozen=True):
    """One number of clients: what they saw, and what the server did (None where it does not tell)."""

    concurrency: int
    result: LoadResult
    window: Window | None


class Baseline(Struct, frozen=True):
    """Everything that was measured of one model, and what follows."""

    model: str
    single: LoadResult
    levels: tuple[Level, ...]
    times: tuple[BatchTime, ...]
    verdict: Verdict


class Prober:
    """Measures one model on one server. `step` is called with what begins, `STEPS` times."""

    def __init__(
        self, target: Target, model: str, settings: PayloadSettings, seconds: float, step: Callable[[str], None]
    ) -> None:
        self._target = target
        self._model = model
        self._settings = settings
        self._seconds = seconds
        self._step = step

    def measure(self) -> Baseline:
        """Measure everything, in about 5 * `seconds` + 10 s.

        Raises:
            StartupError: the server does not answer, or answers no request with success.
            ConfigError: nothing can be made up for the model's inputs.
        """
        metadata = self._target.metadata(self._model)
        spec = LoadSpec(
            url=self._target.infer_url(self._model),
            payloads=for_model(metadata, self._settings),
            arrivals=Closed(1),
            seconds=_SINGLE_S,
            drain_s=_DRAIN_S,
        )
        self._step("warming up")
        warm = run(replace(spec, seconds=_WARM_S, drain_s=30.0))
        if not warm.ok_n:
            raise StartupError(f"{self._model} answered no request: {warm.first_error or 'nothing came'}")
        self._step("single requests")
        single = run(replace(spec, max_requests=_SINGLE_N, drain_s=30.0))
        snapshot = self._target.snapshot()
        largest = max_batch(snapshot, self._model) if snapshot is not None else 1
        times = self._batch_times(spec, metadata, largest)
        levels = tuple(self._level(spec, concurrency) for concurrency in CONCURRENCY)
        best = max(levels, key=lambda level: level.result.rps)
        nothing = Window(seconds=self._seconds, requests_n=0, stations=())
        verdict = judge(best.window or nothing, times, largest)
        return Baseline(self._model, single, levels, times, verdict)

    def _batch_times(self, spec: LoadSpec, metadata: ModelMetadata, largest: int) -> tuple[BatchTime, ...]:
        """Time batches one by one, as requests of several rows: under load their times would be those of a crowd.

        All rows have one length, or the line over the rows would carry the noise of the lengths.
        """
        times = []
        lengths = sorted(self._settings.lengths)
        alike = replace(self._settings, count=_BATCH_N, lengths=(lengths[len(lengths) // 2],))
        for rows in BATCHES:
            self._step(f"batches of {rows}")
            if rows > largest:
                continue
            payloads = for_model(metadata, replace(alike, rows=rows))
            one = replace(spec, payloads=payloads, seconds=_BATCH_S, max_requests=_BATCH_N)
            _, before, after = self._watched(one)
            if before is None or after is None:
                continue
            seen = window(before, after, self._model, None)
            if seen is None or not seen.batches_n:
                continue
            busy_s = worker_busy_s(after, self._model) - worker_busy_s(before, self._model)
            times.append(BatchTime(seen.rows_n / seen.batches_n, busy_s / seen.batches_n))
        return tuple(times)

    def _level(self, spec: LoadSpec, concurrency: int) -> Level:
        self._step(f"{concurrency} clients")
        cpu_s = self._target.front_cpu_s()
        spec = replace(spec, arrivals=Closed(concurrency), seconds=self._seconds)
        result, before, after = self._watched(spec)
        now_s = self._target.front_cpu_s()
        front_s = now_s - cpu_s if cpu_s is not None and now_s is not None else None
        seen = window(before, after, self._model, front_s) if before is not None and after is not None else None
        return Level(concurrency, result, seen)

    def _watched(self, spec: LoadSpec) -> tuple[LoadResult, Snapshot | None, Snapshot | None]:
        before = self._target.snapshot()
        result = run(spec)
        return result, before, self._target.snapshot()


def baseline_json(baseline: Baseline) -> dict[str, Any]:
    """Return it with the fixed keys of `hybrid baseline --json`, and some more; null is not known."""
    verdict = baseline.verdict
    return {
        "model": baseline.model,
        "single": {
            "p50_ms": _ms(baseline.single.latency_at(0.5)),
            "p95_ms": _ms(baseline.single.latency_at(0.95)),
            "runs": baseline.single.ok_n,
        },
        "concurrency": [level_json(level) for level in baseline.levels],
        "bottleneck": verdict.bottleneck,
        "batching_helps": verdict.batching_helps,
        "advice": verdict.advice,
        "utilisation": verdict.utilisation,
        "limit_rps": verdict.limit_rps,
        "batching_gain": verdict.gain,
        "batch_times": [{"rows": point.rows, "ms": _ms(point.seconds)} for point in baseline.times],
    }


def level_json(level: Level) -> dict[str, Any]:
    """Return one number of clients as JSON; `cpus` is how many CPUs the server kept busy."""
    result, seen = level.result, level.window
    return {
        "concurrency": level.concurrency,
        "rps": round(result.rps, 3),
        "p50_ms": _ms(result.latency_at(0.5)),
        "p95_ms": _ms(result.latency_at(0.95)),
        "p99_ms": _ms(result.latency_at(0.99)),
        "errors": result.errors_n,
        "cpus": seen.cpu_s / seen.seconds if seen is not None and seen.cpu_s is not None else None,
        "mean_batch": seen.mean_batch if seen is not None else None,
        "memory_bytes": seen.memory_bytes if seen is not None else None,
        "utilisation": {s.name: seen.utilisation(s) for s in seen.stations} if seen is not None else {},
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 3)
