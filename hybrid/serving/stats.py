"""What clients ask of served models beside inference: the statistics of the protocol's extension, and the plans."""

from collections.abc import Iterable

import msgspec

from hybrid.planner.explain import plan_json
from hybrid.serving.model import ServedModel
from hybrid.telemetry.histogram import Histogram


def model_stats(model: ServedModel) -> bytes:
    """Encode the answer of `GET /v2/models/{name}/stats`. Durations are sums in nanoseconds."""
    tally = model.tally
    classes = model.scheduler.state.lanes.classes.values()
    failed = tally.bad_input_n + tally.queue_full_n + tally.late_n + tally.left_n + tally.failed_n + tally.cancelled_n
    stats = {
        "success": _duration(tally.e2e),
        "fail": {"count": failed, "ns": 0},
        "queue": _duration(tally.histogram("queue")),
        "compute_input": _duration(tally.histogram("copy")),
        "compute_infer": _duration(tally.histogram("compute")),
        "compute_output": _duration(tally.histogram("post")),
    }
    entry = {
        "name": model.name,
        "version": model.version,
        "inference_count": sum(counters.rows_n for counters in classes),
        "execution_count": sum(counters.batches_n for counters in classes),
        "inference_stats": stats,
    }
    return msgspec.json.encode({"model_stats": [entry]})


def encoded_plans(models: Iterable[ServedModel], now: float) -> bytes:
    """Encode the answer of `GET /hybrid/v1/plan`: the plans in force, why they are, and for how many seconds."""
    return msgspec.json.encode(
        [plan_json(m.plan) | {"why": m.why, "in_force_s": round(now - m.since_s, 3)} for m in models]
    )


def _duration(histogram: Histogram) -> dict[str, int]:
    return {"count": histogram.count, "ns": round(histogram.sum_s * 1e9)}
