"""All lanes of one model: who waits where, how many rows in sum, and which lane may leave next."""

from collections.abc import Iterable, Iterator

from hybrid.batching.policy import BatchPolicy, LaneView, release
from hybrid.batching.queue import INFINITY, Lane, LaneCounters, LaneKey, Piece
from hybrid.messages import ReleaseReason

_MAX_LANES = 128


class Lanes:
    """The waiting pieces of one model, by lane. Owns the row count that the queue bound is held against."""

    def __init__(self) -> None:
        self.rows = 0
        self.classes: dict[str, LaneCounters] = {}  # one per size class; outlives its lanes
        self._lanes: dict[LaneKey, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def get(self, key: LaneKey) -> Lane | None:
        """Return the lane of this key if it exists."""
        return self._lanes.get(key)

    def open(self, key: LaneKey, busy: Iterable[LaneKey]) -> Lane:
        """Create a lane. Shapes come from clients, so idle lanes are closed when there are many (`busy` ones stay)."""
        if len(self._lanes) >= _MAX_LANES:
            keep = set(busy)
            self._lanes = {k: lane for k, lane in self._lanes.items() if lane.rows or k in keep}
        lane = self._lanes[key] = Lane(key, self.classes.setdefault(key.size_class, LaneCounters()))
        return lane

    def push(self, lane: Lane, piece: Piece) -> None:
        """Queue a piece."""
        lane.push(piece)
        self.rows += piece.rows

    def forget(self, piece: Piece) -> None:
        """Account for a queued piece that leaves without being taken."""
        self._lanes[piece.ticket.lane_key].forget(piece)
        self.rows -= piece.rows

    def take(self, lane: Lane, max_rows: int, reason: ReleaseReason) -> list[Piece]:
        """Take the most urgent pieces of a lane that fit together and count why they left."""
        before = lane.rows
        pieces = lane.take(max_rows)
        rows = before - lane.rows
        self.rows -= rows
        lane.stats.released[reason] += 1
        lane.stats.sizes_n[rows] = lane.stats.sizes_n.get(rows, 0) + 1
        return pieces

    def choose(self, policy: BatchPolicy, draining: bool, now: float) -> tuple[Lane, ReleaseReason] | None:
        """Among lanes that may leave: a deadline that is due first, then priority, then who waits longest.

        By age and not by size, so that no class starves behind a busier one.
        """
        best: tuple[Lane, ReleaseReason] | None = None
        best_rank: tuple[bool, int, float] | None = None
        for lane in self._lanes.values():
            if not lane.rows:
                continue
            oldest = lane.oldest()
            slack = self._slack(lane, policy, now) if policy.max_wait_s > 0.0 else INFINITY
            reason = release(policy, LaneView(lane.rows, now - oldest, slack, self.rows - lane.rows, draining))
            head = lane.head()
            if reason is None or head is None:
                continue
            rank = (reason is not ReleaseReason.DEADLINE, head.ticket.priority, oldest)
            if best_rank is None or rank < best_rank:
                best, best_rank = (lane, reason), rank
        return best

    def release_at(self, policy: BatchPolicy, now: float) -> float:
        """Return when waiting alone makes a lane leave; inf when nothing waits."""
        waiting = [lane for lane in self._lanes.values() if lane.rows]
        times = (min(lane.oldest() + policy.max_wait_s, now + self._slack(lane, policy, now)) for lane in waiting)
        return min(times, default=INFINITY)

    def any_at_least(self, rows: int) -> bool:
        """Whether a lane holds this many rows."""
        return any(lane.rows >= rows for lane in self._lanes.values())

    def slowest_s(self, rows: int) -> float:
        """Return the longest predicted time of a batch of `rows` over all lanes."""
        return max((lane.cost.predict(rows) for lane in self._lanes.values()), default=0.0)

    @staticmethod
    def _slack(lane: Lane, policy: BatchPolicy, now: float) -> float:
        return lane.earliest_deadline() - now - lane.cost.predict(min(lane.rows, policy.max_batch))
