"""The Snapshot as Prometheus text.

Owns the mapping from Snapshot fields to the metrics of `metric_table`. A pure function of a Snapshot: whatever the
parent knows of a worker slot is in there, so there is one writer, totals never fall when a process dies, and its series
vanish with it. prometheus_client's own metric objects and its multiprocess mode are deliberately not used: they would
be a second owner of the same counts, and leave files of dead processes behind.
"""

import platform
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Final

from msgspec import Struct, structs
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from hybrid.telemetry.histogram import EDGES_S, OVERFLOW, PER_OCTAVE, Hist
from hybrid.telemetry.metric_table import METRICS, MetricSpec
from hybrid.telemetry.snapshot import Front, Host, Mem, Model, SizeClass, Snapshot, Worker

__all__ = ["CONTENT_TYPE", "METRICS", "BUCKET_INDICES", "render"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

#: Every octave of the fine edges: 0.1 ms, 0.2 ms ... 52.4 s. On the fine edges, so no count is guessed.
BUCKET_INDICES: Final[tuple[int, ...]] = tuple(range(0, OVERFLOW, PER_OCTAVE))

_BUCKET_NAMES: Final = (*(f"{EDGES_S[i]:.6g}" for i in BUCKET_INDICES), "+Inf")
_ROW_EDGES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_ROW_NAMES: Final = (*(str(edge) for edge in _ROW_EDGES), "+Inf")
_STAGES: Final = {
    "parse": "parse",
    "pre": "preprocess",
    "queue": "queue",
    "copy": "copy",
    "exec": "compute",
    "post": "post",
    "serialise": "serialise",
}


def render(snapshot: Snapshot) -> bytes:
    """Return the exposition text (`CONTENT_TYPE`) of a snapshot.

    Every metric of `METRICS` has its HELP and TYPE lines in every answer; samples whose value is not available are left
    out. Several versions of one model are added up where the version is no label.
    """
    samples = _Samples()
    _server(samples, snapshot)
    _front(samples, snapshot.front)
    _host(samples, snapshot.host)
    for model in snapshot.models:
        _model(samples, model)
    for worker in snapshot.workers:
        _worker(samples, worker)
    for mem in snapshot.memory:
        _memory(samples, mem)
    return generate_latest(_Families(samples))


class _Samples:
    """Values by metric and labels. Adding up here makes a duplicate series impossible; a scrape fails on one."""

    def __init__(self) -> None:
        self.values: dict[str, dict[tuple[str, ...], float]] = {m.name: {} for m in METRICS if m.kind != "histogram"}
        self.buckets: dict[str, dict[tuple[str, ...], tuple[list[int], float]]] = {
            m.name: {} for m in METRICS if m.kind == "histogram"
        }

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add to a counter or gauge; None is no sample."""
        if value is not None:
            series = self.values[name]
            series[labels] = series.get(labels, 0) + value

    def highest(self, name: str, value: float, *labels: str) -> None:
        """Keep the largest value of a gauge that cannot be added up."""
        series = self.values[name]
        series[labels] = max(series.get(labels, value), value)

    def histogram(self, name: str, counts: list[int], total: float, *labels: str) -> None:
        """Add a histogram; `counts` are per bucket, not cumulative."""
        series = self.buckets[name]
        if labels in series:
            before, before_total = series[labels]
            counts = [a + b for a, b in zip(before, counts, strict=True)]
            total += before_total
        series[labels] = (counts, total)

    def durations(self, name: str, hist: Hist, *labels: str) -> None:
        """Add a histogram of seconds, made coarse."""
        counts = [0] * len(_BUCKET_NAMES)
        for index, n in hist.buckets:
            counts[-(-index // PER_OCTAVE)] += n
        self.histogram(name, counts, hist.sum_s, *labels)


class _Families(Collector):
    """Hands the samples to prometheus_client in the order of `METRICS`."""

    def __init__(self, samples: _Samples) -> None:
        self._samples = samples

    def collect(self) -> Iterable[Metric]:
        """Yield one family per metric, empty ones too."""
        for spec in METRICS:
            if spec.kind == "histogram":
                yield self._histogram(spec)
                continue
            family = (CounterMetricFamily if spec.kind == "counter" else GaugeMetricFamily)(
                spec.name, spec.help, labels=spec.labels
            )
            for labels, value in self._samples.values[spec.name].items():
                family.add_metric(labels, value)
            yield family

    def _histogram(self, spec: MetricSpec) -> Metric:
        family = HistogramMetricFamily(spec.name, spec.help, labels=spec.labels)
        names = _ROW_NAMES if spec.name == "hybrid_batch_rows" else _BUCKET_NAMES
        for labels, (counts, total) in self._samples.buckets[spec.name].items():
            family.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), total)
        return family


def _server(samples: _Samples, snapshot: Snapshot) -> None:
    samples.add("hybrid_build_info", 1, snapshot.version, platform.python_version())
    samples.add("hybrid_ready", int(snapshot.state == "ready"))
    for entry in snapshot.replans:
        samples.add("hybrid_replans_total", entry.n, entry.outcome)


def _front(samples: _Samples, front: Front) -> None:
    http = front.http
    samples.add("hybrid_inflight_requests", front.inflight)
    samples.add("hybrid_connections", front.conns)
    samples.durations("hybrid_event_loop_lag_seconds", front.loop_lag)
    samples.add("hybrid_preprocess_items_total", front.pre_items_n)
    samples.add("hybrid_preprocess_rejected_total", front.pre_rejected_n)
    samples.add("hybrid_preprocess_late_total", front.pre_late_n)
    samples.add("hybrid_preprocess_downgraded_total", front.pre_downgraded_n)
    samples.add("hybrid_preprocess_busy_seconds_total", front.pre_busy_s)
    samples.add("hybrid_preprocess_cpu_seconds_total", front.pre_cpu_s)
    samples.add("hybrid_preprocess_cache_hits_total", front.pre_cache_hits_n)
    samples.add("hybrid_preprocess_cache_misses_total", front.pre_cache_misses_n)
    samples.add("hybrid_preprocess_cache_bytes", front.pre_cache_bytes)
    samples.add("hybrid_preprocess_queue_items", front.pre_queue)
    samples.add("hybrid_preprocess_workers", front.pre_threads)
    samples.add("hybrid_http_requests_total", http.requests_n)
    samples.add("hybrid_http_connections_total", http.accepted_n, "accepted")
    samples.add("hybrid_http_connections_total", http.refused_n, "refused")
    for entry in http.responses:
        samples.add("hybrid_http_responses_total", entry.n, str(entry.status))
    samples.add("hybrid_http_bodies_refused_total", http.refused_bodies_n)
    samples.add("hybrid_http_malformed_total", http.malformed_n)
    samples.add("hybrid_http_timeouts_total", http.timeouts_n)
    samples.add("hybrid_http_disconnects_total", http.disconnects_n)
    samples.add("hybrid_http_received_bytes_total", http.received_bytes_n)
    samples.add("hybrid_http_sent_bytes_total", http.sent_bytes_n)


def _host(samples: _Samples, host: Host) -> None:
    for core in host.cores:
        if core.ours:
            samples.add("hybrid_host_cpu_busy_ratio", core.busy, str(core.cpu))
    samples.add("hybrid_process_cpu_seconds_total", host.cpu_s)
    samples.add("hybrid_host_cpu_throttled_seconds_total", host.throttled_s)
    samples.add("hybrid_host_memory_limit_bytes", host.mem_limit)
    samples.add("hybrid_host_memory_used_bytes", host.mem_used)


def _model(samples: _Samples, model: Model) -> None:
    samples.highest("hybrid_model_ready", int(model.state == "ready"), model.name, model.version)
    for name, n in _counts(model.outcomes):
        samples.add("hybrid_requests_total", n, model.name, model.version, name)
    samples.durations("hybrid_request_duration_seconds", model.e2e, model.name)
    for field, stage in _STAGES.items():
        samples.durations("hybrid_stage_duration_seconds", getattr(model.stages, field), model.name, stage)
    samples.add("hybrid_worker_restarts_total", model.restarts_n, model.name)
    for end in model.worker_ends:
        samples.add("hybrid_worker_ends_total", end.n, model.name, end.cause)
    max_batch = model.in_force.max_batch if model.in_force else 0
    if max_batch:
        samples.highest("hybrid_batch_rows_limit", max_batch, model.name)
    if model.real_n:
        samples.highest("hybrid_padding_ratio", model.pad_n / (model.pad_n + model.real_n), model.name)
    for size_class in model.classes:
        _class(samples, model.name, size_class, max_batch)


def _class(samples: _Samples, model: str, size_class: SizeClass, max_batch: int) -> None:
    labels = (model, size_class.key)
    samples.add("hybrid_queue_rows", size_class.depth, *labels)
    samples.add("hybrid_queue_bytes", size_class.bytes, *labels)
    samples.highest("hybrid_queue_oldest_seconds", size_class.oldest_s or 0.0, *labels)
    for reason, n in _counts(size_class.released):
        samples.add("hybrid_batches_total", n, *labels, reason)
    samples.histogram("hybrid_batch_rows", _row_counts(size_class.sizes_n), size_class.items_n, *labels)
    if max_batch and size_class.batches_n:
        fill = size_class.items_n / (size_class.batches_n * max_batch)
        samples.highest("hybrid_batch_fill_ratio", fill, *labels)
    samples.add("hybrid_tokens_total", size_class.real_n, *labels)
    samples.add("hybrid_padding_tokens_total", size_class.pad_n, *labels)


def _worker(samples: _Samples, worker: Worker) -> None:
    samples.highest("hybrid_worker_up", int(worker.state in ("ready", "busy")), worker.model, worker.id)
    samples.add("hybrid_worker_busy_seconds_total", worker.busy_s, worker.model, worker.id)


def _memory(samples: _Samples, mem: Mem) -> None:
    if mem.signal == "rss":
        samples.add("hybrid_process_resident_memory_bytes", mem.now, mem.role, mem.owner)
    elif mem.role == "engine":
        samples.add("hybrid_engine_memory_bytes", mem.now, mem.owner, mem.signal)


def _row_counts(sizes_n: Sequence[int]) -> list[int]:
    counts = [0] * len(_ROW_NAMES)
    for i, n in enumerate(sizes_n):  # n batches of i + 1 rows; the edges are powers of two
        counts[min(i.bit_length(), len(_ROW_EDGES))] += n
    return counts


def _counts(counters: Struct) -> Iterable[tuple[str, int]]:
    """Yield (name, count) of a struct whose fields all end in `_n`."""
    for name, n in structs.asdict(counters).items():
        yield name.removesuffix("_n"), n
