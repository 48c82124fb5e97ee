"""Plans and machine facts as people and scripts read them. Pure: values in, text or plain dicts out.

The JSON keys are fixed, scripts outside read them; more may be added, none may be renamed. The text is plain on
purpose, no rich table: it goes to logs as often as to a terminal, and must read the same in both.
"""

import textwrap
from collections.abc import Sequence
from typing import Any, Final

from msgspec import structs

from hybrid.facts import MachineFacts
from hybrid.planner.explain_speed import cache_words, gpu_words, speed_json, speed_rows
from hybrid.planner.measures import MachineSpeed
from hybrid.planner.types import Plan, Profile

WIDTH: Final = 100
_ROWS: Final = (
    "device",
    "engine",
    "instances",
    "threads_per_instance",
    "cores",
    "batching",
    "max_batch",
    "max_wait_ms",
    "early_trigger",
    "static_length",
    "size_edges",
    "queue_rows",
    "queue_bytes",
    "preprocess_processes",
    "pipeline_depth",
)
_KEY_WIDTH: Final = max(map(len, _ROWS)) + 4
_VALUE_WIDTH: Final = 11


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan under its fixed keys, ready for a JSON encoder."""
    return {
        "model": plan.model,
        "version": plan.version,
        "device": plan.device,
        "engine": plan.engine,
        "instances": plan.instances,
        "threads_per_instance": plan.threads_per_instance,
        "max_batch": plan.max_batch,
        "max_wait_ms": plan.max_wait_ms,
        "early_trigger": plan.early_trigger,
        "batching": plan.batching,
        "queue_rows": plan.queue_rows,
        "queue_bytes": plan.queue_bytes,
        "preprocess_processes": plan.preprocess_processes,
        "cores": [list(cores) for cores in plan.cores],
        "size_edges": list(plan.size_edges),
        "pipeline_depth": plan.pipeline_depth,
        "static_length": plan.static_length,
        "alternatives": [structs.asdict(one) for one in plan.alternatives],
        "reasons": dict(plan.reasons),
    }


def machine_json(machine: MachineFacts, speed: MachineSpeed | None = None) -> dict[str, Any]:
    """The machine facts under their fixed keys, ready for a JSON encoder; `speed` is null when not measured."""
    return {
        "usable_cpus": machine.cpu.usable,
        "usable_cpus_reason": machine.cpu.reason,
        "cpu_ids": list(machine.cpu.cpus),
        "affinity_cpus": machine.cpu.affinity,
        "quota_cpus": machine.cpu.quota_cpus,
        "cpuset_cpus": machine.cpu.cpuset,
        "online_cpus": machine.cpu.online,
        "physical_cores": machine.physical_cores,
        "core_groups": [list(group) for group in machine.core_groups],
        "efficiency_cpus": list(machine.efficiency_cpus),
        "memory_limit_bytes": machine.memory_limit_bytes,
        "memory_source": machine.memory_source,
        "cpu_model": machine.model_name,
        "architecture": machine.architecture,
        "isa": list(machine.isa),
        "numa_nodes": machine.numa_nodes,
        "gpus": [structs.asdict(gpu) for gpu in machine.gpus],
        "gpu_note": machine.gpu_note,
        "caches": [structs.asdict(cache) for cache in machine.caches],
        "battery": machine.battery,
        "speed": None if speed is None else speed_json(speed),
    }


def plan_table(plans: Sequence[Plan], machine: MachineFacts, profile: Profile | None = None) -> str:
    """All plans with their reasons, below the machine they were made for; at most `WIDTH` columns."""
    blocks = [machine_table(machine)]
    if profile is not None:
        blocks[0] += "\n" + _line("profile", f"{profile.name}, {profile.why} ({profile.source})")
    blocks += [_plan_block(plan) for plan in plans]
    return "\n\n".join(blocks)


def machine_table(machine: MachineFacts, speed: MachineSpeed | None = None) -> str:
    """The facts that a plan depends on, one per line; with what was measured where it was."""
    cores = "" if machine.physical_cores is None else f", {_count(machine.physical_cores, 'physical core')}"
    slow = f", {len(machine.efficiency_cpus)} of them slow" if machine.efficiency_cpus else ""
    gpus = [gpu_words(gpu, readable_bytes(gpu.memory_total_bytes)) for gpu in machine.gpus]
    gpus += [machine.gpu_note] if machine.gpu_note else []
    lines = (
        ("cpus", f"{machine.cpu.usable} usable of {cpu_ranges(machine.cpu.cpus)}{cores}{slow}: {machine.cpu.reason}"),
        ("memory", f"{readable_bytes(machine.memory_limit_bytes)}, {machine.memory_source}"),
        ("processor", f"{machine.model_name} ({machine.architecture}), {_count(machine.numa_nodes, 'NUMA node')}"),
        ("instructions", ", ".join(machine.isa) or "unknown"),
        ("caches", ", ".join(cache_words(cache, readable_bytes(cache.size_bytes)) for cache in machine.caches)),
        ("gpus", ("" if machine.gpus else "none: ") + "; ".join(gpus) if gpus else "none"),
        *(() if speed is None else speed_rows(speed)),
    )
    return "\n".join(_line(key, text) for key, text in lines if text)


def readable_bytes(count: int) -> str:
    """A byte count with the unit that keeps it short, as in "23.5 GiB"."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def cpu_ranges(cpus: Sequence[int]) -> str:
    """CPU ids the way the kernel writes them, as in "0-3,8"."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][-1] + 1:
            runs[-1].append(cpu)
        else:
            runs.append([cpu])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _plan_block(plan: Plan) -> str:
    batch = f"batches of {'exactly' if plan.static else 'up to'} {plan.max_batch}"
    batch = "batching off" if plan.batching == "off" else batch
    wait = f"waiting up to {plan.max_wait_ms:g} ms" if plan.max_wait_ms else "no waiting"
    workers = f"{_count(plan.instances, 'worker')} x {_count(plan.threads_per_instance, 'thread')}"
    where = "on a simulated device" if plan.device == "simulated" else f"on {plan.device} with {plan.engine}"
    name = plan.model if plan.version == "1" else f"{plan.model} version {plan.version}"
    title = f"{name} {where}: {workers}, {batch}, {wait}"
    lines = [_fill(title)]
    for key in _ROWS:
        head = f"  {key:<{_KEY_WIDTH - 2}}{_value(plan, key):<{_VALUE_WIDTH}} "
        hanging = " " * (_KEY_WIDTH + _VALUE_WIDTH + 1)
        lines.append(_fill(plan.reasons[key], head, hanging))
    return "\n".join([*lines, *_alternatives(plan)])


def _alternatives(plan: Plan) -> list[str]:
    """What a measured plan was weighed against, the plan first."""
    if not plan.alternatives:
        return []
    head = f"  {'weighed against':<32}{'rows/s':>9}{'p50 ms':>9}{'p99 ms':>9}"
    lines = [head + "  batch times"]
    for one in plan.alternatives:
        engine = "" if one.engine == plan.engine else f" {one.engine}"
        shape = f"{one.instances} x {one.threads_per_instance}, batch {one.max_batch}{engine}"
        shape = f"{'>' if one.chosen else ' '} {shape}"
        times = f"{one.rps:>9.4g}{one.p50_ms:>9.3g}{one.p99_ms:>9.3g}"
        default = ", the default of frameworks" if one.is_default else ""
        lines.append(f"  {shape:<32}{times}  {'measured' if one.measured else 'predicted'}{default}")
    footnote = (
        "No load was run: rates, and latencies at them, are computed from batch times and samples of arrivals, which "
        "differ: a p99 may miss by some percent what it was to stay within. The last column says whether "
        "those were measured, with about as many rows on the same workers, or are predicted too. `hybrid tune MODEL` "
        "looks for the best by load tests, on a server of its own."
    )
    return [*lines, _fill(footnote, "  ", "  ")]


def _value(plan: Plan, key: str) -> str:
    if key == "cores":
        pinned = [cpu_ranges(cores) for cores in plan.cores if cores]
        text = " ".join(pinned) or "any"
        return text if len(text) <= _VALUE_WIDTH else f"{pinned[0]} .. {pinned[-1]}"
    if key == "size_edges":
        text = ",".join(map(str, plan.size_edges)) or "none"
        return text if len(text) <= _VALUE_WIDTH else f"{len(plan.size_edges)} edges"
    if key == "queue_bytes":
        return readable_bytes(plan.queue_bytes)
    value = getattr(plan, key)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _line(key: str, text: str) -> str:
    return _fill(text, f"{key:<14}", " " * 14)


def _fill(text: str, head: str = "", hanging: str = "") -> str:
    """Wrap, but not at hyphens: names of profiles and models have them and must stay whole."""
    return textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=hanging, break_on_hyphens=False)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
