"""The frozen Snapshot (schema `hybrid.snapshot/1`): everything an observer may know of the server at one moment.

Base module: it is read by the exporter, the doctor, the console and clients, so it imports nothing of hybrid but the
histogram. It never holds request data. Long on purpose: the schema is read as a whole. Rules of the schema:

- seconds, bytes, fractions 0..1; wall time only in `t_wall_s`;
- `*_n` and `*_s` totals count since `boot_id` and never fall; rates are the reader's job, so lost samples cost nothing;
- None means not available, never zero; the reason stands in `absent` under the dotted name;
- new optional fields keep the schema number, removals raise it.
"""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from hybrid.telemetry.histogram import Hist

SCHEMA: Final = "hybrid.snapshot/1"


class Core(Struct, frozen=True):
    """One CPU: fraction busy since the sample before (None in the first), and whether this server may use it."""

    cpu: int
    busy: float | None
    ours: bool


class Host(Struct, frozen=True, kw_only=True):
    """The machine as this server may use it. `cpu_s` is the CPU time of all our processes, ended ones included.

    `mem_limit` is the smaller of host and cgroup; `mem_used` and `mem_avail` refer to the one that limits.
    """

    cores: tuple[Core, ...] = ()
    usable_cpus: int
    cpu_s: float | None = None
    throttled_s: float | None = None
    throttled_n: int | None = None
    psi_cpu_s: float | None = None
    psi_mem_s: float | None = None
    run_queue: int | None = None
    switches_n: int | None = None
    mem_limit: int | None = None
    mem_used: int | None = None
    mem_avail: int | None = None
    faults_n: int | None = None


class Gpu(Struct, frozen=True, kw_only=True):
    """One GPU or MIG slice. `busy` is a fraction; `error` says why the numbers are missing."""

    index: int
    name: str
    busy: float | None = None
    mem_used: int | None = None
    mem_total: int | None = None
    power_w: float | None = None
    temp_c: float | None = None
    throttle: str = ""
    error: str = ""


class Outcomes(Struct, frozen=True, kw_only=True):
    """How requests ended. Every accepted request is counted in exactly one; `left` is a client that went away."""

    ok_n: int = 0
    bad_input_n: int = 0
    queue_full_n: int = 0
    late_n: int = 0
    cancelled_n: int = 0
    left_n: int = 0
    failed_n: int = 0


class Responses(Struct, frozen=True):
    """How many HTTP responses had this status code."""

    status: int
    n: int


class Http(Struct, frozen=True, kw_only=True):
    """Counters of the HTTP edge.

    `malformed_n` are requests that were not HTTP, `disconnects_n` clients that left before their answer; `accepted_n`
    and `refused_n` count connections, `refused_bodies_n` bodies for which there was no memory; `responses` are by
    status code. Bytes are counted as they are read and written, without what TLS adds.
    """

    requests_n: int = 0
    accepted_n: int = 0
    refused_n: int = 0
    refused_bodies_n: int = 0
    disconnects_n: int = 0
    received_bytes_n: int = 0
    sent_bytes_n: int = 0
    malformed_n: int = 0
    timeouts_n: int = 0
    responses: tuple[Responses, ...] = ()


class Front(Struct, frozen=True, kw_only=True):
    """The front end: requests inside, open connections, lag of the event loop, and the preprocess pool (`pre_*`).

    Rows of the pool: `pre_late_n` were refused over their time limit, `pre_downgraded_n` made at less cost instead;
    `pre_cache_*` is what was known of rows before.
    """

    inflight: int = 0
    conns: int = 0
    loop_lag: Hist = Hist()
    pre_busy_s: float = 0.0
    pre_threads: int = 0
    pre_queue: int = 0
    pre_items_n: int = 0
    pre_rejected_n: int = 0
    pre_late_n: int = 0
    pre_downgraded_n: int = 0
    pre_cpu_s: float = 0.0
    pre_cache_hits_n: int = 0
    pre_cache_misses_n: int = 0
    pre_cache_bytes: int = 0
    bytes_queued: int = 0
    outcomes: Outcomes = Outcomes()
    http: Http = Http()


class Stages(Struct, frozen=True, kw_only=True):
    """Time spent per stage. `wait` (for a batch to fill) is None where the owner counts it as part of `queue`."""

    parse: Hist = Hist()
    pre: Hist = Hist()
    queue: Hist = Hist()
    wait: Hist | None = None
    copy: Hist = Hist()
    exec: Hist = Hist()
    post: Hist = Hist()
    serialise: Hist = Hist()


class Released(Struct, frozen=True, kw_only=True):
    """Batches by the reason that released them; one field per `ReleaseReason`."""

    full_n: int = 0
    early_trigger_n: int = 0
    idle_worker_n: int = 0
    max_wait_n: int = 0
    deadline_n: int = 0
    size_class_n: int = 0
    drain_n: int = 0
    isolate_n: int = 0


class SizeClass(Struct, frozen=True, kw_only=True):
    """One queue of a model: sizes in `(lo, hi]` (None = open). `depth` counts rows and `bytes` their payload.

    `sizes_n[i]` counts the batches of i + 1 rows; `items_n` the rows of all batches. `pad_n` and `real_n` count the
    padding and the true tokens (or pixels) that were computed.
    """

    key: str
    lo: int = 0
    hi: int | None = None
    depth: int = 0
    bytes: int = 0
    oldest_s: float | None = None
    arrived_n: int = 0
    batches_n: int = 0
    items_n: int = 0
    sizes_n: tuple[int, ...] = ()
    released: Released = Released()
    pad_n: int = 0
    real_n: int = 0
    e2e: Hist = Hist()


class InForce(Struct, frozen=True, kw_only=True):
    """The batching settings that a model runs with now, and where they came from."""

    max_batch: int
    max_wait_s: float
    early_trigger: int = 0
    drop: bool = True
    class_edges: tuple[int, ...] = ()
    instances: int = 1
    threads: int = 1
    device: str = "cpu"
    source: str = "plan"


class WorkerEnds(Struct, frozen=True):
    """How many workers of a model ended for this cause (exit, signal, hang, recycle, start)."""

    cause: str
    n: int


class Model(Struct, frozen=True, kw_only=True):
    """One version of a served model. `slowest` names the stages (seconds) of the slowest 1 % of answers.

    `pad_n` and `real_n` are those of its classes in sum.
    """

    name: str
    version: str
    state: str
    slo_s: float | None = None
    queue_limit: int = 0
    outcomes: Outcomes = Outcomes()
    in_slo_n: int | None = None
    e2e: Hist = Hist()
    stages: Stages = Stages()
    slowest: dict[str, float] = {}
    classes: tuple[SizeClass, ...] = ()
    pad_n: int = 0
    real_n: int = 0
    in_force: InForce | None = None
    restarts_n: int = 0
    worker_ends: tuple[WorkerEnds, ...] = ()


class Worker(Struct, frozen=True, kw_only=True):
    """One worker slot. Counters belong to the slot (`w0`) and outlive the process in it; `pid` is None while none runs.

    `state` is one of starting, ready, busy, draining, hung, dead.
    """

    id: str
    model: str
    state: str
    device: str = "cpu"
    pid: int | None = None
    cores: tuple[int, ...] = ()
    threads: int = 1
    since_s: float = 0.0
    beat_age_s: float | None = None
    batch_id: int | None = None
    batch_items: int | None = None
    batch_age_s: float | None = None
    batch_pred_s: float | None = None
    busy_s: float = 0.0
    cpu_s: float | None = None
    batches_n: int = 0
    items_n: int = 0
    exec: Hist = Hist()
    slowdown: float | None = None
    rss: int | None = None
    restarts_n: int = 0
    last_end: str = ""


class Mem(Struct, frozen=True, kw_only=True):
    """One memory signal of one process, in bytes; `owner` names the process.

    `role` is server, worker, preprocess, or engine for what a worker's engine says of itself. `slope`, `lo` and `hi`
    are bytes per minute with their confidence interval.
    """

    owner: str
    role: str
    signal: str = "rss"
    now: int | None = None
    limit: int | None = None
    n: int = 0
    window_s: float = 0.0
    slope: float | None = None
    lo: float | None = None
    hi: float | None = None
    z: float | None = None
    per_request: float | None = None
    verdict: Literal["learning", "flat", "warm_up", "step", "spike", "leak"] = "learning"
    why: str = ""
    limit_in_s: float | None = None


class Evidence(Struct, frozen=True):
    """A measured value beside the limit it is held against (`op` is < or >)."""

    name: str
    value: float
    op: str
    limit: float
    unit: str


class Finding(Struct, frozen=True, kw_only=True):
    """Something that the doctor found wrong."""

    code: str
    severity: str
    target: str
    since_s: float
    symptom: str
    evidence: tuple[Evidence, ...] = ()
    confidence: float | None = None
    ruled_out: tuple[str, ...] = ()
    fix: str = ""
    action: str | None = None
    predicted: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """A change of settings at run time, and whether it was kept."""

    id: str
    t_wall_s: float
    actor: str
    reason: str
    target: str
    name: str
    before: str
    after: str
    rev: int
    state: Literal["trial", "kept", "reverted", "failed"]


class Replans(Struct, frozen=True):
    """How many re-plans at run time came to this: unchanged, batcher, workers (what they changed), refused, failed."""

    outcome: str
    n: int


class Cost(Struct, frozen=True, kw_only=True):
    """What telemetry itself costs: seconds to build, bytes of the snapshot before, listeners and what they lost."""

    build_s: float = 0.0
    bytes: int = 0
    clients: int = 0
    dropped_n: int = 0


class Snapshot(Struct, frozen=True, kw_only=True):
    """Everything at one moment. `state` is one of starting, ready, draining, stopped; `state_why` one sentence.

    `config_rev` counts the re-plans that changed something.
    """

    schema: Literal["hybrid.snapshot/1"] = SCHEMA
    boot_id: str
    seq: int
    t_mono_s: float
    t_wall_s: float
    period_s: float
    node: str
    version: str
    state: str
    state_why: str = ""
    config_rev: int = 0
    runtime_n: int = 0
    host: Host
    gpus: tuple[Gpu, ...] = ()
    front: Front = Front()
    models: tuple[Model, ...] = ()
    workers: tuple[Worker, ...] = ()
    memory: tuple[Mem, ...] = ()
    findings: tuple[Finding, ...] = ()
    changes: tuple[Change, ...] = ()
    replans: tuple[Replans, ...] = ()
    soak: None = None
    absent: dict[str, str] = {}
    cost: Cost = Cost()


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Snapshot)


def encode(snapshot: Snapshot) -> bytes:
    """Return the snapshot as JSON; numbers that JSON cannot hold become null."""
    return _encoder.encode(snapshot)


def decode(data: bytes | str) -> Snapshot:
    """Read a snapshot; fields that this version does not know are ignored.

    Raises:
        ValueError: when it is not JSON, or not of this schema.
    """
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ValueError(f"snapshot: {error}") from error
