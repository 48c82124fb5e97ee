"""When a batch leaves the queue: one pure function over plain numbers.

"Take what is there while a worker is idle" (`max_wait_s = 0`) is the default on CPU: for a single device under Poisson
arrivals no waiting rule gains more than 0.3 % over it and some lose 16 %. A wait above 0 is counted from the oldest
waiting request, never from the end of the last batch: a clock started elsewhere delays a lone request for nothing.
"""

from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct

from hybrid.messages import ReleaseReason

#: fifo: one queue per data format, most urgent first. classes: one queue per size class. sorted: one queue, and a
#: batch is made of the most urgent piece and its neighbours by size.
Formation = Literal["fifo", "classes", "sorted"]
_WORTH_SHARING: Final = 0.9


class BatchPolicy(Struct, frozen=True):
    """The numbers of the plan that batching needs."""

    max_batch: int = 8
    max_wait_s: float = 0.0
    early_trigger: int = 8
    queue_rows: int = 512
    queue_bytes: int = 256 * 1024 * 1024
    # How much earlier than "deadline minus predicted compute" a held lane leaves: the way there and back takes time,
    # and half of all runs take longer than the mean.
    margin_s: float = 0.0
    margin_ratio: float = 0.0  # of the predicted compute
    static: bool = False  # every batch runs as `max_batch` rows, and of rows that are padded as `static_length`
    static_length: int = 0
    formation: Formation = "fifo"
    size_edges: tuple[int, ...] = ()  # rising upper edges of the size classes; what is above the last has its own class


class LaneView(Struct, frozen=True):
    """What the rule may look at: one lane (size class) at one moment."""

    rows: int
    oldest_at: float  # when the request that waits longest arrived
    due_at: float  # earliest deadline minus predicted compute; inf without a deadline
    other_rows: int  # rows waiting in other lanes
    draining: bool


def release(policy: BatchPolicy, view: LaneView, now: float) -> ReleaseReason | None:
    """Return why the lane may leave now that a worker is free, or None to wait for more.

    Compares points in time and not differences: at the very moment that `leave_at` names, rounding must not say "not
    yet", or a driver with a virtual clock would wake up for ever without moving on.
    """
    if view.rows >= policy.max_batch:
        return ReleaseReason.FULL
    if view.rows >= policy.early_trigger:
        return ReleaseReason.EARLY_TRIGGER
    if policy.max_wait_s <= 0.0:
        # Room was left that rows of another class would have filled: the class boundary cut this batch.
        return ReleaseReason.SIZE_CLASS if view.other_rows else ReleaseReason.IDLE_WORKER
    if now >= view.oldest_at + policy.max_wait_s:
        return ReleaseReason.MAX_WAIT
    if now >= view.due_at:
        return ReleaseReason.DEADLINE
    return ReleaseReason.DRAIN if view.draining else None


def spread(rows: int, workers: int, max_batch: int, seconds: Callable[[int], float]) -> int:
    """Return how many of the `rows` that wait one of `workers` idle workers takes: its share, or as many as may be.

    `seconds` predicts a batch. Sharing computes what a batch costs by itself several times, so it has to pay: the
    share must be done in at most nine tenths of the time that the rows take together.
    """
    together, share = min(rows, max_batch), -(-rows // workers)
    if share >= together:
        return max_batch
    return share if seconds(share) <= _WORTH_SHARING * seconds(together) else max_batch


def leave_at(policy: BatchPolicy, oldest_at: float, due_at: float) -> float:
    """Return when time alone releases a lane that waits for more."""
    return min(oldest_at + policy.max_wait_s, due_at)
