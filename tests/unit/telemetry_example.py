"""A Snapshot with every part filled, for the telemetry tests."""

from hybrid.telemetry.histogram import Histogram
from hybrid.telemetry.snapshot import (
    Change,
    Core,
    Evidence,
    Finding,
    Front,
    Host,
    Http,
    InForce,
    Mem,
    Model,
    Outcomes,
    Released,
    Replans,
    Responses,
    SizeClass,
    Snapshot,
    Stages,
    Worker,
    WorkerEnds,
)

DURATIONS_S = (0.00005, 0.0001, 0.003, 0.003, 0.05, 1.0, 60.0, 500.0)
HOST = Host(
    cores=(Core(0, 0.5, True), Core(1, None, True), Core(2, 0.1, False)),
    usable_cpus=2,
    cpu_s=12.5,
    mem_limit=1000,
    mem_used=400,
)
FINDING = Finding(
    code="D02",
    severity="critical",
    target="minilm",
    since_s=3.0,
    symptom="waits for fuller batches",
    evidence=(Evidence("idle", 0.78, ">", 0.5, "fraction"),),
)
CHANGE = Change(
    id="c1",
    t_wall_s=1.7e9,
    actor="bo",
    reason="test",
    target="minilm",
    name="max_wait_s",
    before="0.001",
    after="0.04",
    rev=42,
    state="kept",
)


def durations(values=DURATIONS_S):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram.sparse()


def example_model(name="minilm", version="1", **changes):
    fields = {
        "name": name,
        "version": version,
        "state": "ready",
        "outcomes": Outcomes(ok_n=90, bad_input_n=4, queue_full_n=3, late_n=2, left_n=1),
        "e2e": durations(),
        "stages": Stages(queue=durations(), exec=durations((0.01, 0.02))),
        "classes": (
            SizeClass(
                key="0-32",
                hi=32,
                depth=5,
                bytes=640,
                oldest_s=0.25,
                batches_n=4,
                items_n=14,
                sizes_n=(1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0),
                released=Released(full_n=1, idle_worker_n=3),
                pad_n=100,
                real_n=300,
            ),
            SizeClass(key="32-"),
        ),
        "pad_n": 100,
        "real_n": 300,
        "in_force": InForce(max_batch=8, max_wait_s=0.0),
        "restarts_n": 3,
        "worker_ends": (WorkerEnds("signal", 2), WorkerEnds("hang", 1)),
    }
    return Model(**(fields | changes))


def example_worker(slot="w0", **changes):
    return Worker(**({"id": slot, "model": "minilm", "state": "ready", "pid": 4242, "busy_s": 7.5} | changes))


def example_snapshot(**changes):
    fields = {
        "boot_id": "b00t",
        "seq": 7,
        "t_mono_s": 1000.5,
        "t_wall_s": 1.7e9,
        "period_s": 1.0,
        "node": "node-a:8000",
        "version": "0.1.0",
        "state": "ready",
        "host": HOST,
        "front": _front(),
        "models": (example_model(),),
        "workers": (example_worker("w0"), example_worker("w1", state="starting", pid=None)),
        "memory": (
            Mem(owner="", role="server", now=300),
            Mem(owner="minilm/w0", role="worker", now=100),
            Mem(owner="minilm/w0", role="engine", signal="reserved", now=50),
        ),
        "replans": (Replans("workers", 2), Replans("failed", 1)),
        "findings": (FINDING,),
        "changes": (CHANGE,),
        "absent": {"host.throttled_s": "no cgroup with a CPU quota"},
    }
    return Snapshot(**(fields | changes))


def _front():
    http = Http(
        accepted_n=5,
        refused_n=1,
        received_bytes_n=9,
        sent_bytes_n=8,
        responses=(Responses(200, 90), Responses(404, 5)),
    )
    return Front(inflight=3, conns=2, loop_lag=durations((0.0001, 0.2)), http=http)
