"""The values of the preprocess queue: a client's job, the task of a process, and what comes of a row."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from hybrid.errors import HybridError
from hybrid.preprocess.base import Row

NEVER = float("inf")


class Prepared(Struct, frozen=True):
    """A preprocessed request: one tuple of compact arrays per row, in order. `seconds` include the waiting."""

    rows: tuple[Row, ...]
    seconds: float


class Refused(Struct, frozen=True):
    """A row that has no arrays: it was bad, or (`ours`) the server failed on it."""

    text: str
    ours: bool = False


class TaskLimits(Struct, frozen=True):
    """Bounds of the queue, and of one task: rows, bytes (one row may be larger) and seconds per row."""

    input: str
    item_timeout_s: float
    queue_items: int
    queue_bytes: int
    task_items: int
    task_bytes: int


class Job:
    """The rows of one request. Owned by `TaskState` until `outcome` is set; `on_done` belongs to the driver."""

    __slots__ = (
        "arrived", "closed", "deadline", "id", "items", "lost", "next_item", "on_done", "open_items", "outcome", "rows",
        "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        items: Sequence[bytes],
        deadline: float = NEVER,
        on_done: Callable[[Prepared | HybridError], None] | None = None,
    ) -> None:
        self.id = 0
        self.items = items
        self.deadline = deadline
        self.on_done = on_done
        self.arrived = 0.0
        self.next_item = 0  # rows before it were taken at least once
        self.waiting = len(items)
        self.waiting_bytes = sum(map(len, items))
        self.open_items = len(items)
        self.rows: list[Row] = [()] * len(items)
        self.lost: set[int] = set()  # rows whose process died once
        self.closed = False
        self.outcome: Prepared | HybridError | None = None


class Task:
    """What one process has in hand."""

    __slots__ = ("id", "items", "limit_at", "overran", "process", "started", "stopped")

    def __init__(self, task_id: int, process: int, items: list[tuple[Job, int]], now: float, limit_at: float) -> None:
        self.id = task_id
        self.process = process
        self.items = items
        self.started = now
        self.limit_at = limit_at
        self.overran = False
        self.stopped = False  # overran because its process did not run at all: no row was too slow
