"""The values of the preprocess queue: a client's job, the task of a process, and what comes of a row."""

from collections.abc import Callable, Collection, Sequence

from msgspec import Struct

from hybrid.errors import BadRequest, HybridError, InferenceFailed
from hybrid.preprocess.base import Row

NEVER = float("inf")


class Prepared(Struct, frozen=True):
    """A preprocessed request: one tuple of compact arrays per row, in order. `seconds` include the waiting.

    `downgraded` rows are coarser than usual, because they took too long.
    """

    rows: tuple[Row, ...]
    seconds: float
    downgraded: int = 0


class Refused(Struct, frozen=True):
    """A row that has no arrays: it was bad, or (`ours`) the server failed on it."""

    text: str
    ours: bool = False


class TaskLimits(Struct, frozen=True):
    """Bounds of the queue, and of one task: rows, bytes (one row may be larger) and seconds per row.

    With `downgrade` a row that takes too long gets another try at less cost.
    """

    input: str
    item_timeout_s: float
    queue_items: int
    queue_bytes: int
    task_items: int
    task_bytes: int
    downgrade: bool = False


class Job:
    """The rows of one request. Owned by `TaskState` until `outcome` is set; `on_done` belongs to the driver.

    Args:
        items: The rows as the client sent them.
        deadline: Monotonic seconds.
        on_done: Called with the outcome.
        keys: What the rows are called in the cache; none without a cache.
        known: Per row what the cache has of it; none without a cache.
    """

    __slots__ = (
        "arrived", "cheap", "closed", "deadline", "id", "items", "keys", "lost", "next_item", "on_done", "open_items",
        "outcome", "rows", "todo", "waiting", "waiting_bytes",
    )  # fmt: skip

    def __init__(
        self,
        items: Sequence[bytes],
        deadline: float = NEVER,
        on_done: Callable[[Prepared | HybridError], None] | None = None,
        keys: Sequence[bytes] = (),
        known: Sequence[Row | None] = (),
    ) -> None:
        self.id = 0
        self.items = items
        self.deadline = deadline
        self.on_done = on_done
        self.arrived = 0.0
        self.keys = keys
        self.rows: list[Row] = [row or () for row in known] if known else [()] * len(items)
        self.todo: Sequence[int] = [i for i, row in enumerate(known) if row is None] if known else range(len(items))
        self.next_item = 0  # rows before this place of `todo` were taken at least once
        self.waiting = self.open_items = len(self.todo)
        self.waiting_bytes = sum([len(items[index]) for index in self.todo])
        self.lost: dict[int, bool] = {}  # rows whose process ended, and whether by its own doing
        self.cheap: Collection[int] = ()  # rows that took too long and are tried at less cost
        self.closed = False
        self.outcome: Prepared | HybridError | None = None


class Task:
    """What one process has in hand."""

    __slots__ = ("cheap", "id", "items", "limit_at", "overran", "process", "started", "stopped")

    def __init__(self, task_id: int, process: int, items: list[tuple[Job, int]], now: float, limit_at: float) -> None:
        self.id = task_id
        self.process = process
        self.items = items
        self.started = now
        self.limit_at = limit_at
        self.cheap = len(items) == 1 and items[0][1] in items[0][0].cheap
        self.overran = False
        self.stopped = False  # overran because its process did not run at all: no row was too slow


def row_name(name: str, index: int) -> str:
    """Return what messages call a row of the input `name`."""
    return f"row {index} of input `{name}`"


def refusal(name: str, index: int, refused: Refused) -> HybridError:
    """Return what the client is told whose row has no arrays."""
    text = refused.text.removeprefix(f"input `{name}`: ")
    kind = InferenceFailed if refused.ours else BadRequest
    return kind(f"{row_name(name, index)}: {text}")
