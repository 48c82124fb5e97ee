"""Names, types, labels and help of every metric, as data.

A table so that tests can hold it against the README, and so that a name cannot vanish unnoticed. Label values are
names of models, size classes and worker slots and fixed words; never a path, a request id or a pid.
"""

from typing import Final, Literal

from msgspec import Struct


class MetricSpec(Struct, frozen=True):
    """One metric: its exposed name (counters with `_total`), type, label names and help text."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


_M: Final = ("model",)
_MC: Final = ("model", "class")
_MW: Final = ("model", "worker")
_RW: Final = ("role", "worker")

METRICS: Final[tuple[MetricSpec, ...]] = (
    MetricSpec("hybrid_build_info", "gauge", ("version", "python"), "Always 1; version of hybrid and of Python."),
    MetricSpec("hybrid_ready", "gauge", (), "1 when the server accepts work with warmed workers, else 0."),
    MetricSpec("hybrid_model_ready", "gauge", ("model", "version"), "1 when this version of the model is ready."),
    MetricSpec(
        "hybrid_requests_total",
        "counter",
        ("model", "version", "outcome"),
        "Requests by outcome: ok, bad_input, queue_full, late, cancelled, left, failed.",
    ),
    MetricSpec(
        "hybrid_request_duration_seconds",
        "histogram",
        _M,
        "First byte of a request to its answer, waits included.",
    ),
    MetricSpec(
        "hybrid_stage_duration_seconds",
        "histogram",
        ("model", "stage"),
        "Time per stage: parse, preprocess, queue, copy, compute, post, serialise.",
    ),
    MetricSpec("hybrid_inflight_requests", "gauge", (), "Requests inside the server, waiting or executing."),
    MetricSpec("hybrid_queue_rows", "gauge", _MC, "Rows that wait for a batch."),
    MetricSpec("hybrid_queue_bytes", "gauge", _MC, "Payload bytes that wait for a batch."),
    MetricSpec("hybrid_queue_oldest_seconds", "gauge", _MC, "Wait of the oldest request in the queue; 0 when empty."),
    MetricSpec("hybrid_batches_total", "counter", ("model", "class", "reason"), "Batches by the reason of release."),
    MetricSpec("hybrid_batch_rows", "histogram", _MC, "Rows per batch."),
    MetricSpec("hybrid_batch_rows_limit", "gauge", _M, "Largest batch in rows that the settings in force allow."),
    MetricSpec("hybrid_batch_fill_ratio", "gauge", _MC, "Mean rows per batch since start / batch limit."),
    MetricSpec("hybrid_tokens_total", "counter", _MC, "True tokens (or pixels) computed, padding left out."),
    MetricSpec("hybrid_padding_tokens_total", "counter", _MC, "Padding tokens (or pixels) computed for nothing."),
    MetricSpec("hybrid_padding_ratio", "gauge", _M, "Padding / all tokens (or pixels) computed since start."),
    MetricSpec("hybrid_worker_up", "gauge", _MW, "1 when the process in this worker slot takes batches, else 0."),
    MetricSpec("hybrid_worker_restarts_total", "counter", _M, "Worker processes started again after an end."),
    MetricSpec("hybrid_worker_ends_total", "counter", ("model", "cause"), "Worker processes ended, by cause."),
    MetricSpec(
        "hybrid_replans_total",
        "counter",
        ("outcome",),
        "Re-plans at run time by what came of them: unchanged, batcher, workers, refused, failed.",
    ),
    MetricSpec("hybrid_worker_busy_seconds_total", "counter", _MW, "Seconds this worker slot spent executing batches."),
    MetricSpec("hybrid_process_resident_memory_bytes", "gauge", _RW, "Resident memory of one process of the server."),
    MetricSpec("hybrid_engine_memory_bytes", "gauge", ("worker", "kind"), "Memory by the engine's own account."),
    MetricSpec("hybrid_process_cpu_seconds_total", "counter", (), "CPU seconds of all processes, ended ones included."),
    MetricSpec("hybrid_preprocess_items_total", "counter", (), "Items preprocessed (texts, images)."),
    MetricSpec("hybrid_preprocess_rejected_total", "counter", (), "Items that preprocessing refused."),
    MetricSpec("hybrid_preprocess_late_total", "counter", (), "Items refused over their time limit."),
    MetricSpec("hybrid_preprocess_downgraded_total", "counter", (), "Items over it that were made at less cost."),
    MetricSpec("hybrid_preprocess_busy_seconds_total", "counter", (), "Seconds the preprocess pool spent working."),
    MetricSpec("hybrid_preprocess_cpu_seconds_total", "counter", (), "CPU seconds of its processes, ended ones too."),
    MetricSpec("hybrid_preprocess_cache_hits_total", "counter", (), "Items whose result was in the cache."),
    MetricSpec("hybrid_preprocess_cache_misses_total", "counter", (), "Items whose result was not in the cache."),
    MetricSpec("hybrid_preprocess_cache_bytes", "gauge", (), "Memory that cached results take, keys included."),
    MetricSpec("hybrid_preprocess_queue_items", "gauge", (), "Items that wait for the preprocess pool."),
    MetricSpec("hybrid_preprocess_workers", "gauge", (), "Processes of the preprocess pool."),
    MetricSpec("hybrid_connections", "gauge", (), "Open client connections."),
    MetricSpec("hybrid_http_requests_total", "counter", (), "HTTP requests of any kind, probes and scrapes included."),
    MetricSpec("hybrid_http_connections_total", "counter", ("result",), "Connections accepted or refused."),
    MetricSpec("hybrid_http_bodies_refused_total", "counter", (), "Bodies refused because too many are held."),
    MetricSpec("hybrid_http_responses_total", "counter", ("status",), "HTTP responses by status code."),
    MetricSpec("hybrid_http_malformed_total", "counter", (), "Requests that were not valid HTTP."),
    MetricSpec("hybrid_http_timeouts_total", "counter", (), "Connections closed over a time limit."),
    MetricSpec("hybrid_http_disconnects_total", "counter", (), "Clients that left before their answer."),
    MetricSpec("hybrid_http_received_bytes_total", "counter", (), "Bytes read from clients."),
    MetricSpec("hybrid_http_sent_bytes_total", "counter", (), "Bytes written to clients."),
    MetricSpec("hybrid_event_loop_lag_seconds", "histogram", (), "How late the event loop runs its timers."),
    MetricSpec("hybrid_host_cpu_busy_ratio", "gauge", ("cpu",), "Busy fraction of one usable CPU in the last period."),
    MetricSpec("hybrid_host_cpu_throttled_seconds_total", "counter", (), "Seconds the cgroup quota held us back."),
    MetricSpec("hybrid_host_memory_limit_bytes", "gauge", (), "The smaller of host memory and cgroup limit."),
    MetricSpec("hybrid_host_memory_used_bytes", "gauge", (), "Memory in use under that limit, page cache left out."),
)
