"""The published way to split CPUs, as a baseline: dynamic programming over a table of times taken alone.

Packrat (ICML 2025) profiles l[threads][rows] of one instance by itself and takes, for a batch of B rows on T threads,
`opt[T][B] = min over (t, b) of max(opt[T-t][B-b], l[t][b])`. All T threads are used, because its recursion begins with
infinity for none. It does not ask which B: that is chosen here by the rule of half the objective.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Final

from msgspec import Struct

from hybrid.planner.measures import Measurer, Probe, Setting

#: Powers of two, as published.
ROWS: Final = (1, 2, 4, 8, 16, 32, 64)
Table = Mapping[tuple[int, int], float]
Parts = tuple[tuple[int, int], ...]


class Split(Struct, frozen=True):
    """How a batch is divided: (threads, rows) of each instance, and when the last of them is done by the table."""

    parts: Parts
    seconds: float


def solo_table(measurer: Measurer, engine: str, cpus: int) -> dict[tuple[int, int], float]:
    """Time one instance by itself for every (threads, rows)."""
    probes = [Probe(engine, 1, threads, rows) for threads in range(1, cpus + 1) for rows in ROWS]
    return {(one.probe.threads, one.probe.rows): one.seconds for one in measurer.time(probes)}


def best_split(table: Table, threads: int, rows: int) -> Split:
    """Divide `rows` over exactly `threads` threads."""
    sizes: Sequence[tuple[int, int]] = sorted(table)

    @cache
    def opt(left_threads: int, left_rows: int) -> tuple[float, Parts]:
        best: tuple[float, Parts] = (float("inf"), ())
        for t, b in sizes:
            if t == left_threads and b == left_rows:
                best = min(best, (table[t, b], ((t, b),)))
            elif t < left_threads and b < left_rows:
                rest, parts = opt(left_threads - t, left_rows - b)
                best = min(best, (max(rest, table[t, b]), ((t, b), *parts)))
        return best

    seconds, parts = opt(threads, rows)
    return Split(parts, seconds)


def setting(table: Table, engine: str, cpus: int, slo_s: float) -> Setting:
    """The setting of a server: of the batches that are done within half of the objective the one with most rows/s."""
    splits = {rows: best_split(table, cpus, rows) for rows in ROWS}
    fitting = {rows: split for rows, split in splits.items() if 2 * split.seconds <= slo_s} or {1: splits[1]}
    rows = max(fitting, key=lambda rows: rows / fitting[rows].seconds)
    parts = fitting[rows].parts
    return Setting(engine, len(parts), parts[0][0], max(b for _, b in parts))
