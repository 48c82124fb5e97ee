"""Frozen facts: what was found out about the machine. Base of the planner; nothing here measures anything."""

from msgspec import Struct


class GpuFacts(Struct, frozen=True):
    """One GPU, or one slice of a GPU in MIG mode; such a GPU is not listed itself, no program can use it whole.

    `index` counts what this process may use of the same `kind` ("cuda", "intel" or "amd") and is the number that an
    engine takes; a slice is addressed by `uuid` instead. `memory_total_bytes` is 0 where the driver does not say.
    `slices` is the share of a MIG slice in compute units of its GPU. `integrated` GPUs share the host's memory.
    """

    index: int
    name: str
    memory_total_bytes: int
    kind: str = "cuda"
    uuid: str = ""
    driver: str = ""
    compute_capability: str = ""
    power_limit_w: float | None = None
    mig: bool = False
    slices: int | None = None
    integrated: bool = False


class CacheFacts(Struct, frozen=True):
    """One level of the processor's caches: `instances` of `size_bytes` each serve the usable CPUs."""

    level: int
    kind: str
    size_bytes: int
    instances: int


class CpuBudget(Struct, frozen=True):
    """Usable CPUs and the three limits they came from; `reason` says which one decided.

    `quota_cpus` is None without a cgroup quota. `cpus` are the ids that may be used, in order.
    """

    usable: int
    cpus: tuple[int, ...]
    affinity: int
    quota_cpus: float | None
    cpuset: int | None
    online: int
    reason: str


class MachineFacts(Struct, frozen=True):
    """The machine as far as a plan depends on it. `memory_limit_bytes` is min(host, cgroup).

    `core_groups` are the allowed CPU ids grouped by physical core, `efficiency_cpus` the slow ones of a machine with
    two kinds of cores. Both are empty where the machine does not tell. `gpu_note` says why there are no GPUs, or what
    was left out. `battery` is true on a machine that can run from one, which makes it somebody's laptop.
    """

    cpu: CpuBudget
    memory_limit_bytes: int
    memory_source: str
    model_name: str = ""
    architecture: str = ""
    isa: tuple[str, ...] = ()
    numa_nodes: int = 1
    physical_cores: int | None = None
    gpus: tuple[GpuFacts, ...] = ()
    core_groups: tuple[tuple[int, ...], ...] = ()
    efficiency_cpus: tuple[int, ...] = ()
    caches: tuple[CacheFacts, ...] = ()
    gpu_note: str = ""
    battery: bool = False
