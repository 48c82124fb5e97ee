"""All lanes of one model: who waits where, how many rows in sum, and which pieces leave next."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby

from hybrid.batching.classes import ONE_CLASS, BatchCost, class_of
from hybrid.batching.cost import CostModel
from hybrid.batching.formation import cut_even, cut_sorted
from hybrid.batching.lane import Lane
from hybrid.batching.policy import BatchPolicy, LaneView, leave_at, release, spread
from hybrid.batching.queue import INFINITY, LaneCounters, LaneKey, Piece, Ticket
from hybrid.batching.types import Batch
from hybrid.messages import ReleaseReason

_MAX_LANES = 128
_ROOM_LEFT = (ReleaseReason.FULL, ReleaseReason.EARLY_TRIGGER, ReleaseReason.IDLE_WORKER)


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

    def admit(self, ticket: Ticket, policy: BatchPolicy, busy: Callable[[], Iterable[LaneKey]]) -> None:
        """Cut a ticket into pieces and queue each in its lane. Lanes in `busy` are not closed to make room."""
        for piece in ticket.cut(self._counts(ticket, policy)):
            key = _key_of(piece, policy)
            piece.lane_key = key
            lane = self._lanes.get(key)
            if lane is None:
                lane = self._open(key, policy, busy)
            if not lane.rows:
                self._waiting[lane] = None
            lane.push(piece)
            self.rows += piece.rows
        self.counters(piece.lane_key, ticket.size, policy).arrived_n += 1

    def counters(self, key: LaneKey, size: int, policy: BatchPolicy) -> LaneCounters:
        """Return the counters of the size class that something of this lane and size belongs to."""
        name = _class_name(key, size, policy)
        counters = self.classes.get(name)
        if counters is None:
            counters = self.classes[name] = LaneCounters()
        return counters

    def forget(self, piece: Piece) -> None:
        """Account for a queued piece that leaves without being taken."""
        lane = self._lanes[piece.lane_key]
        lane.forget(piece)
        self.rows -= piece.rows
        if not lane.rows:
            del self._waiting[lane]

    def form(
        self, policy: BatchPolicy, draining: bool, now: float, idle: int = 1
    ) -> tuple[LaneKey, list[Piece], ReleaseReason] | None:
        """Take the pieces of the next batch out of their lane; None when nothing may leave.

        `idle` workers have nothing to do, the one that the batch is for among them.
        """
        chosen = self.choose(policy, draining, now)
        if chosen is None:
            return None
        lane, reason = chosen
        before = lane.rows
        most = policy.max_batch if idle < 2 or before < 2 else self._share(lane, policy, idle)
        shared = most < policy.max_batch
        pieces = lane.take(most, shared)
        taken = before - lane.rows
        self.rows -= taken
        if not lane.rows:
            del self._waiting[lane]
        if shared:
            reason = ReleaseReason.IDLE_WORKER  # it is not full, and no class edge cut it either
        elif lane.rows and lane.by_size is not None and taken < policy.max_batch and reason in _ROOM_LEFT:
            reason = ReleaseReason.SIZE_CLASS
        return lane.key, pieces, reason

    def ran(self, batch: Batch, seconds: float, policy: BatchPolicy) -> None:
        """Learn from a batch that was executed."""
        rows, size = batch.rows, batch.size
        lane = self._lanes.get(batch.lane_key)
        if lane is not None:
            lane.observe(rows, size, seconds)
        if size or policy.static:
            true_size = sum([piece.true_size for piece in batch.pieces]) or rows  # rows without a size count as 1
            padded_rows = max(rows, policy.max_batch) if policy.static else rows
            padded_size = padded_rows * (policy.static_length or size or 1)
            self.counters(batch.lane_key, size, policy).computed(true_size, padded_size)

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
        return max((lane.predict(rows) for lane in self._lanes.values()), default=0.0)

    def batch_cost(self) -> BatchCost | None:
        """Return what a batch costs, as far as the lanes have learned; None before."""
        lines = (lane.size_cost.line() for lane in self._lanes.values())
        line = next(filter(None, lines), None)
        return BatchCost(fixed_s=line[0], per_unit_s=line[1]) if line is not None else None

    def waiting(self, policy: BatchPolicy) -> dict[str, list[Piece]]:
        """Return what waits by size class. O(n): asked once per snapshot."""
        waiting: dict[str, list[Piece]] = {}
        for lane in self._waiting:
            for piece in lane:
                waiting.setdefault(_class_name(lane.key, piece.size, policy), []).append(piece)
        return waiting

    def _open(self, key: LaneKey, policy: BatchPolicy, busy: Callable[[], Iterable[LaneKey]]) -> Lane:
        """Create a lane. Shapes come from clients, so idle lanes are closed when there are many."""
        if len(self._lanes) >= self._prune_at:
            keep = set(busy())
            self._lanes = {k: lane for k, lane in self._lanes.items() if lane.rows or k in keep}
            # Lanes that are all in use cannot be closed; looking at them again for each new one would be quadratic.
            self._prune_at = max(_MAX_LANES, 2 * len(self._lanes))
        lane = self._lanes[key] = Lane(key, by_size=policy.formation == "sorted")
        return lane

    def _counts(self, ticket: Ticket, policy: BatchPolicy) -> Sequence[int]:
        """Rows per piece: cut where the size changes much, if that is known, and where a batch is full."""
        if ticket.rows == 1:
            return (1,)
        if not ticket.sizes or policy.formation == "fifo":
            return cut_even(ticket.rows, policy.max_batch)
        if policy.formation == "classes":
            names = [class_of(policy.size_edges, size) for size in ticket.sizes]
            groups = [sum(1 for _ in group) for _, group in groupby(names)]
            return [count for rows in groups for count in cut_even(rows, policy.max_batch)]
        lane = self._lanes.get(ticket.lane_key)
        fixed = lane.size_cost.fixed_work() if lane is not None else None
        usual = sum(ticket.sizes) / ticket.rows if fixed is None else fixed
        return cut_sorted(ticket.sizes, policy.max_batch, max(1.0, usual))

    def _share(self, lane: Lane, policy: BatchPolicy, idle: int) -> int:
        """Return the most rows of the next batch where other workers idle, so that they get theirs.

        Not where batches wait for company or have one shape: there somebody wants them full. Not where rows of this
        lane differ too much in size to share a batch, because then they fill several anyway.
        """
        idle -= len(self._waiting) - 1  # each other lane has the first claim on one
        if idle < 2 or policy.static or policy.max_wait_s > 0.0:
            return policy.max_batch
        seconds = lane.predictor(self.unknown)
        if seconds is None or (lane.by_size is not None and not lane.by_size.within(lane.size_cost.fixed_work())):
            return policy.max_batch
        return spread(lane.rows, idle, policy.max_batch, seconds)

    def _view(self, lane: Lane, policy: BatchPolicy, draining: bool) -> LaneView:
        # Deadlines only matter to a lane that may be held back; looking for the earliest one is not free.
        holds = policy.max_wait_s > 0.0 and lane.rows < policy.early_trigger
        due_at = self._due_at(lane, policy) if holds else INFINITY
        return LaneView(lane.rows, lane.oldest(), due_at, self.rows - lane.rows, draining)

    def _due_at(self, lane: Lane, policy: BatchPolicy) -> float:
        rows = min(lane.rows, policy.max_batch)
        predicted_s = lane.cost.predict(rows * (lane.largest or 1)) if lane.cost.known else self.unknown.predict(rows)
        return lane.earliest_deadline() - predicted_s * (1.0 + policy.margin_ratio) - policy.margin_s


def _key_of(piece: Piece, policy: BatchPolicy) -> LaneKey:
    key = piece.ticket.lane_key
    if policy.formation == "classes" and policy.size_edges:
        return LaneKey(key.data_format, class_of(policy.size_edges, piece.size))
    return key


def _class_name(key: LaneKey, size: int, policy: BatchPolicy) -> str:
    return key.size_class if key.size_class != ONE_CLASS else class_of(policy.size_edges, size)
