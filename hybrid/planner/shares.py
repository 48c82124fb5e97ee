"""How models on one machine share its CPUs. Pure.

Fixed numbers first; then by what the next CPU gains each, where that was measured; evenly where it was not.
"""

from collections.abc import Mapping, Sequence

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.guess import front_end_cpus
from hybrid.planner.layers import Choices

#: Name and version of a model.
Key = tuple[str, str]


def key_of(model: ModelSettings) -> Key:
    """Return what a model is known by: each version is one of its own."""
    return model.name, model.version


def share_cpus(
    machine: MachineFacts,
    models: Sequence[ModelSettings],
    choices: Mapping[Key, Choices],
    curves: Mapping[Key, Sequence[float]],
) -> dict[Key, int]:
    """CPUs per CPU model: what is fixed is taken off first, the others split the rest, at least 1 each.

    `curves[key][n - 1]` is what a model carries on n CPUs. They split by it only when all who share have one: against a
    guess a measurement would always lose or always win.
    """
    fixed = {key_of(m): taken for m in models if (taken := fixed_cpus(choices[key_of(m)])) is not None}
    open_keys = [key_of(m) for m in models if key_of(m) not in fixed]
    rest = max(cpu_budget(machine, len(models)) - sum(fixed.values()), 0)
    if open_keys and all(key in curves for key in open_keys):
        shares = split_cpus({key: curves[key] for key in open_keys}, rest)
    else:
        shares = {
            key: max(1, rest // len(open_keys) + (position < rest % len(open_keys)))
            for position, key in enumerate(open_keys)
        }
    return {key_of(m): fixed.get(key_of(m)) or shares[key_of(m)] for m in models}


def cpu_budget(machine: MachineFacts, models: int) -> int:
    """CPUs for the workers of so many models; the front end keeps its own where there are enough."""
    usable = machine.cpu.usable
    return max(usable - front_end_cpus(usable), min(models, usable))


def fixed_cpus(choices: Choices) -> int | None:
    """CPUs of a model whose number of workers somebody fixed."""
    instances = choices.number("instances")
    return None if instances is None else instances * (choices.number("threads_per_instance") or 1)


def split_cpus(curves: Mapping[Key, Sequence[float]], budget: int) -> dict[Key, int]:
    """Share `budget` CPUs by what the next ones gain each, relative to what a model carries on one; at least 1 each.

    A model that gains nothing from more leaves them to the others. The gain looked at is the best per CPU of any number
    of further ones: a model that needs two more for its next step must not be stuck before it. What nobody gains from
    goes round in turn.
    """
    shares = dict.fromkeys(curves, 1)
    for _ in range(budget - len(shares)):
        shares[max(shares, key=lambda key: (_next_gain(curves[key], shares[key]), -shares[key]))] += 1
    return shares


def _next_gain(curve: Sequence[float], have: int) -> float:
    now = curve[min(have, len(curve)) - 1]
    steps = [(carried - now) / step for step, carried in enumerate(curve[have:], start=1)]
    return max(steps, default=0.0) / max(curve[0], 1e-12)
