"""All lanes of one model: who waits where, how many rows in sum, and which lane may leave next."""

from collections.abc import Callable, Iterable, Iterator

from hybrid.batching.cost import CostModel
from hybrid.batching.policy import BatchPolicy, LaneView, leave_at, release
from hybrid.batching.queue import INFINITY, Lane, LaneCounters, LaneKey, Piece
from hybrid.messages import ReleaseReason

_MAX_LANES = 128


class Lanes:
    """The waiting pieces of one model, by lane. Owns the row count that the queue bound is held against."""

    def __init__(self) -> None:
        self.rows = 0
        self.unknown = CostModel()  # stands in for the cost of a lane that never ran
        self.classes: dict[str, LaneCounters] = {}  # one per size class; outlives its lanes
        self._lanes: dict[LaneKey, Lane] = {}
        self._waiting: dict[Lane, None] = {}  # lanes with rows; a dict for its order
        self._prune_at = _MAX_LANES

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def get(self, key: LaneKey) -> Lane | None:
        """Return the lane of this key if it exists."""
        return self._lanes.get(key)

    def open(self, key: LaneKey, busy: Callable[[], Iterable[LaneKey]]) -> Lane:
        """Create a lane. Shapes come from clients, so idle lanes are closed when there are many (`busy` ones stay)."""
        if len(self._lanes) >= self._prune_at:
            keep = set(busy())
            self._lanes = {k: lane for k, lane in self._lanes.items() if lane.rows or k in keep}
            # Lanes that are all in use cannot be closed; looking at them again for each new one would be quadratic.
            self._prune_at = max(_MAX_LANES, 2 * len(self._lanes))
        lane = self._lanes[key] = Lane(key, self.classes.setdefault(key.size_class, LaneCounters()))
        return lane

    def push(self, lane: Lane, piece: Piece) -> None:
        """Queue a piece."""
        if not lane.rows:
            self._waiting[lane] = None
        lane.push(piece)
        self.rows += piece.rows

    def forget(self, piece: Piece) -> None:
        """Account for a queued piece that leaves without being taken."""
        lane = self._lanes[piece.ticket.lane_key]
        lane.forget(piece)
        self.rows -= piece.rows
        if not lane.rows:
            del self._waiting[lane]

    def take(self, lane: Lane, max_rows: int) -> list[Piece]:
        """Take the most urgent pieces of a lane that fit together."""
        before = lane.rows
        pieces = lane.take(max_rows)
        self.rows -= before - lane.rows
        if not lane.rows:
            del self._waiting[lane]
        return pieces

    def choose(self, policy: BatchPolicy, draining: bool, now: float) -> tuple[Lane, ReleaseReason] | None:
        """Among lanes that may leave: priority first, then the one that had to leave first.

        By that moment and neither by size nor by reason: a class that is always full, or whose requests are always due,
        would starve the others. The moment of a waiting class moves into the past until it is its turn.
        """
        if not self._waiting:
            return None
        if policy.max_wait_s <= 0.0:  # every lane may leave, so only the first one is asked for its reason
            lane = min(self._waiting, key=Lane.urgency)
            reason = release(policy, self._view(lane, policy, draining), now)
            return (lane, reason) if reason is not None else None
        best: tuple[Lane, ReleaseReason] | None = None
        best_rank = (0, INFINITY)
        for lane in self._waiting:
            view = self._view(lane, policy, draining)
            reason = release(policy, view, now)
            rank = (lane.urgency()[0], leave_at(policy, view.oldest_at, view.due_at))
            if reason is not None and (best is None or rank < best_rank):
                best, best_rank = (lane, reason), rank
        return best

    def release_at(self, policy: BatchPolicy) -> float:
        """Return when waiting alone makes a lane leave; inf when nothing waits."""
        times = (leave_at(policy, lane.oldest(), self._due_at(lane, policy)) for lane in self._waiting)
        return min(times, default=INFINITY)

    def any_at_least(self, rows: int) -> bool:
        """Whether a lane holds this many rows."""
        return self.rows >= rows and any(lane.rows >= rows for lane in self._waiting)

    def slowest_s(self, rows: int) -> float:
        """Return the longest predicted time of a batch of `rows` over all lanes."""
        return max((lane.cost.predict(rows) for lane in self._lanes.values()), default=0.0)

    def _view(self, lane: Lane, policy: BatchPolicy, draining: bool) -> LaneView:
        # Deadlines only matter to a lane that may be held back; looking for the earliest one is not free.
        holds = policy.max_wait_s > 0.0 and lane.rows < policy.early_trigger
        due_at = self._due_at(lane, policy) if holds else INFINITY
        return LaneView(lane.rows, lane.oldest(), due_at, self.rows - lane.rows, draining)

    def _due_at(self, lane: Lane, policy: BatchPolicy) -> float:
        cost = lane.cost if lane.cost.known else self.unknown
        predicted_s = cost.predict(min(lane.rows, policy.max_batch))
        return lane.earliest_deadline() - predicted_s * (1.0 + policy.margin_ratio) - policy.margin_s
