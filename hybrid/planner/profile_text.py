"""A profile as the text of its file: numbers with their reasons as comments, and the machine they come from. Pure."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import convert, structs

from hybrid.facts import GpuFacts, MachineFacts
from hybrid.planner.types import Match, Plan, PlanOverrides

_WIDTH: Final = 100
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
#: The numbers of a plan that are worth keeping; the others follow from them.
_KEPT: Final = (
    "engine",
    "instances",
    "threads_per_instance",
    "max_batch",
    "max_wait_ms",
    "preprocess_processes",
    "pipeline_depth",
)
#: What the file says about a number that nobody has fixed yet: an example, and what it means.
_EXAMPLES: Final[dict[str, tuple[object, str]]] = {
    "engine": ("onnxruntime", "or openvino, or torch; the model's file must suit it"),
    "instances": (2, "worker processes per model"),
    "threads_per_instance": (1, "threads that compute in each worker; times instances, not above the usable CPUs"),
    "max_batch": (8, "most rows of a batch"),
    "max_wait_ms": (0, "longest wait of the oldest row for a fuller batch; 0 takes what is there"),
    "early_trigger": (8, "a batch leaves when this many rows wait, whatever the wait"),
    "batching": ("dynamic", "or static, or off"),
    "queue_rows": (1024, "rows that may wait before requests are refused with 429"),
    "queue_bytes": (268_435_456, "their bytes"),
    "preprocess_processes": (1, "processes that decode images and tokenise texts"),
    "pipeline_depth": (1, "batches that lie in a worker at once; 2 keeps a device busy between two"),
    "pin": (True, "whether workers keep to cores of their own"),
}


def profile_text(
    name: str,
    overrides: PlanOverrides,
    machine: MachineFacts,
    why: str,
    model: str = "",
    reasons: Mapping[str, str] | None = None,
) -> str:
    """The whole file. Without any number all of them stand there as comments, to be switched on."""
    lines = [*_comment(f"Profile {name}. {why}"), *_comment(f"Made on: {machine_line(machine)}."), ""]
    lines.append(f"description = {toml_value(_first_line(why))}")
    lines += ["", *_comment("Taken by name only. With this table `auto` takes it on machines like this one:")]
    lines += ["# [match]", *(f"# {line}" for line in match_lines(match_of(machine)))]
    lines += ["", f"[model.{_key(model)}]" if model else "[plan]"]
    fixed = {key: value for key, value in structs.asdict(overrides).items() if value is not None}
    for key, value in fixed.items():
        lines += _comment((reasons or {}).get(key, ""))
        lines.append(f"{key} = {toml_value(value)}")
    if not fixed:
        lines += _comment("Nothing is fixed yet. Whatever is left out here is the planner's to find.")
        lines += [f"# {key} = {toml_value(example)}  # {meaning}" for key, (example, meaning) in _EXAMPLES.items()]
    return "\n".join(lines) + "\n"


def overrides_of(plan: Plan) -> PlanOverrides:
    """The numbers of a plan that a profile keeps."""
    values = {key: getattr(plan, key) for key in _KEPT}
    if plan.engine == "simulated":
        del values["engine"]
    if not plan.preprocess_processes:  # the model has no such step
        del values["preprocess_processes"]
    return convert(values, PlanOverrides)


def match_of(machine: MachineFacts) -> Match:
    """Conditions that hold on machines like this one: as many CPUs, the same instructions, the same GPU."""
    gpu = max(machine.gpus, key=_gpu_weight, default=None)
    return Match(
        usable_cpus_min=machine.cpu.usable,
        usable_cpus_max=machine.cpu.usable,
        isa=machine.isa[-1:],  # the list ends with the newest
        architecture=machine.architecture or None,
        numa_nodes_min=machine.numa_nodes if machine.numa_nodes > 1 else None,
        battery=machine.battery,
        gpu_kind=convert(gpu.kind, Match.__annotations__["gpu_kind"]) if gpu else None,
        gpu_mig=gpu.mig if gpu else None,
        gpu_memory_bytes_min=gpu.memory_total_bytes or None if gpu else None,
        gpu_memory_bytes_max=gpu.memory_total_bytes or None if gpu else None,
    )


def match_lines(match: Match) -> Iterator[str]:
    """The conditions that are set, as lines of TOML."""
    for key, value in structs.asdict(match).items():
        if value not in (None, ()):
            yield f"{key} = {toml_value(value)}"


def machine_line(machine: MachineFacts) -> str:
    """The machine in one line."""
    gpus = [f"{gpu.name} with {gpu.memory_total_bytes / (1 << 30):.1f} GiB" for gpu in machine.gpus]
    parts = (
        machine.model_name or "unknown processor",
        f"{machine.cpu.usable} usable CPUs ({machine.cpu.reason})",
        f"{machine.memory_limit_bytes / (1 << 30):.1f} GiB of memory",
        *gpus,
    )
    return ", ".join(parts)


def toml_value(value: object) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        # JSON's escapes are TOML's, but for DEL, which JSON lets pass
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    return repr(value)


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else toml_value(name)


def _gpu_weight(gpu: GpuFacts) -> int:
    return gpu.memory_total_bytes


def _comment(text: str) -> list[str]:
    printable = "".join(c if c.isprintable() else " " for c in text)
    return textwrap.wrap(printable, _WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
