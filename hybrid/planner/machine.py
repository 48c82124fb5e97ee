"""What this machine offers to this process: CPUs, memory limit, instruction sets, topology.

Owns reading /proc and /sys. Measures nothing and decides nothing. Whatever is missing (a container without /sys, macOS
without /proc) becomes "not known" in the facts, never an exception: a server must start where its monitor cannot see.
"""

import os
import platform
from collections.abc import Collection
from pathlib import Path
from typing import Final

from hybrid.facts import CpuBudget, MachineFacts
from hybrid.planner.cgroups import CgroupLimits, parse_cpu_list, read_limits, read_text

#: Flag in /proc/cpuinfo -> name in the facts. Only what an inference engine selects its kernels by.
_ISA: Final[dict[str, str]] = {
    "sse4_2": "sse4_2",
    "avx": "avx",
    "f16c": "f16c",
    "fma": "fma",
    "avx2": "avx2",
    "avx_vnni": "avx_vnni",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512_vnni": "avx512_vnni",
    "avx512_bf16": "avx512_bf16",
    "avx512_fp16": "avx512_fp16",
    "amx_tile": "amx_tile",
    "amx_int8": "amx_int8",
    "amx_bf16": "amx_bf16",
    "neon": "neon",
    "asimd": "neon",
    "asimdhp": "fp16",
    "asimddp": "dotprod",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
    "sme": "sme",
}
_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_POWER: Final = "sys/class/power_supply"
_SLOW_CORE_CAPACITY: Final = 0.75  # a core under this share of the largest cpu_capacity counts as an efficiency core


def read_machine(root: Path = Path("/"), affinity: Collection[int] | None = None) -> MachineFacts:
    """Read the facts of this machine as this process may use it.

    Args:
        root: Where /proc and /sys are looked for; tests hand in a fixture tree.
        affinity: CPU ids this process may run on; None asks the operating system.
    """
    limits = read_limits(root)
    cpuinfo = _cpuinfo(root)
    online = parse_cpu_list(read_text(root / _CPUS / "online") or "") or tuple(cpuinfo)
    cpu = _cpu_budget(_affinity() if affinity is None else affinity, online, limits)
    memory_bytes, memory_source = _memory(root, limits)
    groups = _core_groups(root, cpu.cpus, cpuinfo)
    return MachineFacts(
        cpu=cpu,
        memory_limit_bytes=memory_bytes,
        memory_source=memory_source,
        model_name=_model_name(cpuinfo),
        architecture=platform.machine(),
        isa=_isa(cpuinfo, cpu.cpus),
        numa_nodes=_numa_nodes(root, cpu.cpus),
        physical_cores=len(groups) or None,
        core_groups=groups,
        efficiency_cpus=_efficiency_cpus(root, cpu.cpus),
        battery=_battery(root),
    )


def usable_under_quota(cpus: int, quota_cpus: float | None) -> int:
    """How many threads may compute at once on `cpus` CPUs under a quota, at least 1.

    The quota is rounded down. With 2 busy threads under 1.5 CPUs the kernel lets both run for 75 ms and then stops the
    whole group for the other 25 ms of each period: every request in flight waits, the front end included. One thread
    leaves half a CPU idle at worst, and the front end and preprocessing use that.
    """
    return cpus if quota_cpus is None else max(1, min(cpus, int(quota_cpus)))


def _affinity() -> Collection[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)  # macOS has no affinity masks


def _cpu_budget(affinity: Collection[int], online: Collection[int], limits: CgroupLimits) -> CpuBudget:
    """Intersect affinity, online CPUs and cpuset, then apply the quota.

    A set that has nothing in common with the affinity is ignored: the mask comes from the scheduler itself, while the
    files may describe the outside of a container.
    """
    allowed = set(affinity)
    for other in (online, limits.cpuset or ()):
        allowed = allowed & set(other) or allowed
    cpus = tuple(sorted(allowed)) or (0,)
    usable = usable_under_quota(len(cpus), limits.cpu_quota)
    total = len(online) or len(affinity)
    if limits.cpu_quota is not None and usable < len(cpus):
        rounded = "" if usable == limits.cpu_quota else f", taken as {usable}"
        reason = f"the CPU quota of {limits.cpu_quota:g} ({limits.cpu_source}){rounded} is below {len(cpus)} CPUs"
    elif len(cpus) < len(affinity):
        reason = f"the CPU set of the control group leaves {len(cpus)} of {total} CPUs"
    elif len(cpus) < total:
        reason = f"the affinity mask leaves {len(cpus)} of {total} CPUs"
    else:
        reason = f"all {len(cpus)} CPUs of the machine, no limit below that"
    return CpuBudget(
        usable=usable,
        cpus=cpus,
        affinity=len(affinity),
        quota_cpus=limits.cpu_quota,
        cpuset=None if limits.cpuset is None else len(limits.cpuset),
        online=total,
        reason=reason,
    )


def _memory(root: Path, limits: CgroupLimits) -> tuple[int, str]:
    """The memory limit in bytes and where it comes from; the control group only counts below the host's memory."""
    host, source = _host_memory(root)
    if limits.memory_bytes is not None and limits.memory_bytes < host:
        return limits.memory_bytes, limits.memory_source
    return host, source


def _host_memory(root: Path) -> tuple[int, str]:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0] == "MemTotal:" and fields[1].isdigit():
            return int(fields[1]) * 1024, "host memory"
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "host memory (as the C library reports it)"


def _cpuinfo(root: Path) -> dict[int, dict[str, str]]:
    """/proc/cpuinfo as CPU id -> its lines."""
    processors: dict[int, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor" and value.isdigit():
            current = processors.setdefault(int(value), {})
        elif key:
            current[key] = value
    return processors


def _model_name(cpuinfo: dict[int, dict[str, str]]) -> str:
    for lines in cpuinfo.values():
        if name := lines.get("model name") or lines.get("Model") or lines.get("cpu model"):
            return name
        if "CPU implementer" in lines:  # ARM kernels print numbers only
            return f"ARM implementer {lines['CPU implementer']} part {lines.get('CPU part', 'unknown')}"
    return platform.processor() or platform.machine()


def _isa(cpuinfo: dict[int, dict[str, str]], cpus: tuple[int, ...]) -> tuple[str, ...]:
    """Instruction sets that every usable CPU has: a worker may land on any of them."""
    sets = [_flags(cpuinfo[cpu]) for cpu in cpus if cpu in cpuinfo] or [_flags(lines) for lines in cpuinfo.values()]
    common = frozenset.intersection(*sets) if sets else frozenset()
    if not cpuinfo and platform.machine() in ("arm64", "aarch64"):
        common = frozenset({"asimd"})  # part of the architecture, and macOS has no /proc to say so
    return tuple(dict.fromkeys(name for flag, name in _ISA.items() if flag in common))


def _flags(lines: dict[str, str]) -> frozenset[str]:
    return frozenset((lines.get("flags") or lines.get("Features") or "").split())


def _numa_nodes(root: Path, cpus: tuple[int, ...]) -> int:
    """Nodes that hold a usable CPU; memory-only nodes (HBM, CXL) do not count. At least 1."""
    nodes = 0
    for folder in _numbered(root / _NODES, "node"):
        held = parse_cpu_list(read_text(folder / "cpulist") or "")
        nodes += bool(held and set(held) & set(cpus))
    return max(1, nodes)


def _numbered(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.removeprefix(prefix).isdigit())
    except OSError:
        return []


def _core_groups(root: Path, cpus: tuple[int, ...], cpuinfo: dict[int, dict[str, str]]) -> tuple[tuple[int, ...], ...]:
    """Usable CPUs grouped by physical core (SMT siblings together); empty when the topology is not visible."""
    groups: dict[object, list[int]] = {}
    for cpu in cpus:
        topology = root / _CPUS / f"cpu{cpu}" / "topology"
        text = read_text(topology / "core_cpus_list") or read_text(topology / "thread_siblings_list")
        lines = cpuinfo.get(cpu, {})
        core: object = text or (lines.get("physical id"), lines.get("core id"))
        if not text and "core id" not in lines:
            return ()
        groups.setdefault(core, []).append(cpu)
    return tuple(tuple(group) for group in groups.values())


def _efficiency_cpus(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The slow cores of a machine that mixes two kinds; empty where all are equal or nothing says otherwise."""
    fast = parse_cpu_list(read_text(root / "sys/devices/cpu_core/cpus") or "")  # Intel names both kinds
    slow = parse_cpu_list(read_text(root / "sys/devices/cpu_atom/cpus") or "")
    if fast and slow:
        return tuple(cpu for cpu in cpus if cpu in slow)
    capacities = {cpu: read_text(root / _CPUS / f"cpu{cpu}" / "cpu_capacity") or "" for cpu in cpus}
    numbers = {cpu: int(text) for cpu, text in capacities.items() if text.isdigit()}
    largest = max(numbers.values(), default=0)
    return tuple(cpu for cpu in cpus if numbers.get(cpu, largest) < _SLOW_CORE_CAPACITY * largest)


def _battery(root: Path) -> bool:
    """Whether the machine itself has a battery; those of mice and headsets, and an empty bay, do not count."""
    try:
        supplies = sorted((root / _POWER).iterdir())
    except OSError:
        return False
    return any(
        read_text(supply / "type") == "Battery"
        and read_text(supply / "scope") != "Device"
        and read_text(supply / "present") != "0"
        for supply in supplies
    )
