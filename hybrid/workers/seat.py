"""What all lives on one seat of a model did together, how they ended, and when the next one may begin.

A seat (w0, w1, ...) is a place in the plan; its workers come and go. Pure: knows no process and no clock.
"""

from typing import Final

_FIRST_PAUSE_S: Final = 0.25
_LAST_PAUSE_S: Final = 10.0
_HOPELESS: Final = 4


class SeatCounts:
    """What is counted on one seat. Counts never fall; they outlive the pool, so that a reload starts none from 0."""

    __slots__ = ("batches_n", "busy_s", "restarts_n", "rows_n")

    def __init__(self) -> None:
        self.batches_n = 0
        self.rows_n = 0
        self.busy_s = 0.0
        self.restarts_n = 0


class PoolCounts:
    """What is counted of the workers of one model: per seat, and how often they ended, by cause."""

    def __init__(self) -> None:
        self.seats: list[SeatCounts] = []
        self.ends: dict[str, int] = {}

    def seat(self, index: int) -> SeatCounts:
        """Return the counts of a seat, 0 for one that is new."""
        while len(self.seats) <= index:
            self.seats.append(SeatCounts())
        return self.seats[index]

    def take_over(self, other: "PoolCounts") -> None:
        """Add what another one has counted, which then has counted nothing: the sum over both stays the same."""
        for index, theirs in enumerate(other.seats):
            ours = self.seat(index)
            for name in SeatCounts.__slots__:
                setattr(ours, name, getattr(ours, name) + getattr(theirs, name))
                setattr(theirs, name, 0)
        for cause, count in other.ends.items():
            self.ends[cause] = self.ends.get(cause, 0) + count
        other.ends.clear()


class Seat:
    """The record of one seat."""

    __slots__ = ("_failures", "_recycle_from", "counts", "last_end")

    def __init__(self, counts: SeatCounts | None = None) -> None:
        self.counts = counts or SeatCounts()
        self.last_end = ""
        self._failures = 0  # lives in a row that were good for nothing
        self._recycle_from = 0.0

    @property
    def hopeless(self) -> bool:
        """Whether so many lives in a row were good for nothing that nobody should wait for the next."""
        return self._failures >= _HOPELESS

    def worked(self, rows: int, seconds: float) -> None:
        """Count a batch."""
        counts = self.counts
        counts.batches_n += 1
        counts.rows_n += rows
        counts.busy_s += seconds
        self._failures = 0

    def ended(self, cause: str, *, lasted: bool) -> None:
        """Note the end of a life that was not planned; `lasted` when it had been worth something."""
        self.last_end = cause
        self._failures = 0 if lasted else self._failures + 1

    def next_life(self, *, was_ready: bool) -> float:
        """Count a restart and return how many seconds to wait for it.

        A worker that was ready and died twice in its first batch is more likely the victim of two bad requests than
        a broken model, so the pause starts with the third such life; one that cannot even start pauses from the
        first. It doubles with each.
        """
        self.counts.restarts_n += 1
        counted = self._failures - (2 if was_ready else 0)
        return 0.0 if counted <= 0 else min(_LAST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(counted - 1, 10))

    def may_recycle(self, now: float) -> bool:
        """Whether a successor may be started beside a worker that has grown too large."""
        return now >= self._recycle_from

    def successor_failed(self, now: float) -> None:
        """A successor did not get ready: try no other for a while, the worker that it should replace still works."""
        self._recycle_from = now + _LAST_PAUSE_S
