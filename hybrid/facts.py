"""Frozen facts: what was found out about the machine. Base of the planner; nothing here measures anything."""

from msgspec import Struct


class GpuFacts(Struct, frozen=True):
    """One GPU or MIG slice."""

    index: int
    name: str
    memory_total_bytes: int
    kind: str = "cuda"


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
    two kinds of cores. Both are empty where the machine does not tell.
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
