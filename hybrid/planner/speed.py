"""How fast this machine is right now: the spin probe and the roofline, measured in child processes.

Owns the order and the time it takes. Nothing is cached, on purpose: what neighbours leave over changes by the minute.
"""

import time
from typing import Final

import msgspec

from hybrid.facts import MachineFacts
from hybrid.planner.lines import children
from hybrid.planner.measures import CoreRate, MachineSpeed, RooflineJob, RooflineRun
from hybrid.planner.placement import placement_order
from hybrid.planner.roofline import copy_bytes, core_counts
from hybrid.planner.spin import measure_spin, spin_counts

BUDGET_S: Final = 8.0
_PROGRAM: Final = "hybrid.planner.roofline_child"
_WINDOW_S: Final = 0.25


def measure_speed(machine: MachineFacts, budget_s: float = BUDGET_S) -> MachineSpeed:
    """Measure; takes about 2 s on 2 cores and at most `budget_s` for the roofline plus a second or two for the rest.

    What could not be measured is left out, and `MachineSpeed.note` says so.
    """
    began = time.monotonic()
    spins = measure_spin(spin_counts(machine.cpu.usable))
    rates, note = _rates(machine, max(1.0, budget_s - (time.monotonic() - began)))
    notes = [note] if spins else ["no busy processes could be started", note]
    share = spins[-1].received_cpus / spins[-1].busy if spins else 0.0
    return MachineSpeed(share, rates, spins, "; ".join(filter(None, notes)))


def _rates(machine: MachineFacts, limit_s: float) -> tuple[tuple[CoreRate, ...], str]:
    """Rates of all numbers of cores that were done in time, and what is wrong with them ("" for nothing)."""
    order, counts = placement_order(machine), core_counts(machine.cpu.usable)
    sizes = [copy_bytes(machine, count) for count in counts]
    runs = tuple(RooflineRun(order[:count], size) for count, (size, _) in zip(counts, sizes, strict=True))
    program = children(_PROGRAM, 1, limit_s)
    if program is None:
        return (), "no process could be started"
    rates: list[CoreRate] = []
    with program:
        job = RooflineJob(runs, min(_WINDOW_S, limit_s / (4 * len(runs))))
        program.tell(msgspec.json.encode(job).decode(), 1)
        for _ in counts:
            (line,) = program.hear(1)
            if line is None:
                break
            rates.append(msgspec.json.decode(line, type=CoreRate))
    done = tuple(rate for rate in rates if rate.copy_bytes_per_s > 0)
    if len(done) < len(counts):
        return done, f"{len(counts) - len(done)} of {len(counts)} numbers of cores could not be measured in time"
    if not all(enough for _, enough in sizes):
        return done, "the arrays copied are smaller than four times the caches, so copying may seem too fast"
    return done, ""
