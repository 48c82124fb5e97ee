"""Warming up with a large batch: smaller ones show first whether it fits into memory.

Knows no engine and no wire: it is handed how to run a batch, and how much memory is taken and left.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from hybrid.errors import StartupError
from hybrid.workers.resident import forget_peak, free_bytes, peak_bytes

#: Batches up to this are taken to be no risk; larger ones are reached by steps, each predicted from those before.
HARMLESS_ROWS: Final = 64
_FIRST: Final = 8
_STEP: Final = 4
_GB: Final = 1e9


class Memory(NamedTuple):
    """Bytes that this process took at most so far, and bytes that it may still take."""

    peak_bytes: int
    free_bytes: int


def memory_now(share: float) -> Memory:
    """Return the memory of this process; `share` of what the machine has left is for it."""
    return Memory(peak_bytes(), int(share * free_bytes()))


def warm_safely(run: Callable[[int], object], top: int, memory: Callable[[], Memory]) -> None:
    """Run batches of growing size short of a large `top`, until it is known that `top` rows fit into memory.

    A batch size that somebody mistyped must fail here, with a line that says so, and not take the machine's memory.
    What a container may take is not looked at: there the worker is killed, and the server tells.

    Raises:
        StartupError: They would not fit.
    """
    if top <= HARMLESS_ROWS:
        return
    forget_peak()  # loading may have taken more than it left, which would hide what the first steps take
    rows, before = 0, memory().peak_bytes
    following = _FIRST
    while following < top:
        run(following)
        now = memory()
        per_row = (now.peak_bytes - before) / (following - rows)
        rows, before = following, now.peak_bytes
        following = min(rows * _STEP, top)
        needed = per_row * (following - rows)
        if needed > now.free_bytes:
            raise StartupError(
                f"max_batch {top}: does not fit into memory; {rows} rows took {now.peak_bytes / _GB:.1f} GB, "
                f"{following} would take {needed / _GB:.1f} GB more, and {now.free_bytes / _GB:.1f} GB are free for it"
            )
