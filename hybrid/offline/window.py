"""The rows between input and output: how many may be open, which of them run together, and in which order they leave.

Rows enter by index and leave by index, without a gap. In between they are free: rows of like length are run together,
so that little is computed for padding. What is open is bounded in rows and bytes, and nothing else is kept. Pure.
"""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct

from hybrid.offline.rows import Outcome, ReadyRow


class Limits(Struct, frozen=True):
    """Most rows and bytes that are open; rows of a full batch; rows that are sorted by length before they are cut."""

    open_rows: int
    open_bytes: int
    batch_rows: int
    sorted_rows: int


class Hurry(Enum):
    """What may be cut into batches."""

    NONE = "none"  # full batches, of rows that were sorted together in full
    SOME = "some"  # full batches, of whatever is there: nothing more can come in before something leaves
    ALL = "all"  # whatever is there, also less than a batch: nothing more comes for now


class Window:
    """Open rows, from `admit` to `take_done`. A row that is not preprocessed (a fault) may be settled at once."""

    def __init__(self, limits: Limits, start: int = 0) -> None:
        self.limits = limits
        self.open_n = 0
        self.open_bytes = 0
        self.ready_n = 0
        self._next_in = start
        self._next_out = start
        self._nbytes: dict[int, int] = {}
        self._ready: dict[object, list[ReadyRow]] = {}
        self._done: dict[int, Outcome] = {}

    @property
    def room(self) -> bool:
        """Whether more rows may enter. A single row may be larger than the bound on bytes."""
        return self.open_n < self.limits.open_rows and self.open_bytes < self.limits.open_bytes

    def admit(self, index: int, nbytes: int) -> None:
        """Take in the next row; ValueError when it is not the next one."""
        if index != self._next_in:
            raise ValueError(f"row {index} came in where {self._next_in} was expected")
        self._next_in += 1
        self.open_n += 1
        self.open_bytes += nbytes
        self._nbytes[index] = nbytes

    def ready(self, row: ReadyRow) -> None:
        """A row that was admitted can be run."""
        self._ready.setdefault(row.form, []).append(row)
        self.ready_n += 1

    def cut(self, hurry: Hurry) -> list[list[ReadyRow]]:
        """Take the rows that run now, in batches; the longest first, so that the short ones even out the end."""
        batches: list[list[ReadyRow]] = []
        for form, rows in list(self._ready.items()):
            count = self._count(rows, hurry)
            if not count:
                continue
            chosen, rest = rows[:count], rows[count:]
            if rest:
                self._ready[form] = rest
            else:
                del self._ready[form]
            self.ready_n -= count
            chosen.sort(key=_size, reverse=True)
            size = self.limits.batch_rows
            batches += [chosen[start : start + size] for start in range(0, count, size)]
        return batches

    def settle(self, outcomes: Sequence[Outcome]) -> None:
        """Take the outcomes of rows, in any order; ValueError when a row has left, or has one already."""
        for outcome in outcomes:
            index = outcome.index
            if index not in self._nbytes or index in self._done:
                raise ValueError(f"row {index} has a second outcome")
            self._done[index] = outcome

    def take_done(self) -> list[Outcome]:
        """Let go of the rows that may be written now: those at the front that have an outcome."""
        taken: list[Outcome] = []
        done = self._done
        while (outcome := done.pop(self._next_out, None)) is not None:
            self.open_n -= 1
            self.open_bytes -= self._nbytes.pop(self._next_out)
            self._next_out += 1
            taken.append(outcome)
        return taken

    def _count(self, rows: list[ReadyRow], hurry: Hurry) -> int:
        if hurry is Hurry.ALL:
            return len(rows)
        sized = rows[0].size > 0 and hurry is Hurry.NONE
        unit = self.limits.sorted_rows if sized else self.limits.batch_rows
        return len(rows) // unit * unit


def _size(row: ReadyRow) -> int:
    return row.size
