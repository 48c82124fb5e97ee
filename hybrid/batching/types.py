"""The small records of the state machine: batches in flight, workers, counters, and the error for a wrong move."""

from collections import deque
from heapq import heapify, heappop, heappush

from hybrid.batching.queue import INFINITY, LaneKey, Outcome, Piece, Ticket
from hybrid.messages import ReleaseReason


class IllegalMove(Exception):
    """A move that the table does not allow. This is a bug; the message tells the request's story."""

    def __init__(self, what: str, story: str) -> None:
        super().__init__(f"{what}. This is a bug. {story}")


class Batch:
    """Pieces that run together on one worker, in the order of their rows in the batch."""

    __slots__ = ("id", "lane_key", "pieces", "reason", "rows", "sent_at", "size", "started_at", "worker")

    def __init__(
        self,
        batch_id: int,
        worker: int,
        lane_key: LaneKey,
        pieces: list[Piece],
        rows: int,
        reason: ReleaseReason,
        now: float,
    ) -> None:
        self.id = batch_id
        self.worker = worker
        self.lane_key = lane_key
        self.pieces = pieces
        self.rows = rows
        self.size = max([piece.size for piece in pieces])  # what its rows are padded to; 0 where sizes do not matter
        self.reason = reason
        self.sent_at = now
        self.started_at = now  # later than sent_at when it waited behind another batch of the same worker


class Worker:
    """A warmed worker: how many batches it takes, and those it has, running one first."""

    __slots__ = ("batches", "id", "retired", "slots")

    def __init__(self, worker_id: int, slots: int) -> None:
        self.id = worker_id
        self.slots = slots
        self.batches: deque[int] = deque()
        self.retired = False


class FreeSlots:
    """Which workers can take a batch, so that a request costs the same with one worker and with a hundred."""

    def __init__(self) -> None:
        self.idle: dict[int, Worker] = {}  # longest idle first
        self.partly: dict[int, Worker] = {}  # busy with a free pipeline slot, longest unchanged first

    def place(self, worker: Worker) -> None:
        """Look at a worker again after its batches or its standing changed."""
        self.remove(worker)
        load = len(worker.batches)
        if worker.retired or load >= worker.slots:
            return
        (self.partly if load else self.idle)[worker.id] = worker

    def remove(self, worker: Worker) -> None:
        """Forget a worker."""
        self.idle.pop(worker.id, None)
        self.partly.pop(worker.id, None)

    def first_idle(self) -> Worker | None:
        """Return the worker that idles longest."""
        return next(iter(self.idle.values()), None)

    def least_loaded(self) -> Worker | None:
        """Return the busy worker with the fewest batches that takes one more."""
        return min(self.partly.values(), key=lambda worker: len(worker.batches), default=None)


class Deadlines:
    """Which open ticket must be answered next. Tickets that ended leave lazily, so that ending one costs nothing."""

    def __init__(self, open_tickets: dict[int, Ticket]) -> None:
        self._open = open_tickets
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def __contains__(self, ticket: Ticket) -> bool:
        return (ticket.deadline, ticket.id) in self._heap

    def watch(self, ticket: Ticket) -> None:
        """Take in an open ticket; one without a deadline needs no watching."""
        if ticket.deadline == INFINITY:
            return
        heappush(self._heap, (ticket.deadline, ticket.id))
        if len(self._heap) > 2 * len(self._open) + 64:
            self._heap = [entry for entry in self._heap if entry[1] in self._open]
            heapify(self._heap)

    def next_at(self) -> float:
        """Return the earliest deadline of an open ticket; inf without one."""
        heap = self._heap
        while heap and heap[0][1] not in self._open:
            heappop(heap)
        return heap[0][0] if heap else INFINITY

    def take_due(self, now: float) -> Ticket | None:
        """Stop watching one open ticket whose deadline has passed, and return it."""
        heap = self._heap
        while heap and heap[0][0] <= now:
            ticket = self._open.get(heappop(heap)[1])
            if ticket is not None:
                return ticket
        return None


class BatchStats:
    """Counters since start."""

    __slots__ = ("batches_n", "failed_batches_n", "lost_batches_n", "outcomes", "poison_refused_n", "refused_n")

    def __init__(self) -> None:
        self.batches_n = 0
        self.failed_batches_n = 0
        self.lost_batches_n = 0
        self.refused_n = 0
        self.poison_refused_n = 0
        self.outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
