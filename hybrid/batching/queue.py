"""Requests as the batcher sees them: tickets and their pieces, and what is counted of them.

A ticket is one client request. It travels as one piece, or as several when it has more rows than a batch may hold or
rows of very different size; the pieces cover its rows in order. Payloads are opaque here.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hybrid.batching.classes import ONE_CLASS
from hybrid.messages import FailureKind, ReleaseReason

INFINITY = float("inf")


class PieceState(Enum):
    """Where a piece is."""

    QUEUED = "queued"  # in its lane
    ISOLATED = "isolated"  # waits to run again in a smaller group after a failed or lost batch
    SENT = "sent"  # in a batch on a worker
    DONE = "done"  # ran; the result was taken, or nobody wanted it any more
    FAILED = "failed"  # ran and was found guilty, or its ticket was closed while it ran
    DROPPED = "dropped"  # left before it cost compute

    __hash__ = object.__hash__  # Enum hashes by name in Python code, which every move would pay twice


class Outcome(Enum):
    """How a ticket ended; each ticket ends once."""

    OK = "ok"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"

    __hash__ = object.__hash__


class LaneKey(NamedTuple):
    """Which pieces may share a batch: one data format (names, types, shapes) within one size class."""

    data_format: Hashable = None
    size_class: str = ONE_CLASS


_ONE_LANE = LaneKey()


class Ticket:
    """One admitted request. Owned by the state machine until it is answered; `on_done` is called by the driver.

    `size` is the length that its rows are padded to (tokens), or their area in pixels; 0 when sizes do not matter.
    `sizes`, set before it is submitted where they are known, are the true sizes of its rows, in rising order.
    """

    __slots__ = (
        "arrived", "batch_rows", "compute_s", "copy_s", "deadline", "digest", "failure", "failure_text", "id",
        "lane_key", "nbytes", "on_done", "open_pieces", "outcome", "payload", "pieces", "post_s", "priority",
        "result", "rows", "sent_at", "size", "sizes",
    )  # fmt: skip

    def __init__(
        self,
        *,
        rows: int,
        payload: Any,
        nbytes: int = 0,
        lane_key: LaneKey = _ONE_LANE,
        size: int = 0,
        priority: int = 5,
        deadline: float = INFINITY,
        on_done: Callable[["Ticket"], None] | None = None,
    ) -> None:
        self.id = 0
        self.rows = rows
        self.payload = payload
        self.nbytes = nbytes
        self.lane_key = lane_key
        self.size = size
        self.sizes: Sequence[int] = ()
        self.priority = priority
        self.deadline = deadline
        self.digest = b""  # of the payload, once there was a reason to compute it
        self.on_done = on_done
        self.arrived = 0.0
        self.sent_at = 0.0
        self.pieces: list[Piece] = []
        self.open_pieces = 0
        self.outcome: Outcome | None = None
        self.failure: FailureKind | None = None
        self.failure_text = ""
        self.result: Any = None
        self.copy_s = self.compute_s = self.post_s = 0.0
        self.batch_rows = 0

    def cut(self, counts: Iterable[int]) -> "list[Piece]":
        """Make the pieces it travels in, with these row counts."""
        start = 0
        for count in counts:
            self.pieces.append(Piece(self, start, count))
            start += count
        return self.pieces


class Piece:
    """Rows `start .. start+rows` of a ticket; the unit that is batched, bisected and retried."""

    __slots__ = (
        "lane_key", "losses", "offences", "result", "rows", "sequence", "size", "start", "state", "ticket",
    )  # fmt: skip

    def __init__(self, ticket: Ticket, start: int, rows: int) -> None:
        self.ticket = ticket
        self.start = start
        self.rows = rows
        self.size = ticket.sizes[start + rows - 1] if ticket.sizes else ticket.size  # of its longest row
        self.lane_key = ticket.lane_key
        self.sequence = 0  # its place in the order of arrival within its lane
        self.state = PieceState.QUEUED
        self.losses = 0  # workers that ended while they ran it
        self.offences = 0  # those of them in a row that ended by what they ran
        self.result: Any = None

    @property
    def true_size(self) -> int:
        """The sizes of its rows in sum, without the padding among them; as padded where true sizes are unknown."""
        sizes = self.ticket.sizes
        return sum(sizes[self.start : self.start + self.rows]) if sizes else self.size * self.rows

    def cut_off(self, rows: int) -> "Piece":
        """Return the first `rows` rows as a piece of their own and keep the others.

        This piece stays what its lane knows it as: its place in every order, and its size, that of its longest row.
        """
        ticket = self.ticket
        first = Piece(ticket, self.start, rows)
        first.lane_key, first.sequence, first.state = self.lane_key, self.sequence, self.state
        self.start += rows
        self.rows -= rows
        ticket.pieces.insert(ticket.pieces.index(self), first)
        ticket.open_pieces += 1
        return first

    def halve(self) -> tuple["Piece", "Piece"]:
        """Replace a piece that was too large to run by its two halves, in the same state."""
        ticket = self.ticket
        first = Piece(ticket, self.start, self.rows // 2)
        second = Piece(ticket, self.start + first.rows, self.rows - first.rows)
        for half in (first, second):
            half.lane_key = self.lane_key
            half.state = self.state
            half.losses, half.offences = self.losses, self.offences
        at = ticket.pieces.index(self)
        ticket.pieces[at : at + 1] = [first, second]
        ticket.open_pieces += 1
        return first, second


class LaneCounters:
    """Counters of one size class since start."""

    __slots__ = ("arrived_n", "batches_n", "pad_n", "real_n", "released", "rows_n", "sizes_n")

    def __init__(self) -> None:
        self.arrived_n = 0
        self.batches_n = 0
        self.rows_n = 0
        self.pad_n = 0
        self.real_n = 0
        self.released: dict[ReleaseReason, int] = dict.fromkeys(ReleaseReason, 0)
        self.sizes_n: dict[int, int] = {}

    def computed(self, true_size: int, padded_size: int) -> None:
        """Count the tokens (or pixels) of a batch that ran, also of one whose answers nobody wanted any more."""
        self.real_n += true_size
        self.pad_n += padded_size - true_size

    def count(self, rows: int, reason: ReleaseReason) -> None:
        """Count a batch that is sent, also one that runs again after a failure."""
        self.batches_n += 1
        self.rows_n += rows
        self.released[reason] += 1
        self.sizes_n[rows] = self.sizes_n.get(rows, 0) + 1
