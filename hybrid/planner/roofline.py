"""What measured rates of a machine mean: where memory saturates, and how many rows one reading of the weights pays for.

Pure. Knows no file and no clock; `speed` measures.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from hybrid.facts import CacheFacts, MachineFacts
from hybrid.planner.measures import CoreRate

_GAIN: Final = 1.1  # cores that copy less than a tenth more than fewer cores did add no bandwidth
_TIMES_CACHE: Final = 4  # STREAM's rule: arrays four times the caches, or the caches are measured
_UNKNOWN_CACHE: Final = CacheFacts(3, "unified", 32 << 20, 1)
_LARGEST_BYTES: Final = 1 << 30
_MEMORY_SHARE: Final = 16


def core_counts(usable: int) -> tuple[int, ...]:
    """The numbers of cores that are measured: powers of two, and all."""
    counts = {usable}
    count = 1
    while count < usable:
        counts.add(count)
        count *= 2
    return tuple(sorted(counts))


def copy_bytes(machine: MachineFacts, cores: int) -> tuple[int, bool]:
    """Return the bytes of the array that each of `cores` copies, and whether all are as large as they should be.

    Together they are four times the caches that the cores reach: a last level cache each as long as there are as many,
    and what is private to each core. Memory bounds them: two such arrays take at most an eighth of the limit.
    """
    unified = [cache for cache in machine.caches if cache.kind != "instruction"] or [_UNKNOWN_CACHE]
    last = max(unified, key=lambda cache: cache.level)
    private = sum(cache.size_bytes for cache in unified if cache.level < last.level)
    wanted = _TIMES_CACHE * (last.size_bytes * min(cores, last.instances) + private * cores)
    most = min(_LARGEST_BYTES, machine.memory_limit_bytes // _MEMORY_SHARE)
    return max(1 << 20, min(wanted, most) // cores), wanted <= most


def saturation_cores(rates: Sequence[CoreRate]) -> int | None:
    """The first number of cores that copies less than 10 % more than the number before it; None if all gain."""
    for before, rate in pairwise(rates):
        if rate.copy_bytes_per_s < _GAIN * before.copy_bytes_per_s:
            return rate.cores
    return None


def ridge_rows(rate: CoreRate, bytes_per_weight: int = 4) -> float:
    """Rows (tokens of a text, else samples) in a batch for which multiplying takes as long as reading the weights.

    Each weight is read once per batch and used for one multiplication and one addition per row: T* = s * P / (2 * BW).
    It holds for weights that do not fit into the cache.
    """
    return bytes_per_weight * rate.matrix_flops / (2.0 * rate.copy_bytes_per_s)


def ridge_sentence(rates: Sequence[CoreRate]) -> str:
    """The ridge with all measured cores, in words; "" when nothing was measured."""
    if not rates:
        return ""
    rows, cores = ridge_rows(rates[-1]), rates[-1].cores
    with_cores = "one core" if cores == 1 else f"{cores} cores"
    return (
        f"with {with_cores}, a model larger than the caches takes as long for {max(1, round(rows))} rows or tokens as "
        f"for one: up to there it waits for its weights, from there on for arithmetic"
    )
