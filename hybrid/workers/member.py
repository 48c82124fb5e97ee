"""One incarnation of a model worker: its process, its slabs, and what it is doing."""

from enum import Enum

from msgspec import Struct

from hybrid.workers import wire
from hybrid.workers.arena import Slab
from hybrid.workers.process import ChildProcess

_LASTING_S = 10.0


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


class Taken(Struct, frozen=True):
    """A batch that the worker has: its slot, how long it should run, and after how long the worker counts as hung."""

    slot: int
    rows: int
    expected_s: float
    limit_s: float


class Member:
    """One incarnation on one seat. Owned by the pool."""

    def __init__(self, member_id: int, seat: int, depth: int, now: float) -> None:
        self.id = member_id
        self.seat = seat
        self.state = MemberState.STARTING
        self.since = now
        self.slots = [Slot() for _ in range(depth)]
        self.free = list(range(depth))
        self.taken: dict[int, Taken] = {}  # by batch id, in order; the first one runs
        self.running_since = now
        self.child: ChildProcess | None = None
        self.start_error = ""
        self.gently = False  # it starts at a low priority
        self.batches_n = 0
        self.fresh_rss_bytes = 0

    def lasted(self, now: float) -> bool:
        """Whether this life was worth something: it executed a batch, or was ready for one for a while."""
        return self.batches_n > 0 or now - self.since > _LASTING_S

    def forgive(self, seconds: float, now: float) -> None:
        """Do not hold `seconds` against it in which the server could not hear it, or nothing on this machine ran."""
        self.running_since = min(now, self.running_since + seconds)
        if self.state is MemberState.STARTING:
            self.since = min(now, self.since + seconds)
        if self.child is not None:
            self.child.heard_at = now

    def take(self, batch: int, taken: Taken, now: float) -> None:
        """Note a batch that is about to be sent."""
        if not self.taken:
            self.running_since = now
        self.free.remove(taken.slot)
        self.taken[batch] = taken

    def give_back(self, batch: int, now: float) -> None:
        """Note that a batch ended; what waited behind it runs from now on."""
        slot = self.taken.pop(batch).slot
        self.running_since = now
        self.slots[slot].inputs.release()
        self.free.append(slot)

    def overdue_s(self, now: float) -> float | None:
        """Return how long the running batch has been running if that is over its limit."""
        for taken in self.taken.values():
            running_s = now - self.running_since
            return running_s if running_s > taken.limit_s else None
        return None

    def close(self) -> None:
        """Give the slabs back; the process is gone."""
        for slot in self.slots:
            slot.close()
