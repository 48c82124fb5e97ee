"""Warming up: which batches are run before a worker is ready, and when the largest is given up for want of memory.

Knows no engine and no wire: it is handed how to run a batch, and how much memory is taken and left.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from hybrid.errors import StartupError

#: Batches up to this are run at once; larger ones are reached by steps, each predicted from those before.
_AT_ONCE: Final = 64
_FIRST: Final = 8
_STEP: Final = 4
#: Other workers may warm up beside this one, and see the same memory free.
_MOST_OF_FREE: Final = 0.5
_GB: Final = 1e9


class Memory(NamedTuple):
    """Bytes that this process took at most so far, and bytes that the machine could still give."""

    peak_bytes: int
    free_bytes: int


def warm_safely(run: Callable[[int], object], top: int, memory: Callable[[], Memory]) -> None:
    """Run batches of growing size short of a large `top`, until it is known that `top` rows fit into memory.

    A batch size that somebody mistyped must fail here, with a line that says so, and not take the machine's memory.
    What limits a container is not looked at: there a worker may be killed, and the server tells.

    Raises:
        StartupError: They would not fit.
    """
    rows, before = 1, memory().peak_bytes
    following = _FIRST if top > _AT_ONCE else top
    while following < top:
        run(following)
        now = memory()
        per_row = (now.peak_bytes - before) / (following - rows)
        rows, before = following, now.peak_bytes
        following = min(rows * _STEP, top)
        needed = per_row * (following - rows)
        if needed > _MOST_OF_FREE * now.free_bytes:
            raise StartupError(
                f"max_batch {top}: does not fit into memory; {rows} rows took {now.peak_bytes / _GB:.1f} GB, "
                f"{following} would take {needed / _GB:.1f} GB more, and {now.free_bytes / _GB:.1f} GB are free"
            )
