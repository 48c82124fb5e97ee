import math

import pytest
from prometheus_client.parser import text_string_to_metric_families
from telemetry_example import DURATIONS_S, durations, example_model, example_snapshot, example_worker

from hybrid.telemetry.histogram import EDGES_S
from hybrid.telemetry.metrics import METRICS, render
from hybrid.telemetry.snapshot import Front, InForce, Outcomes, Stages

#: Golden list: dashboards and alerts hold on to these. Add freely; to rename or remove one is a breaking change.
GOLDEN = """
hybrid_build_info gauge version python
hybrid_ready gauge
hybrid_model_ready gauge model version
hybrid_requests_total counter model version outcome
hybrid_request_duration_seconds histogram model
hybrid_stage_duration_seconds histogram model stage
hybrid_inflight_requests gauge
hybrid_queue_rows gauge model class
hybrid_queue_bytes gauge model class
hybrid_queue_oldest_seconds gauge model class
hybrid_batches_total counter model class reason
hybrid_batch_rows histogram model class
hybrid_batch_rows_limit gauge model
hybrid_batch_fill_ratio gauge model class
hybrid_tokens_total counter model class
hybrid_padding_tokens_total counter model class
hybrid_padding_ratio gauge model
hybrid_worker_up gauge model worker
hybrid_worker_restarts_total counter model
hybrid_worker_ends_total counter model cause
hybrid_replans_total counter outcome
hybrid_worker_busy_seconds_total counter model worker
hybrid_process_resident_memory_bytes gauge role worker
hybrid_engine_memory_bytes gauge worker kind
hybrid_process_cpu_seconds_total counter
hybrid_preprocess_items_total counter
hybrid_preprocess_rejected_total counter
hybrid_preprocess_late_total counter
hybrid_preprocess_downgraded_total counter
hybrid_preprocess_busy_seconds_total counter
hybrid_preprocess_cpu_seconds_total counter
hybrid_preprocess_cache_hits_total counter
hybrid_preprocess_cache_misses_total counter
hybrid_preprocess_cache_bytes gauge
hybrid_preprocess_queue_items gauge
hybrid_preprocess_workers gauge
hybrid_connections gauge
hybrid_http_requests_total counter
hybrid_http_connections_total counter result
hybrid_http_bodies_refused_total counter
hybrid_http_responses_total counter status
hybrid_http_malformed_total counter
hybrid_http_timeouts_total counter
hybrid_http_disconnects_total counter
hybrid_http_received_bytes_total counter
hybrid_http_sent_bytes_total counter
hybrid_event_loop_lag_seconds histogram
hybrid_host_cpu_busy_ratio gauge cpu
hybrid_host_cpu_throttled_seconds_total counter
hybrid_host_memory_limit_bytes gauge
hybrid_host_memory_used_bytes gauge
"""


def families(snapshot):
    return {
        family.name + "_total" * (family.type == "counter"): family
        for family in text_string_to_metric_families(render(snapshot).decode())
    }


def value(snapshot, name, **labels):
    family = families(snapshot)[name.removesuffix("_sum").removesuffix("_count").removesuffix("_bucket")]
    (found,) = [s.value for s in family.samples if s.name == name and s.labels == labels]
    return found


def golden():
    return [(name, kind, tuple(labels)) for name, kind, *labels in map(str.split, GOLDEN.strip().splitlines())]


def test_names_types_and_labels_are_the_golden_list():
    assert [(m.name, m.kind, m.labels) for m in METRICS] == golden()


def test_the_text_has_the_names_types_and_labels_of_the_table():
    # Filled so that every metric has a sample.
    host = example_snapshot().host
    found = families(example_snapshot(host=type(host)(**_fields(host) | {"throttled_s": 1.0})))
    assert [(name, family.type) for name, family in found.items()] == [(m.name, m.kind) for m in METRICS]
    for spec in METRICS:
        assert found[spec.name].documentation == spec.help
        assert found[spec.name].samples, spec.name
        for sample in found[spec.name].samples:
            assert set(sample.labels) - {"le"} == set(spec.labels), spec.name


def test_an_empty_server_names_every_metric_too():
    empty = example_snapshot(models=(), workers=(), memory=(), front=Front())
    assert list(families(empty)) == [m.name for m in METRICS]


def test_no_series_comes_twice_with_two_versions_of_a_model():
    snapshot = example_snapshot(models=(example_model(version="1"), example_model(version="2")))
    lines = [line.rsplit(" ", 1)[0] for line in render(snapshot).decode().splitlines() if line[0] != "#"]
    assert len(lines) == len(set(lines))
    assert value(snapshot, "hybrid_requests_total", model="minilm", version="2", outcome="ok") == 90
    assert value(snapshot, "hybrid_request_duration_seconds_count", model="minilm") == 2 * len(DURATIONS_S)
    assert value(snapshot, "hybrid_queue_oldest_seconds", model="minilm", **{"class": "0-32"}) == 0.25


@pytest.mark.parametrize(
    ("name", "labels", "expected"),
    [
        ("hybrid_ready", {}, 1),
        ("hybrid_requests_total", {"model": "minilm", "version": "1", "outcome": "late"}, 2),
        ("hybrid_requests_total", {"model": "minilm", "version": "1", "outcome": "failed"}, 0),
        ("hybrid_queue_rows", {"model": "minilm", "class": "0-32"}, 5),
        ("hybrid_queue_oldest_seconds", {"model": "minilm", "class": "32-"}, 0),
        ("hybrid_batches_total", {"model": "minilm", "class": "0-32", "reason": "idle_worker"}, 3),
        ("hybrid_batch_fill_ratio", {"model": "minilm", "class": "0-32"}, 14 / 32),
        ("hybrid_batch_rows_sum", {"model": "minilm", "class": "0-32"}, 14),
        ("hybrid_padding_tokens_total", {"model": "minilm", "class": "0-32"}, 100),
        ("hybrid_padding_ratio", {"model": "minilm"}, 0.25),
        ("hybrid_worker_up", {"model": "minilm", "worker": "w0"}, 1),
        ("hybrid_worker_up", {"model": "minilm", "worker": "w1"}, 0),
        ("hybrid_worker_ends_total", {"model": "minilm", "cause": "hang"}, 1),
        ("hybrid_replans_total", {"outcome": "workers"}, 2),
        ("hybrid_process_resident_memory_bytes", {"role": "server", "worker": ""}, 300),
        ("hybrid_engine_memory_bytes", {"worker": "minilm/w0", "kind": "reserved"}, 50),
        ("hybrid_http_responses_total", {"status": "404"}, 5),
        ("hybrid_host_cpu_busy_ratio", {"cpu": "0"}, 0.5),
    ],
)
def test_values(name, labels, expected):
    assert value(example_snapshot(), name, **labels) == expected


def test_durations_keep_their_counts_on_the_coarse_edges():
    family = families(example_snapshot())["hybrid_request_duration_seconds"]
    buckets = {float(s.labels["le"]): s.value for s in family.samples if s.name.endswith("_bucket")}
    assert len(buckets) == 21
    for edge, n in buckets.items():
        assert n == sum(1 for d in DURATIONS_S if d <= edge or math.isinf(edge))
    assert value(example_snapshot(), "hybrid_request_duration_seconds_sum", model="minilm") == sum(DURATIONS_S)


def test_every_fine_bucket_lands_at_or_below_its_edge():
    values = [edge * 0.99 for edge in EDGES_S]
    samples = families(example_snapshot(models=(example_model(e2e=durations(values)),)))
    buckets = [s for s in samples["hybrid_request_duration_seconds"].samples if s.name.endswith("_bucket")]
    assert len(buckets) == 21
    for bucket in buckets:
        assert bucket.value == sum(1 for v in values if v <= float(bucket.labels["le"]))


def test_rows_per_batch_fall_into_powers_of_two():
    family = families(example_snapshot())["hybrid_batch_rows"]
    of_short = [s for s in family.samples if s.labels["class"] == "0-32" and s.name.endswith("_bucket")]
    buckets = {s.labels["le"]: s.value for s in of_short}  # batches of 1, 5 and 8 rows
    assert [buckets[le] for le in ("1", "2", "4", "8", "16", "+Inf")] == [1, 1, 1, 3, 3, 3]


def test_the_largest_batches_are_counted_in_the_last_bucket():
    model = example_model(in_force=InForce(max_batch=5000, max_wait_s=0.0))
    classes = (type(model.classes[0])(key="all", sizes_n=(0,) * 4999 + (2,), batches_n=2, items_n=10_000),)
    snapshot = example_snapshot(models=(example_model(classes=classes),))
    assert value(snapshot, "hybrid_batch_rows_count", model="minilm", **{"class": "all"}) == 2


def test_series_of_a_slot_that_is_gone_vanish_and_the_totals_of_its_model_stay():
    before = example_snapshot()
    after = example_snapshot(workers=(example_worker("w0"),))
    assert b'worker="w1"' in render(before)
    assert b'worker="w1"' not in render(after)
    for snapshot in (before, after):
        assert value(snapshot, "hybrid_worker_restarts_total", model="minilm") == 3


def test_no_pid_and_no_boot_id_becomes_a_label():
    text = render(example_snapshot())
    assert b"4242" not in text
    assert b"b00t" not in text


def test_a_wait_that_the_owner_does_not_measure_is_no_stage():
    family = families(example_snapshot(models=(example_model(stages=Stages()),)))["hybrid_stage_duration_seconds"]
    stages = {s.labels["stage"] for s in family.samples}
    assert stages == {"parse", "preprocess", "queue", "copy", "compute", "post", "serialise"}


def test_odd_names_are_escaped():
    odd = 'a"b\\c\nd'
    assert value(
        example_snapshot(models=(example_model(name=odd, outcomes=Outcomes(ok_n=1)),)),
        "hybrid_requests_total",
        model=odd,
        version="1",
        outcome="ok",
    )


def _fields(struct):
    return {name: getattr(struct, name) for name in struct.__struct_fields__}
