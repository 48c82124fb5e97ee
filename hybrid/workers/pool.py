"""The workers of one model: started, watched, replaced, recycled.

Owns every incarnation and its slabs. What a lost worker means for requests is not decided here: the listener is told,
once, and gets every answer that arrived before. Nothing here waits on a child; all of it is driven by the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.messages import FailureKind
from hybrid.planner.types import Plan
from hybrid.telemetry.logs import LogHub
from hybrid.workers import wire
from hybrid.workers.arena import Slab, read_array
from hybrid.workers.member import Member, MemberState, SeatTotals, Taken
from hybrid.workers.pack import Rows, pack_batch
from hybrid.workers.process import ChildProcess

log = logging.getLogger("hybrid.workers")

_TICK_S = 0.25
_FIRST_BACKOFF_S = 0.25
_LAST_BACKOFF_S = 10.0
_HOPELESS = 4


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

    def on_worker_lost(self, worker: int, cause: str) -> None:
        """The worker is gone, with all batches it had."""

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
    ) -> None:
        self.model = model
        self.plan = plan
        self.listener: Listener | None = None
        self.members: dict[int, Member] = {}
        self.restarts_n = [0] * plan.instances
        self.totals = [SeatTotals() for _ in range(plan.instances)]
        self.ends: dict[str, int] = {}
        self.last_end = [""] * plan.instances
        self.ready = 0  # how many warmed workers take batches; asked once per request, so it is kept and not counted
        self.first_error = ""  # why the first start failed; the server gives up on it
        self._hub = hub
        self._loop = loop
        self._clock = clock
        self._failures = [0] * plan.instances  # lives in a row on this seat that executed nothing
        self._next_id = 0
        self._stopping = False
        self._idle = asyncio.Event()
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0
        self.changed = asyncio.Event()

    # Life ----------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start a worker on every seat. Returns at once; `changed` is set whenever one becomes ready or fails."""
        for seat in range(self.plan.instances):
            self._start_member(seat)
        self._ticked_at = self._clock()
        self._ticker = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self, timeout_s: float) -> None:
        """Let every worker leave after its batch; kill what is left after `timeout_s` seconds."""
        self._stopping = True
        if self._ticker is not None:
            self._ticker.cancel()
        for member in list(self.members.values()):
            self._enter(member, MemberState.STOPPED)
            if member.child is not None:
                member.child.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_gone()
        except TimeoutError:
            for member in self.members.values():
                self.kill(member.id, "did not stop in time")
            await self._wait_gone()

    @property
    def failing(self) -> bool:
        """Whether every seat keeps dying without having executed anything: waiting for it is hopeless for now."""
        return self.ready == 0 and min(self._failures) >= _HOPELESS

    def kill(self, worker: int, why: str) -> None:
        """End a worker at once; its seat is filled again."""
        member = self.members.get(worker)
        if member is not None and member.child is not None:
            log.warning("w%d of %s: killing pid %d: %s", member.seat, self.model.name, member.child.pid, why)
            member.child.kill(why)

    # Batches -------------------------------------------------------------------------------------------------------

    def send(self, batch: BatchOrder, pieces: Sequence[Rows], pad: Mapping[str, int]) -> None:
        """Copy a batch into a free slot of its worker and let it run.

        Raises:
            MemoryError: no shared memory for the inputs; the slot stays free.
        """
        member = self.members[batch.worker]
        slot = member.free[-1]
        slab = member.slots[slot].inputs
        blocks = pack_batch(slab, pieces, batch.rows, pad)
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
        totals = self.totals[member.seat]
        totals.batches_n += 1
        totals.rows_n += taken.rows
        totals.busy_s += event.compute_s + event.post_s + event.copy_s
        self._failures[member.seat] = 0
        self._free_slot(member, event.batch_id)
        if self.listener is not None:
            self.listener.on_batch_ran(event.batch_id, outputs, event)

    def _free_slot(self, member: Member, batch: int) -> None:
        member.give_back(batch, self._clock())
        if member.state is MemberState.RETIRING and not member.taken and member.child is not None:
            member.child.stop()

    # Workers -------------------------------------------------------------------------------------------------------

    def _start_member(self, seat: int) -> None:
        if self._stopping:
            return
        plan = self.plan
        self._next_id += 1
        member = Member(self._next_id, seat, plan.pipeline_depth, self._clock())
        self.members[member.id] = member
        cores = plan.cores[seat] if seat < len(plan.cores) else ()
        threads = str(plan.threads_per_instance)
        start = wire.StartWorker(
            model=self.model,
            engine=EngineSettings(threads=plan.threads_per_instance, device=plan.device),
            cores=cores,
            slots=tuple(slot.descriptors for slot in member.slots),
            max_batch=plan.max_batch,
            warm_length=min(plan.size_edges, default=16),
        )
        member.child = ChildProcess(
            f"w{seat} {self.model.name}",
            lambda event: self._on_event(member, event),
            lambda cause: self._on_gone(member, cause),
            self._loop,
        )
        descriptors = [fd for slot in start.slots for fd in (slot.inputs, slot.outputs)]
        environment = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), threads)
        try:
            member.child.spawn("hybrid.workers.model_worker", start, descriptors, environment, self._hub)
        except OSError as error:
            member.child = None
            self._on_gone(member, f"cannot start a process: {error.strerror}")

    def _on_ready(self, member: Member, ready: wire.Ready) -> None:
        if member.state is not MemberState.STARTING:
            return
        self._enter(member, MemberState.READY)
        member.since = self._clock()
        if self.listener is not None:
            self.listener.on_worker_ready(member.id, len(member.slots), ready)
        for old in self.members.values():
            if old.seat == member.seat and old is not member and old.state is MemberState.READY:
                self._retire(old)
        self.changed.set()

    def _enter(self, member: Member, state: MemberState) -> None:
        self.ready += (state is MemberState.READY) - (member.state is MemberState.READY)
        member.state = state

    def _retire(self, member: Member) -> None:
        self._enter(member, MemberState.RETIRING)
        if self.listener is not None:
            self.listener.on_worker_retired(member.id)
        if not member.taken and member.child is not None:
            member.child.stop()

    def _on_gone(self, member: Member, cause: str) -> None:
        del self.members[member.id]
        expected = member.state in (MemberState.RETIRING, MemberState.STOPPED)
        was_ready = member.state is MemberState.READY
        cause = member.start_error or cause
        if not expected:
            self._note_end(member, cause, was_ready)
        self._enter(member, MemberState.STOPPED)
        if self.listener is not None:
            self.listener.on_worker_lost(member.id, cause)
        member.close()
        self._idle.set()
        self.changed.set()
        seat_taken = any(other.seat == member.seat for other in self.members.values())
        if not self._stopping and not seat_taken:
            self.restarts_n[member.seat] += 1
            self._loop.call_later(self._backoff_s(member.seat, was_ready), self._start_member, member.seat)

    def _note_end(self, member: Member, cause: str, was_ready: bool) -> None:
        if not was_ready and not self.first_error:
            self.first_error = cause
        label = "start failed" if member.start_error else cause
        self.ends[label] = self.ends.get(label, 0) + 1
        self.last_end[member.seat] = cause
        if not member.productive:
            self._failures[member.seat] += 1
        pid = member.child.pid if member.child is not None else 0
        batches = ",".join(map(str, member.taken)) or "none"
        log.error(
            "w%d of %s (pid %d) ended: %s; batches in flight: %s", member.seat, self.model.name, pid, cause, batches
        )

    def _backoff_s(self, seat: int, was_ready: bool) -> float:
        """Restart at once after a productive life; double the pause for each life in a row that executed nothing.

        A worker that was ready and died twice in its first batch is more likely the victim of two bad requests than a
        broken model, so the pause starts with the third such life; one that cannot even start pauses from the first.
        """
        failures = self._failures[seat] - (2 if was_ready else 0)
        return 0.0 if failures <= 0 else min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** (failures - 1))

    # Watching ------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        late_s = now - self._ticked_at - _TICK_S
        self._ticked_at = now
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        if late_s > 1.0:
            return  # this process itself was stopped or starved: beats are waiting unread, judge at the next tick
        for member in list(self.members.values()):
            self._watch(member, now)

    def _watch(self, member: Member, now: float) -> None:
        settings = self.model.workers
        child = member.child
        if child is None:
            return
        if member.state is MemberState.STARTING and now - member.since > settings.start_timeout_s:
            self.kill(member.id, f"not ready after {settings.start_timeout_s:g} s")
        elif member.state in (MemberState.READY, MemberState.RETIRING):
            overdue_s = member.overdue_s(now)
            if overdue_s is not None:
                self.kill(member.id, f"hung: its batch runs for {overdue_s:.1f} s")
            elif now - child.heard_at > self._patience_s(member):
                self.kill(member.id, f"silent for {now - child.heard_at:.1f} s")
            elif settings.rss_limit_bytes and child.rss_bytes > settings.rss_limit_bytes:
                self._recycle(member, child.rss_bytes, settings.rss_limit_bytes)

    def _patience_s(self, member: Member) -> float:
        """An engine may hold the interpreter for a whole batch, so a busy worker may be silent for longer."""
        longest = max((taken.expected_s for taken in member.taken.values()), default=0.0)
        return max(self.model.workers.heartbeat_timeout_s, 3.0 * longest)

    def _recycle(self, member: Member, rss: int, limit: int) -> None:
        """Start a successor on the same seat; the old one works until it is ready."""
        if any(other.seat == member.seat and other is not member for other in self.members.values()):
            return
        name = self.model.name
        log.warning("w%d of %s holds %d MiB, over its %d MiB: recycling", member.seat, name, rss >> 20, limit >> 20)
        self.ends["recycled"] = self.ends.get("recycled", 0) + 1
        self.last_end[member.seat] = f"recycled at {rss >> 20} MiB"
        self._start_member(member.seat)

    async def _wait_gone(self) -> None:
        while self.members:
            self._idle.clear()
            await self._idle.wait()


def _copied_out(slab: Slab, event: wire.Ran) -> list[Output]:
    """Copy the outputs, so that the slot is free before anything is serialised: the worker's next batch goes first."""
    data = slab.view(event.mapped)
    return [Output(block.name, block.datatype, _own(read_array(data, block)), block.finite) for block in event.blocks]


def _own(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that does not lie in a slab; BYTES were copied by reading already."""
    return array if array.dtype == object else array.copy()
