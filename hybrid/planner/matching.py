"""Which machines a profile is for: its conditions held against the facts, one by one. Pure.

Owns the meaning of `[match]`, its words and what "most specific" means. Knows no file.
"""

from collections.abc import Callable
from typing import Final

from msgspec import Struct

from hybrid.facts import GpuFacts, MachineFacts
from hybrid.planner.types import Match

_GIB: Final = 1 << 30


class Condition(Struct, frozen=True):
    """One condition of a profile as people read it: what it asks for, whether it holds, what is here instead."""

    text: str
    holds: bool
    here: str


def conditions(match: Match, machine: MachineFacts) -> tuple[Condition, ...]:
    """Every condition that is set. Those about a GPU count as one: they must hold of the same GPU."""
    cpu, memory = machine.cpu.usable, machine.memory_limit_bytes
    slow, here_isa = len(machine.efficiency_cpus), ", ".join(machine.isa) or "unknown"
    cpus = match.usable_cpus_min, match.usable_cpus_max
    limits = match.memory_limit_bytes_min, match.memory_limit_bytes_max
    nodes, arch = match.numa_nodes_min, match.architecture
    table = (
        (any(cpus), f"usable CPUs: {_span(*cpus)}", _within(cpu, *cpus), str(cpu)),
        (any(limits), f"memory: {_span(*limits, _gib)}", _within(memory, *limits), _gib(memory)),
        (nodes, f"NUMA nodes: at least {nodes}", machine.numa_nodes >= (nodes or 0), str(machine.numa_nodes)),
        *((True, f"instructions: {name}", name in machine.isa, here_isa) for name in match.isa),
        (arch is not None, f"architecture: {arch}", machine.architecture == arch, machine.architecture or "unknown"),
        _flag("efficiency cores", match.efficiency_cpus, slow > 0),
        _flag("battery", match.battery, machine.battery),
        _gpu(match, machine.gpus),
    )
    return tuple(Condition(text, bool(holds), here) for wanted, text, holds, here in table if wanted)


def matches(match: Match, machine: MachineFacts) -> bool:
    """Whether every condition that is set holds on this machine."""
    return all(condition.holds for condition in conditions(match, machine))


def specificity(match: Match) -> tuple[bool, int, int]:
    """Of two profiles that fit, the larger one is taken: by GPU, then facts asked about, then bounds set.

    A GPU comes first however many conditions there are about the CPUs: somebody put it in to have it used. A range is
    one fact, or profiles with two loose bounds would beat one that names the instruction set.
    """
    facts = (
        match.usable_cpus_min or match.usable_cpus_max,
        match.memory_limit_bytes_min or match.memory_limit_bytes_max,
        match.gpu_memory_bytes_min or match.gpu_memory_bytes_max,
        match.numa_nodes_min,
        match.architecture,
        *match.isa,
    )
    flags = (match.efficiency_cpus, match.battery, match.gpu_kind, match.gpu_mig, match.gpu_integrated)
    bounds = (match.usable_cpus_max, match.memory_limit_bytes_max, match.gpu_memory_bytes_max)
    named = sum(fact is not None for fact in (*facts, *flags))
    return _asks_for_gpu(match), named, sum(bound is not None for bound in bounds)


def _asks_for_gpu(match: Match) -> bool:
    bounds = match.gpu_memory_bytes_min, match.gpu_memory_bytes_max
    return any(value is not None for value in (*bounds, match.gpu_kind, match.gpu_mig, match.gpu_integrated))


def _gpu(match: Match, gpus: tuple[GpuFacts, ...]) -> tuple[object, str, object, str]:
    bounds = match.gpu_memory_bytes_min, match.gpu_memory_bytes_max
    holds = any(
        _within(gpu.memory_total_bytes, *bounds)
        and match.gpu_kind in (None, gpu.kind)
        and match.gpu_mig in (None, gpu.mig)
        and match.gpu_integrated in (None, gpu.integrated)
        for gpu in gpus
    )
    words: list[str] = [match.gpu_kind or "any kind"]
    words += [] if match.gpu_mig is None else ["a MIG slice" if match.gpu_mig else "no MIG slice"]
    words += [] if match.gpu_integrated is None else ["integrated" if match.gpu_integrated else "with its own memory"]
    words += [_span(*bounds, _gib)] if any(bounds) else []
    here = "; ".join(f"{gpu.name}, {gpu.kind}, {_gib(gpu.memory_total_bytes)}" for gpu in gpus)
    return _asks_for_gpu(match), f"a GPU: {', '.join(words)}", holds, here or "none"


def _flag(name: str, wanted: bool | None, here: bool) -> tuple[object, str, object, str]:
    return wanted is not None, f"{name}: {'yes' if wanted else 'no'}", here == wanted, "yes" if here else "no"


def _within(value: int, low: int | None, high: int | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)


def _span(low: int | None, high: int | None, shown: Callable[[int], str] = str) -> str:
    if low is None or high is None:
        return f"at most {shown(high or 0)}" if low is None else f"at least {shown(low)}"
    return f"{shown(low)} to {shown(high)}"


def _gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
