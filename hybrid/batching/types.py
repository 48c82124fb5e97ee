"""The small records of the state machine: batches in flight, workers, counters, and the error for a wrong move."""

from collections import deque

from hybrid.batching.queue import LaneKey, Outcome, Piece
from hybrid.messages import ReleaseReason


class IllegalMove(Exception):
    """A move that the table does not allow. This is a bug; the message tells the request's story."""

    def __init__(self, what: str, story: str) -> None:
        super().__init__(f"{what}. This is a bug. {story}")


class Batch:
    """Pieces that run together on one worker, in the order of their rows in the batch."""

    __slots__ = ("id", "lane_key", "pieces", "reason", "rows", "sent_at", "started_at", "worker")

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
        self.reason = reason
        self.sent_at = now
        self.started_at = now  # later than sent_at when it waited behind another batch of the same worker


class Worker:
    """A warmed worker: how many batches it takes, and those it has, running one first."""

    __slots__ = ("batches", "id", "last_batch", "retired", "slots")

    def __init__(self, worker_id: int, slots: int) -> None:
        self.id = worker_id
        self.slots = slots
        self.batches: deque[int] = deque()
        self.last_batch = 0
        self.retired = False


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
