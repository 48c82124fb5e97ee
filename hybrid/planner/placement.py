"""Which worker computes on which CPUs. Pure; hands out each CPU at most once, or pins nobody."""

from collections.abc import Sequence

from msgspec import Struct

from hybrid.facts import MachineFacts

Cores = tuple[tuple[int, ...], ...]


class Demand(Struct, frozen=True):
    """What one model asks for. `pin_reason` says who switched pinning off, if somebody did."""

    model: str
    on_cpu: bool
    instances: int
    threads: int
    pin: bool
    pin_reason: str = ""


def place(machine: MachineFacts, demands: Sequence[Demand]) -> list[tuple[Cores, str]]:
    """Return cores and the reason for them, one pair per demand in the same order.

    Cores are disjoint over all models. When they cannot be (more threads than usable CPUs), or when a quota allows
    less CPU time than there are CPUs, no model is pinned: two workers tied to one core wait for each other while others
    idle, and under a quota the kernel must be free to use any CPU that happens to be idle.
    """
    needed = sum(demand.instances * demand.threads for demand in demands if demand.on_cpu)
    usable, ids = machine.cpu.usable, placement_order(machine)
    free = iter(ids)
    placed: list[tuple[Cores, str]] = []
    for demand in demands:
        nobody: Cores = ((),) * demand.instances
        if not demand.on_cpu:
            placed.append((nobody, "Not pinned: the device is not a CPU of this machine."))
        elif not demand.pin:
            placed.append((nobody, f"Not pinned. {demand.pin_reason}".strip()))
        elif usable < len(ids):
            why = f"Not pinned: the quota allows {usable} of {len(ids)} CPUs at a time and the kernel picks idle ones."
            placed.append((nobody, why))
        elif needed > usable:
            why = f"Not pinned: {needed} threads of all models on {usable} usable CPUs would overlap."
            placed.append((nobody, why))
        else:
            cores = tuple(tuple(next(free) for _ in range(demand.threads)) for _ in range(demand.instances))
            placed.append((cores, "Each worker keeps cores of its own, which no other worker uses."))
    return placed


def placement_order(machine: MachineFacts) -> tuple[int, ...]:
    """Allowed CPU ids in the order in which workers take them.

    Fast cores before slow ones, and one thread of each physical core before the second of any; the front end, which
    takes what is left, ends up on the least valuable ones.
    """
    sibling_rank = {cpu: rank for group in machine.core_groups for rank, cpu in enumerate(group)}
    slow = frozenset(machine.efficiency_cpus)
    return tuple(sorted(machine.cpu.cpus, key=lambda cpu: (cpu in slow, sibling_rank.get(cpu, 0), cpu)))
