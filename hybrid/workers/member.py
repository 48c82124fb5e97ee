"""One incarnation of a model worker: its process, its slabs, and what it is doing.

A seat (w0, w1, ...) is a place in the plan; when a worker dies or is recycled, the next incarnation takes the same seat.
"""

from enum import Enum

from hybrid.workers import wire
from hybrid.workers.arena import Slab
from hybrid.workers.process import ChildProcess


class MemberState(Enum):
    """Where an incarnation is in its life."""

    STARTING = "starting"  # process runs, engine loads and warms
    READY = "ready"  # takes batches
    RETIRING = "retiring"  # finishes what it has, a successor is ready
    STOPPED = "stopped"  # asked to leave, or gone


class Slot:
    """The pair of slabs of one pipeline slot."""

    def __init__(self) -> None:
        self.inputs = Slab.create()
        self.outputs = Slab.create()

    @property
    def descriptors(self) -> wire.Slabs:
        """What the child is told."""
        return wire.Slabs(self.inputs.fd, self.outputs.fd)

    def close(self) -> None:
        """Unmap and close both."""
        self.inputs.close()
        self.outputs.close()


class Member:
    """One incarnation on one seat. Owned by the pool."""

    def __init__(self, member_id: int, seat: int, depth: int, now: float) -> None:
        self.id = member_id
        self.seat = seat
        self.state = MemberState.STARTING
        self.since = now
        self.slots = [Slot() for _ in range(depth)]
        self.free = list(range(depth))
        self.taken: dict[int, int] = {}  # batch id -> slot
        self.child: ChildProcess | None = None
        self.start_error = ""
        self.batches_n = 0
        self.rows_n = 0
        self.busy_s = 0.0

    @property
    def productive(self) -> bool:
        """Whether this life was worth something: it executed a batch."""
        return self.batches_n > 0

    def close(self) -> None:
        """Give the slabs back; the process is gone."""
        for slot in self.slots:
            slot.close()
