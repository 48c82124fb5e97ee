"""From model settings to plans on this very machine: reads the machine, the profile and the sizes of model files.

Owns nothing; it is the edge around the pure `plan`, shared by `hybrid plan` and `hybrid serve` so that the plan that is
shown is the plan that is served.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.machine import read_machine
from hybrid.planner.measures import ModelProfile
from hybrid.planner.plan import first_plan
from hybrid.planner.profiles import AUTO, load_profile
from hybrid.planner.shares import Key
from hybrid.planner.types import Objective, Plan, PlanOverrides, Profile

#: Says what was measured of models on a machine, for an objective, by name and version; may measure it first.
Measure = Callable[[MachineFacts, Sequence[ModelSettings], Objective], Mapping[Key, ModelProfile]]


class Prepared(Struct, frozen=True):
    """The plans, in the order of the models, and what they were made from."""

    machine: MachineFacts
    profile: Profile | None
    plans: tuple[Plan, ...]


def plan_here(
    models: Sequence[ModelSettings],
    profile: str | Path = AUTO,
    flags: PlanOverrides | None = None,
    objective: Objective = "latency",
    measure: Measure | None = None,
) -> Prepared:
    """Plan `models` for this machine and process, by what `measure` knows of them.

    It is asked after a plan by rules has been made: what contradicts itself is refused before time is spent.

    Raises:
        ConfigError: the profile is unknown or wrong, or overrides contradict each other.
    """
    machine = read_machine()
    loaded = load_profile(profile, machine)
    sizes: dict[str, int] = {}
    for model in models:
        if model.file:  # of several versions the largest counts: too few workers are better than too much memory
            sizes[model.name] = max(sizes.get(model.name, 0), file_bytes(Path(model.file)))
    plans = first_plan(machine, models, loaded, flags, sizes, objective)
    measured = measure(machine, models, objective) if measure is not None else {}
    if measured:
        plans = first_plan(machine, models, loaded, flags, sizes, objective, measured)
    return Prepared(machine, loaded, tuple(plan if plan.alternatives else _by_rules(plan) for plan in plans))


def _by_rules(plan: Plan) -> Plan:
    """Say so of a plan that no times were weighed for, whoever did not want them or could not take them."""
    reason = f"{plan.reasons['device']} Not measured: the numbers come from rules."
    return replace(plan, reasons=plan.reasons | {"device": reason})


def file_bytes(path: Path) -> int:
    """Size of a model file with its weights beside it.

    0 when there is none: the worker that loads it reports it with the engine's own words.
    """
    try:
        return sum(file.stat().st_size for file in (path, *weight_files(path)))
    except OSError:
        return 0


def weight_files(path: Path) -> tuple[Path, ...]:
    """Return the files beside a model that hold its weights, by name.

    `model.onnx.data` and `model.onnx_data` of a `model.onnx`, `model.bin` of a `model.xml`.
    """
    binary = path.with_suffix(".bin") if path.suffix.lower() == ".xml" else None
    try:
        beside = sorted(path.parent.iterdir())
    except OSError:
        return ()
    return tuple(
        other
        for other in beside
        if other != path and (other == binary or (other.name.startswith(path.name) and other.name.endswith("data")))
    )
