"""The workers of one model: started, watched, replaced, recycled.

Owns every incarnation and its slabs. What a lost worker means for requests is not decided here: the listener is told,
once, and gets every answer that arrived before. Nothing here waits on a child; all of it is driven by the event loop.
"""

import asyncio
import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.messages import FailureKind
from hybrid.planner.types import Plan
from hybrid.telemetry.logs import LogHub
from hybrid.workers import wire
from hybrid.workers.arena import Slab, read_array
from hybrid.workers.environment import engine_environment
from hybrid.workers.judge import fault_of, takes_effect_at, too_large
from hybrid.workers.member import Member, MemberState, Taken
from hybrid.workers.pack import Rows, pack_batch
from hybrid.workers.process import ChildProcess, End
from hybrid.workers.seat import PoolCounts, Seat

log = logging.getLogger("hybrid.workers")

_TICK_S = 0.25
_CPUS_PER_START = 4  # of workers that start beside others which serve: loading takes one CPU each
_AT_ONCE, _GENTLY = "hybrid.workers.model_worker", "hybrid.workers.gently"


class Output(Struct, frozen=True):
    """One output of a batch, copied out of the arena."""

    name: str
    datatype: str
    array: np.ndarray[Any, Any]
    finite: bool


class BatchOrder(Struct, frozen=True):
    """A batch to run: where, how many rows, how long it should take and how long it may take at most."""

    id: int
    worker: int
    rows: int
    expected_s: float
    limit_s: float


class Listener(Protocol):
    """Who is told what happens to batches and workers."""

    def on_worker_ready(self, worker: int, slots: int, ready: wire.Ready) -> None:
        """A warmed worker takes batches from now on."""

    def on_worker_retired(self, worker: int) -> None:
        """The worker takes no further batches."""

    def on_worker_lost(self, worker: int, end: End) -> None:
        """The worker is gone, with all batches it had."""

    def on_no_hope(self) -> None:
        """Every seat keeps failing: what waits should not wait any longer."""

    def on_batch_ran(self, batch: int, outputs: Sequence[Output], ran: wire.Ran) -> None:
        """A batch was executed; the slot is free again."""

    def on_batch_failed(self, batch: int, kind: FailureKind, text: str) -> None:
        """A batch failed and its worker lives."""


class WorkerPool:
    """N seats, each with a worker or with one on its way."""

    def __init__(
        self,
        model: ModelSettings,
        plan: Plan,
        hub: LogHub,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        counts: PoolCounts | None = None,
    ) -> None:
        self.model = model
        self.plan = plan
        self.listener: Listener | None = None
        self.members: dict[int, Member] = {}
        self.counts = counts or PoolCounts()
        self.seats = [Seat(self.counts.seat(index)) for index in range(plan.instances)]
        self.ready = 0  # how many warmed workers take batches; asked once per request, so it is kept and not counted
        self.first_error = ""  # why the first start failed; the server gives up on it
        self._trouble = logging.DEBUG  # until a worker was ready once, whoever waits for that reports `first_error`
        self._hub = hub
        self._loop = loop
        self._clock = clock
        self._next_id = 0
        self._later: deque[int] = deque()  # seats that wait for the start of others to be over
        self._stopping = False
        self._idle = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        self.changed = asyncio.Event()

    # Life ----------------------------------------------------------------------------------------------------------

    def start(self, *, gently: bool = False) -> None:
        """Start a worker on every seat. Returns at once; `changed` is set whenever one becomes ready or fails.

        `gently` is for a start beside others that serve: few at a time, at a low priority until they are warm.
        """
        seats = list(range(self.plan.instances))
        at_once = _gentle_starts() if gently else len(seats)
        self._later = deque(seats[at_once:])
        for seat in seats[:at_once]:
            self._start_member(seat, gently=gently)
        self._ticked_at = self._clock()
        self._ticker = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self, timeout_s: float) -> None:
        """Let every worker leave after its batch; kill what is left after `timeout_s` seconds."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        for member in list(self.members.values()):
            starting = member.state is MemberState.STARTING
            self._enter(member, MemberState.STOPPED)
            if member.child is not None and starting:
                member.child.kill("stopped")  # it has nothing in hand, and does not listen while it loads
            elif member.child is not None:
                member.child.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_gone()
        except TimeoutError:
            for member in self.members.values():
                if timeout_s > 0.0:
                    self.kill(member.id, f"did not stop within {timeout_s:g} s")
                elif member.child is not None:
                    member.child.kill("stopped")
            await self._wait_gone()

    @property
    def failing(self) -> bool:
        """Whether every seat keeps dying without having executed anything: waiting for it is hopeless for now."""
        return self.ready == 0 and all(seat.hopeless for seat in self.seats)

    def kill(self, worker: int, why: str, *, own: bool = False) -> None:
        """End a worker at once; its seat is filled again. `own` when what it executes is the reason."""
        member = self.members.get(worker)
        if member is not None and member.child is not None:
            log.warning("w%d of %s: killing pid %d: %s", member.seat, self.model.name, member.child.pid, why)
            member.child.kill(why, own=own)

    # Batches -------------------------------------------------------------------------------------------------------

    def send(self, batch: BatchOrder, pieces: Sequence[Rows], pad: Mapping[str, int]) -> None:
        """Copy a batch into a free slot of its worker and let it run.

        Raises:
            MemoryError: no shared memory for the inputs; the slot stays free.
        """
        member = self.members[batch.worker]
        slot = member.free[-1]
        slab = member.slots[slot].inputs
        blocks = pack_batch(slab, pieces, batch.rows, pad, self.plan.static_length)
        member.take(batch.id, Taken(slot, batch.rows, batch.expected_s, batch.limit_s), self._clock())
        if member.child is not None:
            member.child.send(wire.Run(batch.id, slot, batch.rows, slab.size, blocks))

    def _on_event(self, member: Member, event: Any) -> None:
        kind = type(event)
        if kind is wire.Ran:
            self._on_ran(member, event)
        elif kind is wire.RunFailed:
            self._free_slot(member, event.batch_id)
            if self.listener is not None:
                self.listener.on_batch_failed(event.batch_id, FailureKind(event.kind), event.text)
        elif kind is wire.Ready:
            self._on_ready(member, event)
        elif kind is wire.StartFailed:
            member.start_error = event.text

    def _on_ran(self, member: Member, event: wire.Ran) -> None:
        taken = member.taken[event.batch_id]
        try:
            outputs = _copied_out(member.slots[taken.slot].outputs, event)
        except MemoryError as error:
            self._free_slot(member, event.batch_id)
            if self.listener is not None:
                self.listener.on_batch_failed(event.batch_id, FailureKind.MEMORY, str(error) or "out of memory")
            return
        member.batches_n += 1
        self.seats[member.seat].worked(taken.rows, event.compute_s + event.post_s + event.copy_s)
        self._free_slot(member, event.batch_id)
        if self.listener is not None:
            self.listener.on_batch_ran(event.batch_id, outputs, event)

    def _free_slot(self, member: Member, batch: int) -> None:
        member.give_back(batch, self._clock())
        if member.state is MemberState.RETIRING and not member.taken and member.child is not None:
            member.child.stop()

    # Workers -------------------------------------------------------------------------------------------------------

    def _start_member(self, seat: int, *, gently: bool = False) -> None:
        if self._stopping:
            return
        plan = self.plan
        self._next_id += 1
        try:
            member = Member(self._next_id, seat, plan.pipeline_depth, self._clock())
        except OSError as error:
            self._not_started(seat, f"cannot make shared memory: {error.strerror}")
            return
        self.members[member.id] = member
        member.gently = gently
        cores = plan.cores[seat] if seat < len(plan.cores) else ()
        start = wire.StartWorker(
            # Examples may be long, and no worker reads them.
            model=replace(self.model, engine=cast(Any, plan.engine), example_rows=()),
            engine=EngineSettings(threads=plan.threads_per_instance, device=plan.device),
            cores=cores,
            slots=tuple(slot.descriptors for slot in member.slots),
            max_batch=plan.max_batch,
            warm_length=plan.static_length or min(plan.size_edges, default=16),
            static_rows=plan.max_batch if plan.static else 0,
            starting_n=1 if any(one.state is MemberState.READY for one in self.members.values()) else plan.instances,
        )
        member.child = ChildProcess(
            f"w{seat} {self.model.name}",
            lambda event: self._on_event(member, event),
            lambda end: self._on_gone(member, end),
            self._loop,
        )
        member.child.on_deaf = lambda: self._on_deaf(member)
        descriptors = [fd for slot in start.slots for fd in (slot.inputs, slot.outputs)]
        environment = engine_environment(plan.threads_per_instance, os.environ)
        try:
            member.child.spawn(_GENTLY if gently else _AT_ONCE, start, descriptors, environment, self._hub)
        except OSError as error:
            member.child = None
            self._on_gone(member, End(f"cannot start a process: {error.strerror}"))

    def _on_ready(self, member: Member, ready: wire.Ready) -> None:
        if member.state is not MemberState.STARTING:
            return
        self._trouble = logging.ERROR
        self._enter(member, MemberState.READY)
        member.since = self._clock()
        if self._later:
            self._start_member(self._later.popleft(), gently=True)
        self._note_size(member, ready.rss_bytes)
        if self.listener is not None:
            self.listener.on_worker_ready(member.id, len(member.slots), ready)
        for old in self.members.values():
            if old.seat == member.seat and old is not member and old.state is MemberState.READY:
                self._retire(old)
        self.changed.set()

    def _enter(self, member: Member, state: MemberState) -> None:
        self.ready += (state is MemberState.READY) - (member.state is MemberState.READY)
        member.state = state

    def _note_size(self, member: Member, rss: int) -> None:
        member.fresh_rss_bytes = rss
        limit, effect = self.model.workers.rss_limit_bytes, takes_effect_at(member, self.model.workers)
        if limit is not None and effect is not None and effect > limit:
            text = "w%d of %s holds %d MiB when fresh: rss_limit_bytes (%d MiB) takes effect at %d MiB"
            log.warning(text, member.seat, self.model.name, rss >> 20, limit >> 20, int(effect) >> 20)

    def _retire(self, member: Member) -> None:
        self._enter(member, MemberState.RETIRING)
        if self.listener is not None:
            self.listener.on_worker_retired(member.id)
        if not member.taken and member.child is not None:
            member.child.stop()

    def _on_gone(self, member: Member, end: End) -> None:
        del self.members[member.id]
        state = member.state
        self._enter(member, MemberState.STOPPED)
        cause = member.start_error or end.cause
        if state in (MemberState.STARTING, MemberState.READY):
            self._note_end(member, cause, state)
        if self.listener is not None:
            self.listener.on_worker_lost(member.id, End(cause, end.own))
        member.close()
        self._idle.set()
        self.changed.set()
        self._after_end(member.seat, state)

    def _on_deaf(self, member: Member) -> None:
        """It is about to be gone: a batch that it got now would count as lost by it, without having been run."""
        if member.state is MemberState.READY and self.listener is not None:
            self.listener.on_worker_retired(member.id)

    def _note_end(self, member: Member, cause: str, state: MemberState) -> None:
        label = "start failed" if member.start_error else cause
        self.counts.ends[label] = self.counts.ends.get(label, 0) + 1
        was_ready = state is MemberState.READY
        if not was_ready:
            self.first_error = self.first_error or cause
        self.seats[member.seat].ended(cause, lasted=was_ready and member.lasted(self._clock()))
        pid = member.child.pid if member.child is not None else 0
        batches = ", ".join(f"no. {batch} (rows: {taken.rows})" for batch, taken in member.taken.items()) or "none"
        text = "w%d of %s (pid %d) ended: %s; batches in flight: %s"
        log.log(self._trouble, text, member.seat, self.model.name, pid, cause, batches)

    def _not_started(self, seat: int, cause: str) -> None:
        """There is not even a process to start on this seat."""
        log.log(self._trouble, "w%d of %s: %s", seat, self.model.name, cause)
        self.first_error = self.first_error or cause
        self.seats[seat].ended(cause, lasted=False)
        self.changed.set()
        self._after_end(seat, MemberState.STARTING)

    def _after_end(self, seat: int, state: MemberState) -> None:
        """Fill a seat again on which nobody is left. One that retires has a successor, or had one that ended later."""
        taken = any(one.seat == seat and one.state is not MemberState.RETIRING for one in self.members.values())
        if not taken and state is not MemberState.RETIRING:
            self._restart(seat, was_ready=state is MemberState.READY)
        elif state is MemberState.STARTING:
            self.seats[seat].successor_failed(self._clock())

    def _restart(self, seat: int, *, was_ready: bool) -> None:
        if self._stopping:
            return
        pause_s = self.seats[seat].next_life(was_ready=was_ready)
        log.log(min(self._trouble, logging.INFO), "w%d of %s: next start in %.2f s", seat, self.model.name, pause_s)
        self._loop.call_later(pause_s, self._start_member, seat)
        if self.failing and self.listener is not None:
            self.listener.on_no_hope()

    # Watching ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        late_s = now - self._ticked_at - _TICK_S
        self._ticked_at = now
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        for member in list(self.members.values()):
            if late_s > 1.0:
                member.forgive(late_s, now)  # this process itself stood still, and maybe all of them
            else:
                self._watch(member, now)

    def _watch(self, member: Member, now: float) -> None:
        fault = fault_of(member, self.model.workers, now)
        if fault is not None:
            self.kill(member.id, fault.text, own=fault.own)
        elif too_large(member, self.model.workers):
            self._recycle(member, now)

    def _recycle(self, member: Member, now: float) -> None:
        """Start a successor on the same seat; the old one works until it is ready."""
        seat = member.seat
        # Workers grow alike, and all of them twice is what the memory may not hold.
        if sum(one.gently and one.state is MemberState.STARTING for one in self.members.values()) >= _gentle_starts():
            return
        if member.child is None or not self.seats[seat].may_recycle(now):
            return
        if any(other.seat == seat and other is not member for other in self.members.values()):
            return
        rss, limit = member.child.rss_bytes >> 20, (self.model.workers.rss_limit_bytes or 0) >> 20
        log.warning("w%d of %s holds %d MiB, over its %d MiB: recycling", seat, self.model.name, rss, limit)
        self.counts.ends["recycled"] = self.counts.ends.get("recycled", 0) + 1
        self.seats[seat].last_end = f"recycled at {rss} MiB"
        self._start_member(seat, gently=True)

    async def _wait_gone(self) -> None:
        while self.members:
            self._idle.clear()
            await self._idle.wait()


def _gentle_starts() -> int:
    """How many workers may start at once beside others that serve."""
    return max(1, len(os.sched_getaffinity(0)) // _CPUS_PER_START)


def _copied_out(slab: Slab, event: wire.Ran) -> list[Output]:
    """Copy the outputs, so that the slot is free before anything is serialised: the worker's next batch goes first."""
    data = slab.view(event.mapped)
    return [Output(block.name, block.datatype, _own(read_array(data, block)), block.finite) for block in event.blocks]


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that does not lie in a slab; BYTES were copied by reading already."""
    return array if array.dtype == object else array.copy()
