"""Requests as the batcher sees them (tickets and their pieces), and the lane they wait in.

A ticket is one client request. It travels as one piece, or as several when it has more rows than a batch may hold; the
pieces cover its rows in order. A lane is the queue of one data format and size class. Payloads are opaque here.
"""

from collections import deque
from collections.abc import Callable, Hashable
from enum import Enum
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from hybrid.batching.cost import CostModel
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
    size_class: str = "all"


_ONE_LANE = LaneKey()


class Ticket:
    """One admitted request. Owned by the state machine until it is answered; `on_done` is called by the driver."""

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
        self.priority = priority
        self.deadline = deadline
        self.on_done = on_done
        self.arrived = 0.0
        self.sent_at = 0.0
        self.digest = b""  # of the payload, once there was a reason to compute it
        self.pieces: list[Piece] = []
        self.open_pieces = 0
        self.outcome: Outcome | None = None
        self.failure: FailureKind | None = None
        self.failure_text = ""
        self.result: Any = None
        self.copy_s = self.compute_s = self.post_s = 0.0
        self.batch_rows = 0

    def cut(self, max_rows: int) -> "list[Piece]":
        """Make the pieces it travels in, of at most `max_rows` each."""
        rows = self.rows
        if rows <= max_rows:
            self.pieces = [Piece(self, 0, rows)]
        else:
            self.pieces = [Piece(self, start, min(max_rows, rows - start)) for start in range(0, rows, max_rows)]
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
        self.state = PieceState.QUEUED
        self.losses = 0  # workers that ended while they ran it
        self.offences = 0  # those of them in a row that ended by what they ran
        self.result: Any = None

    def halve(self) -> tuple["Piece", "Piece"]:
        """Replace a piece that was too large to run by its two halves, in the same state."""
        ticket = self.ticket
        first = Piece(ticket, self.start, self.rows // 2)
        second = Piece(ticket, self.start + first.rows, self.rows - first.rows)
        for half in (first, second):
            half.state = self.state
            half.losses, half.offences = self.losses, self.offences
        at = ticket.pieces.index(self)
        ticket.pieces[at : at + 1] = [first, second]
        ticket.open_pieces += 1
        return first, second


class Lane:
    """Waiting pieces of one format and size class, ordered by (priority, deadline, arrival).

    Removal is lazy: a piece that left the QUEUED state is skipped when it surfaces, and what holds it is rebuilt when
    more than half of that is dead, so that cancelling costs O(1) and memory follows the live queue.
    """

    __slots__ = (
        "_arrivals", "_earliest", "_earliest_left", "_heap", "_sequence", "cost", "key", "pieces", "rows", "stats",
    )  # fmt: skip

    def __init__(self, key: LaneKey, stats: "LaneCounters") -> None:
        self.key = key
        self.stats = stats
        self.rows = 0
        self.pieces = 0
        self.cost = CostModel()
        self._heap: list[tuple[int, float, int, Piece]] = []
        self._arrivals: deque[Piece] = deque()
        self._sequence = 0
        self._earliest = INFINITY
        self._earliest_left = False  # pieces have left, one of them maybe with the earliest deadline

    def push(self, piece: Piece) -> None:
        """Take a QUEUED piece in."""
        ticket = piece.ticket
        self._sequence += 1
        heappush(self._heap, (ticket.priority, ticket.deadline, self._sequence, piece))
        self._arrivals.append(piece)
        if ticket.deadline < self._earliest:
            self._earliest = ticket.deadline
        self.rows += piece.rows
        self.pieces += 1
        # Not only when pieces are forgotten: behind one that stays at the front, those taken by urgency pile up.
        if len(self._arrivals) > 2 * self.pieces + 64:
            self._compact()

    def forget(self, piece: Piece) -> None:
        """Account for a piece that is leaving QUEUED without being taken."""
        self._left(piece.rows, 1)
        if len(self._heap) > 2 * self.pieces + 64:
            self._compact()

    def take(self, max_rows: int) -> list[Piece]:
        """Remove and return the most urgent pieces that fit into `max_rows` together, at least one."""
        taken: list[Piece] = []
        room = max_rows
        heap = self._heap
        while heap:
            piece = heap[0][3]
            if piece.state is not PieceState.QUEUED:
                heappop(heap)
                continue
            if piece.rows > room and taken:
                break
            heappop(heap)
            taken.append(piece)
            room -= piece.rows
            if room <= 0:
                break
        self._left(max_rows - room, len(taken))
        return taken

    def urgency(self) -> tuple[int, float]:
        """Return the priority of the most urgent piece and the arrival of the oldest, of a lane that is not empty."""
        heap = self._heap
        while heap[0][3].state is not PieceState.QUEUED:
            heappop(heap)
        return heap[0][0], self.oldest()

    def oldest(self) -> float:
        """Return the arrival time of the piece that waits longest; inf when empty."""
        arrivals = self._arrivals
        while arrivals and arrivals[0].state is not PieceState.QUEUED:
            arrivals.popleft()
        return arrivals[0].ticket.arrived if arrivals else INFINITY

    def waiting_bytes(self) -> int:
        """Return the payload bytes of what waits here. O(n): asked once per snapshot."""
        queued = (entry[3] for entry in self._heap if entry[3].state is PieceState.QUEUED)
        return sum(piece.ticket.nbytes * piece.rows // piece.ticket.rows for piece in queued)

    def earliest_deadline(self) -> float:
        """Return the earliest deadline waiting here; inf without one. O(n) after pieces have left."""
        if self._earliest_left:
            queued = PieceState.QUEUED
            self._earliest = min((entry[1] for entry in self._heap if entry[3].state is queued), default=INFINITY)
            self._earliest_left = False
        return self._earliest

    def _left(self, rows: int, pieces: int) -> None:
        self.rows -= rows
        self.pieces -= pieces
        self._earliest_left = self._earliest < INFINITY

    def _compact(self) -> None:
        queued = PieceState.QUEUED
        self._heap = [entry for entry in self._heap if entry[3].state is queued]
        heapify(self._heap)
        self._arrivals = deque(piece for piece in self._arrivals if piece.state is queued)


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

    def count(self, rows: int, reason: ReleaseReason) -> None:
        """Count a batch that is sent, also one that runs again after a failure."""
        self.batches_n += 1
        self.rows_n += rows
        self.released[reason] += 1
        self.sizes_n[rows] = self.sizes_n.get(rows, 0) + 1
