"""Every way in which a model may run on its share of the machine: the space that the planner searches. Pure.

Owns what is allowed and what fits into memory. Knows no time: what is good is for `search` to say.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from hybrid.planner.measures import EngineProfile, MemoryLine, Setting, Timing
from hybrid.planner.types import Objective

MEMORY_SHARE: Final = 0.85
#: Headroom is for what was not measured, and most of that is in the rows. 15 % of the whole would be a third of them
#: where weights and overhead fill half of it; so no more than a fifth of what rows can have is kept free, but always
#: 8 % of the whole, as overhead may move a little too.
_ROWS_SHARE: Final = 0.80
_MOST_SHARE: Final = 0.92
#: Not only powers of two: between 8 and 16 lies half of what a tight objective leaves to choose.
_BATCHES: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
_FINE_BATCHES: Final = (
    *range(1, 33),
    *range(34, 65, 2),
    *range(68, 129, 4),
    *range(136, 257, 8),
    *range(272, 513, 16),
)
_FEW_CPUS: Final = (4, 8)
_COUNTS: Final = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 80, 96, 128)
_DEVICE_INSTANCES: Final = 4
_NO_LIMIT: Final = 1 << 30


class SearchQuestion(Struct, frozen=True):
    """What is to be found: the best setting of one model on `cpus` CPUs, or on the device of its engines.

    `spare_cpus` are further CPUs that no worker gets: they are there for what is done beside the workers.
    `memory_bytes` is for all instances together. `slo_s` bounds the p99 latency; None leaves the bound to the search.
    `instances`, `threads` and `max_batch` are set where somebody fixed them. The timings that stand in `engines` count
    as measured.
    """

    engines: tuple[EngineProfile, ...]
    cpus: int
    memory_bytes: int
    objective: Objective = "latency"
    slo_s: float | None = None
    largest_batch: int | None = None
    instances: int | None = None
    threads: int | None = None
    max_batch: int | None = None
    quantile: float = 0.99
    spare_cpus: int = 0


def timings_of(question: SearchQuestion) -> tuple[Timing, ...]:
    """What its engines bring."""
    return tuple(timing for engine in question.engines for timing in engine.timings)


def space(question: SearchQuestion) -> tuple[Setting, ...]:
    """All settings, without those that memory or the engine forbids."""
    return tuple(
        Setting(engine.engine, instances, threads, rows, device=engine.device)
        for engine in question.engines
        for instances, threads in pairs(question, engine)
        for rows in batches(question, engine, instances)
    )


def pairs(question: SearchQuestion, engine: EngineProfile) -> tuple[tuple[int, int], ...]:
    """Allowed (instances, threads). On a CPU their product may be less than the share: cores may stay idle."""
    most = _most_instances(question, engine)
    if engine.device != "cpu":
        counts = (question.instances,) if question.instances else range(1, most + 1)
        return tuple((count, question.threads or 1) for count in counts)
    return tuple(sorted(set(_cpu_pairs(question, most))))


def batches(question: SearchQuestion, engine: EngineProfile, instances: int) -> tuple[int, ...]:
    """Largest batches to choose from, rising; at least one."""
    if engine.fixed_rows is not None:
        return (engine.fixed_rows,)
    if engine.batching_fault:
        return (1,)
    limit = min(question.largest_batch or _NO_LIMIT, rows_in_memory(engine.memory, question.memory_bytes, instances))
    if question.max_batch is not None:
        return (question.max_batch,)
    fitting = [rows for rows in _sizes(question, engine) if rows <= limit]
    if fitting and fitting[-1] < limit and limit < 2 * fitting[-1] and limit <= _FINE_BATCHES[-1]:
        fitting.append(limit)  # a memory limit between two sizes: the last rows often pay
    return tuple(fitting) or (1,)


def _sizes(question: SearchQuestion, engine: EngineProfile) -> tuple[int, ...]:
    """Fine steps where there are few shapes to choose from, but not on machines where each time taken is felt."""
    if engine.device != "cpu":
        return _FINE_BATCHES
    few = _FEW_CPUS[0] <= question.cpus <= _FEW_CPUS[1]
    return tuple(rows for rows in _FINE_BATCHES if rows <= _BATCHES[-1]) if few else _BATCHES


def usable_bytes(memory_bytes: float, base_bytes: int) -> int:
    """How much of its memory an instance may fill whose weights and overhead take `base_bytes`: 85 % to 92 %."""
    beside = base_bytes + _ROWS_SHARE * (memory_bytes - base_bytes)
    return int(max(MEMORY_SHARE * memory_bytes, min(_MOST_SHARE * memory_bytes, beside)))


def rows_in_memory(memory: MemoryLine | None, memory_bytes: int, instances: int) -> int:
    """Rows per batch that fit with each of `instances` and leave the headroom; 0 when not even the weights do."""
    if memory is None:
        return _NO_LIMIT
    free = usable_bytes(memory_bytes / instances, memory.base_bytes) - memory.base_bytes
    if free < 0:
        return 0
    return min(_NO_LIMIT, free // memory.per_row_bytes) if memory.per_row_bytes > 0 else _NO_LIMIT


def _most_instances(question: SearchQuestion, engine: EngineProfile) -> int:
    # A simulated device is one whole; a second worker on it would be a second device.
    most = question.cpus if engine.device == "cpu" else 1 if engine.engine == "simulated" else _DEVICE_INSTANCES
    fitting = (count for count in range(most, 1, -1) if rows_in_memory(engine.memory, question.memory_bytes, count))
    return next(fitting, 1)


def _cpu_pairs(question: SearchQuestion, most: int) -> Iterator[tuple[int, int]]:
    cpus = question.cpus
    fixed = question.threads
    for threads in [fixed] if fixed else sorted({*(count for count in _COUNTS if count <= cpus), cpus}):
        fitting = max(1, min(most, cpus // threads))
        if question.instances is not None:
            if question.instances * threads <= cpus or fixed or threads == 1:
                yield question.instances, threads
            continue
        for instances in {*(count for count in _COUNTS if count <= fitting), fitting}:
            yield instances, threads
