"""From two Snapshots of a server to what it did in between for one model. Pure."""

from collections.abc import Iterator

from hybrid.load.bottleneck import FRONT_END, MODEL, POST, PREPROCESS, Station, Window
from hybrid.telemetry.snapshot import Model, Snapshot

_SIMULATED = "simulated:"


def window(before: Snapshot, after: Snapshot, model: str, front_cpu_s: float | None) -> Window | None:
    """Return what happened between two Snapshots; None when the model is in neither, or the server was restarted.

    `front_cpu_s` is the CPU time of the server's own process in between, None where it cannot be read. Preprocess and
    CPU are counted by the server for all models together: other traffic is taken for this model's.
    """
    old, new = _model(before, model), _model(after, model)
    if old is None or new is None or before.boot_id != after.boot_id:
        return None
    return Window(
        seconds=max(1e-3, after.t_mono_s - before.t_mono_s),
        requests_n=new.outcomes.ok_n - old.outcomes.ok_n,
        stations=tuple(_stations(before, after, old, new, front_cpu_s)),
        queue_s=new.stages.queue.sum_s - old.stages.queue.sum_s,
        total_s=new.e2e.sum_s - old.e2e.sum_s,
        batches_n=_batches(new) - _batches(old),
        held_n=_held(new) - _held(old),
        rows_n=_rows(new) - _rows(old),
        cpu_s=_difference(before.host.cpu_s, after.host.cpu_s),
        memory_bytes=sum(entry.now for entry in after.memory if entry.now is not None) or None,
    )


def worker_busy_s(snapshot: Snapshot, model: str) -> float:
    """Return the seconds that all workers of a model have computed."""
    found = _model(snapshot, model)
    return sum(w.busy_s for w in snapshot.workers if found is not None and w.model == found.name)


def max_batch(snapshot: Snapshot, model: str) -> int:
    """Return the largest batch that the server makes of this model's rows; 1 when it does not say."""
    found = _model(snapshot, model)
    return found.in_force.max_batch if found is not None and found.in_force is not None else 1


def _stations(
    before: Snapshot, after: Snapshot, old: Model, new: Model, front_cpu_s: float | None
) -> Iterator[Station]:
    if after.front.pre_items_n > before.front.pre_items_n:
        yield Station(PREPROCESS, max(1, after.front.pre_threads), after.front.pre_busy_s - before.front.pre_busy_s)
    busy_s = worker_busy_s(after, new.name) - worker_busy_s(before, old.name)
    workers = max(1, sum(worker.model == new.name for worker in after.workers))
    post_s = new.stages.post.sum_s - old.stages.post.sum_s
    exec_s = new.stages.exec.sum_s - old.stages.exec.sum_s
    yield Station(POST if post_s > exec_s else MODEL, workers, busy_s)  # the same processes do both
    if front_cpu_s is not None:
        yield Station(FRONT_END, 1, front_cpu_s)


def _model(snapshot: Snapshot, name: str) -> Model | None:
    """The model that a path with this name means, the latest version when there are several."""
    bare = name.removeprefix(_SIMULATED)
    found = [m for m in snapshot.models if m.name.removeprefix(_SIMULATED) == bare and m.state != "unloaded"]
    return max(found, key=lambda m: (len(m.version), m.version), default=None)


def _batches(model: Model) -> int:
    return sum(entry.batches_n for entry in model.classes)


def _held(model: Model) -> int:
    return sum(entry.released.max_wait_n for entry in model.classes)


def _rows(model: Model) -> int:
    return sum(entry.items_n for entry in model.classes)


def _difference(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else max(0.0, after - before)
