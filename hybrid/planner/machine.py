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
from hybrid.planner.cgroups import CgroupLimits, parse_cpu_list, parse_number, read_limits, read_text
from hybrid.planner.gpus import GpuSurvey, survey_gpus
from hybrid.planner.topology import battery, caches, core_groups, efficiency_cpus, numa_nodes

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


def read_machine(
    root: Path = Path("/"), affinity: Collection[int] | None = None, gpus: GpuSurvey | None = None
) -> MachineFacts:
    """Read the facts of this machine as this process may use it.

    Args:
        root: Where /proc and /sys are looked for; tests hand in a fixture tree.
        affinity: CPU ids this process may run on; None asks the operating system.
        gpus: The GPUs; None looks for them below `root`.
    """
    limits = read_limits(root)
    cpuinfo = _cpuinfo(root)
    online = parse_cpu_list(read_text(root / _CPUS / "online") or "") or tuple(cpuinfo)
    cpu = _cpu_budget(_affinity() if affinity is None else affinity, online, limits)
    memory_bytes, memory_source = _memory(root, limits)
    groups = core_groups(root, cpu.cpus, cpuinfo)
    survey = survey_gpus(root) if gpus is None else gpus
    return MachineFacts(
        cpu=cpu,
        memory_limit_bytes=memory_bytes,
        memory_source=memory_source,
        model_name=_model_name(cpuinfo),
        architecture=platform.machine(),
        isa=_isa(cpuinfo, cpu.cpus),
        numa_nodes=numa_nodes(root, cpu.cpus),
        physical_cores=len(groups) or None,
        gpus=survey.gpus,
        core_groups=groups,
        efficiency_cpus=efficiency_cpus(root, cpu.cpus),
        caches=caches(root, cpu.cpus),
        gpu_note=survey.note,
        battery=battery(root),
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
        if len(fields) >= 2 and fields[0] == "MemTotal:" and (total_kib := parse_number(fields[1])):
            return total_kib * 1024, "host memory"
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "host memory (as the C library reports it)"


def _cpuinfo(root: Path) -> dict[int, dict[str, str]]:
    """/proc/cpuinfo as CPU id -> its lines."""
    processors: dict[int, dict[str, str]] = {}
    current: dict[str, str] = {}
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "processor" and (cpu := parse_number(value)) is not None:
            current = processors.setdefault(cpu, {})
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
