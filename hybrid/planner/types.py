"""The plan as a value: what every other part is built from, and the profile that may override it."""

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from hybrid.config import Number, Positive, Settings

#: What a plan is good at: answering soon, or finishing much work that waits already.
Objective = Literal["latency", "throughput"]


class Alternative(Struct, frozen=True):
    """One way of running a model that was weighed, for the table under a plan.

    `rps` is what it carries within the objective in rows per second; then half of the rows take up to `p50_ms` and all
    but one in a hundred up to `p99_ms`. `measured` tells times that were taken from predicted ones. `is_default` is
    what a framework does by itself: one worker on all threads, without batches.
    """

    engine: str
    instances: int
    threads_per_instance: int
    max_batch: int
    rps: float
    p50_ms: float
    p99_ms: float
    measured: bool
    chosen: bool = False
    is_default: bool = False


class Plan(Struct, frozen=True):
    """How one model runs on one device. `reasons` has one sentence for each number.

    `cores[i]` are the CPU ids of instance i, empty when not pinned. `size_edges` are upper edges of the size classes,
    the last one open. With static batching every batch is run with exactly `max_batch` rows, and inputs that may be
    padded are `static_length` long (0: there are none). `alternatives`: what a measured plan was weighed against.
    Times in milliseconds only here, because the fixed JSON form has them so; `max_wait_s` derives.
    """

    model: str
    device: str
    engine: str
    instances: int
    threads_per_instance: int
    max_batch: int
    max_wait_ms: float
    early_trigger: int
    batching: str
    queue_rows: int
    queue_bytes: int
    preprocess_processes: int
    cores: tuple[tuple[int, ...], ...]
    size_edges: tuple[int, ...] = ()
    pipeline_depth: int = 1
    reasons: dict[str, str] = {}
    version: str = "1"
    static_length: int = 0
    alternatives: tuple[Alternative, ...] = ()

    @property
    def static(self) -> bool:
        """Whether every batch has the same shape."""
        return self.batching == "static"

    @property
    def max_wait_s(self) -> float:
        """The longest wait of the oldest request, in seconds."""
        return self.max_wait_ms / 1000.0

    def differs(self, other: "Plan") -> tuple[str, ...]:
        """Return the keys in which it differs from another plan; why it is so does not count."""
        keys = (key for key in self.__struct_fields__ if key not in ("reasons", "alternatives"))
        return tuple(key for key in keys if getattr(self, key) != getattr(other, key))


class PlanOverrides(Settings, frozen=True):
    """Numbers of a plan that somebody fixed; None leaves one alone. The keys are those of the plan's JSON form."""

    engine: Literal["onnxruntime", "openvino", "torch"] | None = None
    instances: Number | None = None
    threads_per_instance: Number | None = None
    max_batch: Number | None = None
    max_wait_ms: Annotated[float, Meta(ge=0, le=86_400_000)] | None = None
    early_trigger: Number | None = None
    batching: Literal["dynamic", "static", "off"] | None = None
    queue_rows: Positive | None = None
    queue_bytes: Positive | None = None
    preprocess_processes: Number | None = None
    pipeline_depth: Annotated[int, Meta(ge=1, le=4)] | None = None
    pin: bool | None = None


class RunTimeOverrides(PlanOverrides, frozen=True):
    """Flags of the command line, and on top of them what was fixed since: `for_all` models, and `by_model` name."""

    for_all: PlanOverrides = PlanOverrides()
    by_model: dict[str, PlanOverrides] = field(default_factory=dict)


class Match(Settings, frozen=True):
    """Which machines a profile is for; every condition that is set must hold.

    GPU conditions together ask for one GPU, or slice of one, that meets them all.
    """

    usable_cpus_min: Positive | None = None
    usable_cpus_max: Positive | None = None
    memory_limit_bytes_min: Positive | None = None
    memory_limit_bytes_max: Positive | None = None
    numa_nodes_min: Positive | None = None
    isa: tuple[str, ...] = ()
    architecture: str | None = None
    efficiency_cpus: bool | None = None
    battery: bool | None = None
    gpu_kind: Literal["cuda", "intel", "amd"] | None = None
    gpu_mig: bool | None = None
    gpu_integrated: bool | None = None
    gpu_memory_bytes_min: Positive | None = None
    gpu_memory_bytes_max: Positive | None = None

    def __post_init__(self) -> None:
        for name in ("usable_cpus", "memory_limit_bytes", "gpu_memory_bytes"):
            low, high = getattr(self, f"{name}_min"), getattr(self, f"{name}_max")
            if low is not None and high is not None and low > high:
                raise ValueError(f"{name}_min {low} is above {name}_max {high}")


class Profile(Struct, frozen=True):
    """A profile file, loaded. `source` is its path.

    `automatic` when it was found by its `[match]`, `chosen` when it is what this machine was told to use; else it was
    asked for by name. `plan` is about models on the CPU, `gpu` about models on a GPU.
    """

    name: str
    source: str
    description: str = ""
    automatic: bool = False
    plan: PlanOverrides = PlanOverrides()
    model: dict[str, PlanOverrides] = {}
    gpu: PlanOverrides = PlanOverrides()
    chosen: bool = False

    @property
    def why(self) -> str:
        """Why it is in use, as in "cpu-small, fits this machine"."""
        if self.automatic:
            return "fits this machine"
        return "chosen for this machine with `hybrid profile use`" if self.chosen else "as asked for"
