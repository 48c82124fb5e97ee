"""How the machine is built, as /sys tells: physical cores, kinds of cores, NUMA nodes, caches, a battery.

Owns these folders of /sys. Knows no limit and no budget; what the kernel does not show is empty or None.
"""

from pathlib import Path
from typing import Final

from hybrid.facts import CacheFacts
from hybrid.planner.cgroups import parse_cpu_list, parse_number, read_text

_CPUS: Final = "sys/devices/system/cpu"
_NODES: Final = "sys/devices/system/node"
_POWER: Final = "sys/class/power_supply"
_SLOW_CORE_CAPACITY: Final = 0.75  # a core under this share of the largest cpu_capacity counts as an efficiency core
_UNITS: Final = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def numa_nodes(root: Path, cpus: tuple[int, ...]) -> int:
    """Nodes that hold a usable CPU; memory-only nodes (HBM, CXL) do not count. At least 1."""
    nodes = 0
    for folder in _numbered(root / _NODES, "node"):
        held = parse_cpu_list(read_text(folder / "cpulist") or "")
        nodes += bool(held and set(held) & set(cpus))
    return max(1, nodes)


def core_groups(root: Path, cpus: tuple[int, ...], cpuinfo: dict[int, dict[str, str]]) -> tuple[tuple[int, ...], ...]:
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


def efficiency_cpus(root: Path, cpus: tuple[int, ...]) -> tuple[int, ...]:
    """The slow cores of a machine that mixes two kinds; empty where all are equal or nothing says otherwise."""
    fast = parse_cpu_list(read_text(root / "sys/devices/cpu_core/cpus") or "")  # Intel names both kinds
    slow = parse_cpu_list(read_text(root / "sys/devices/cpu_atom/cpus") or "")
    if fast and slow:
        return tuple(cpu for cpu in cpus if cpu in slow)
    capacities = {cpu: read_text(root / _CPUS / f"cpu{cpu}" / "cpu_capacity") or "" for cpu in cpus}
    numbers = {cpu: number for cpu, text in capacities.items() if (number := parse_number(text)) is not None}
    largest = max(numbers.values(), default=0)
    return tuple(cpu for cpu in cpus if numbers.get(cpu, largest) < _SLOW_CORE_CAPACITY * largest)


def battery(root: Path) -> bool:
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


def caches(root: Path, cpus: tuple[int, ...]) -> tuple[CacheFacts, ...]:
    """The caches of the usable CPUs, small ones first; empty when they are not visible.

    Where kinds of cores have caches of different size, the size is that of the first usable CPU.
    """
    sharers: dict[tuple[int, str], set[str]] = {}
    sizes: dict[tuple[int, str], int] = {}
    for cpu in cpus:
        for folder in _numbered(root / _CPUS / f"cpu{cpu}" / "cache", "index"):
            level, kind = parse_number(read_text(folder / "level") or ""), (read_text(folder / "type") or "").lower()
            size_bytes = _size_bytes(read_text(folder / "size") or "")
            if level is not None and kind and size_bytes:
                key = (level, kind)
                sizes.setdefault(key, size_bytes)
                sharers.setdefault(key, set()).add(read_text(folder / "shared_cpu_list") or str(cpu))
    return tuple(CacheFacts(*key, sizes[key], len(sharers[key])) for key in sorted(sizes))


def _size_bytes(text: str) -> int:
    """A size as the kernel writes it, "32768K"; 0 for anything else."""
    number, unit = (text[:-1], text[-1:]) if text[-1:] in _UNITS else (text, "")
    return (parse_number(number) or 0) * _UNITS.get(unit, 1)


def _numbered(folder: Path, prefix: str) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name.removeprefix(prefix).isdecimal())
    except OSError:
        return []
