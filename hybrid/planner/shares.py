"""How models on one machine share its CPUs. Pure.

Fixed numbers first; then by what the next CPU gains each, where that was measured; evenly where it was not.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.guess import front_end_cpus
from hybrid.planner.layers import Choices

#: Name and version of a model.
Key = tuple[str, str]
#: Gains of a model of which nothing is known: whoever has least is next.
_FLAT: Final = (1.0,)


def key_of(model: ModelSettings) -> Key:
    """Return what a model is known by: each version is one of its own."""
    return model.name, model.version


def share_cpus(
    machine: MachineFacts,
    models: Sequence[ModelSettings],
    choices: Mapping[Key, Choices],
    curves: Mapping[Key, Sequence[float]],
    measured: Collection[Key] = (),
) -> dict[Key, int]:
    """CPUs per CPU model: what is fixed is taken off first, the others split the rest, at least 1 each.

    `curves[key][n - 1]` is what a model carries on n CPUs. They split by it only when all who share have one: against a
    guess a measurement would always lose or always win. Of a `measured` model whose workers are fixed the threads are
    open: it has its share as others have, of a CPU for each worker at least.
    """
    fixed = {key_of(m): taken for m in models if (taken := fixed_cpus(choices[key_of(m)], key_of(m) in measured))}
    open_keys = [key_of(m) for m in models if key_of(m) not in fixed]
    least = {key: choices[key].number("instances") or 1 for key in open_keys}
    rest = max(cpu_budget(machine, len(models)) - sum(fixed.values()), 0)
    known = all(key in curves for key in open_keys)
    return fixed | split_cpus({key: curves[key] if known else _FLAT for key in open_keys}, rest, least)


def cpu_budget(machine: MachineFacts, models: int) -> int:
    """CPUs for the workers of so many models; the front end keeps its own where there are enough."""
    usable = machine.cpu.usable
    return max(usable - front_end_cpus(usable), min(models, usable))


def fixed_cpus(choices: Choices, measured: bool = False) -> int | None:
    """CPUs of a model whose number of workers somebody fixed; None where it is open how many it takes.

    A `measured` one may get more threads for each of them; by rules it has one thread where nobody says otherwise.
    """
    instances, threads = choices.number("instances"), choices.number("threads_per_instance")
    if instances is None or (threads is None and measured):
        return None
    return instances * (threads or 1)


def split_cpus(
    curves: Mapping[Key, Sequence[float]], budget: int, least: Mapping[Key, int] | None = None
) -> dict[Key, int]:
    """Share `budget` CPUs by what the next ones gain each, relative to what a model carries on the fewest.

    These are `least` (1 each), whatever the budget is. A model that gains nothing from more leaves them to the others.
    The gain looked at is the best per CPU of any number of further ones: a model that needs two more for its next step
    must not be stuck before it. What nobody gains from goes round in turn.
    """
    fewest = {key: least[key] if least else 1 for key in curves}
    shares = dict(fewest)
    for _ in range(budget - sum(shares.values()) if shares else 0):
        best = max(shares, key=lambda key: (_next_gain(curves[key], shares[key], fewest[key]), -shares[key]))
        shares[best] += 1
    return shares


def _next_gain(curve: Sequence[float], have: int, fewest: int) -> float:
    now, first = (curve[min(count, len(curve)) - 1] for count in (have, fewest))
    steps = [(carried - now) / step for step, carried in enumerate(curve[have:], start=1)]
    return max(steps, default=0.0) / max(first, 1e-12)
