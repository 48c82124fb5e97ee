"""The preprocess processes of one model: started, watched, replaced.

Owns the processes and their slabs. Knows nothing of requests: the pool is told what a process says and that one is
gone, and says which ones are at work.
"""

import asyncio
import logging
from collections.abc import Callable, Container
from typing import Any, Final, Protocol

from hybrid.config import PreprocessSettings
from hybrid.messages import Signature
from hybrid.telemetry.logs import LogHub
from hybrid.workers import wire
from hybrid.workers.member import Slot
from hybrid.workers.process import ChildProcess, End

log = logging.getLogger("hybrid.preprocess")

SILENT_S: Final = 3.0
_START_TIMEOUT_S: Final = 60.0
_FIRST_BACKOFF_S: Final = 0.25
_LAST_BACKOFF_S: Final = 10.0
_THREADS: Final = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


class Member:
    """One process with its pair of slabs."""

    def __init__(self, member_id: int, now: float) -> None:
        self.id = member_id
        self.since = now
        self.slot = Slot()
        self.child: ChildProcess | None = None
        self.up = False  # said that it is ready, once
        self.ending = False  # killed or told to leave
        self.used = False  # was given a task, so whatever ends it, starting it works
        self.start_error = ""

    @property
    def ready(self) -> bool:
        """Whether it may be given tasks."""
        return self.up and not self.ending

    def silent_s(self, now: float) -> float:
        """Return how long nothing was heard of it."""
        return now - self.child.heard_at if self.child is not None else 0.0


class CrewListener(Protocol):
    """Who is told about the processes."""

    def on_up(self, member: Member) -> None:
        """A process takes tasks."""

    def on_transformed(self, member: Member, event: wire.Transformed) -> None:
        """A process has finished its task."""

    def on_ending(self, member: Member) -> None:
        """The process is about to be ended and must get no further task."""

    def on_gone(self, member: Member, end: End) -> None:
        """The process does not exist any more; its slabs are still there until this returns."""


class Crew:
    """N places, each with a process or with one on its way."""

    def __init__(
        self,
        model: str,
        settings: PreprocessSettings,
        hub: LogHub,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        listener: CrewListener,
    ) -> None:
        self.model = model
        self.members: dict[int, Member] = {}
        self.first_error = ""
        self.changed = asyncio.Event()
        self.restarts_n = 0
        self.ended_cpu_s = 0.0  # of processes that are gone, as of their last heartbeats
        self._settings = settings
        self._signature = Signature((), ())
        self._hub = hub
        self._loop = loop
        self._clock = clock
        self._listener = listener
        self._next_id = 0
        self._failures = 0  # lives in a row that ended before they were given anything
        self._stopping = False
        self._gone = asyncio.Event()

    def start(self, processes: int, signature: Signature) -> None:
        """Start the processes; returns at once."""
        self._signature = signature
        for _ in range(processes):
            self._start_member()

    async def stop(self, timeout_s: float) -> None:
        """Tell the processes to leave after the task in hand; kill what is left after `timeout_s` seconds."""
        self._stopping = True
        for member in list(self.members.values()):
            self._end(member)
            if member.child is not None:
                member.child.stop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_gone()
        except TimeoutError:
            for member in list(self.members.values()):
                if timeout_s > 0.0:
                    self.kill(member, f"did not stop within {timeout_s:g} s")
                elif member.child is not None:  # nobody was given time, so there is nothing to warn of
                    member.child.kill("stopped")
            await self._wait_gone()

    @property
    def ready(self) -> int:
        """How many processes take tasks."""
        return sum(member.ready for member in self.members.values())

    def kill(self, member: Member, why: str) -> None:
        """End a process at once; another one takes its place."""
        self._end(member)
        if member.child is not None:
            log.warning("killing preprocess process %d of %s: %s", member.child.pid, self.model, why)
            member.child.kill(why)

    def watch(self, now: float, busy: Container[int]) -> None:
        """Kill what is silent without being busy, and what does not come up."""
        for member in list(self.members.values()):
            silent_s = member.silent_s(now)
            if not member.up and now - member.since > _START_TIMEOUT_S:
                self.kill(member, f"not ready after {_START_TIMEOUT_S:g} s")
            elif member.ready and silent_s > SILENT_S and member.id not in busy:
                # A busy one is judged by the time limit of its rows: a decoder may hold the interpreter that long.
                self.kill(member, f"silent for {silent_s:.1f} s")

    # Inside --------------------------------------------------------------------------------------------------------

    def _start_member(self) -> None:
        if self._stopping:
            return
        self._next_id += 1
        try:
            member = Member(self._next_id, self._clock())
        except OSError as error:
            self._start_failed(f"cannot make shared memory: {error.strerror}")
            self._start_later()
            return
        self.members[member.id] = member
        member.child = ChildProcess(
            f"preprocess {self.model}",
            lambda event: self._on_event(member, event),
            lambda end: self._on_gone(member, end),
            self._loop,
        )
        slabs = member.slot.descriptors
        start = wire.StartPreprocess(self.model, self._settings, self._signature, (slabs,))
        descriptors = (slabs.inputs, slabs.outputs)
        environment = dict.fromkeys(_THREADS, "1")
        try:
            member.child.spawn("hybrid.preprocess.process", start, descriptors, environment, self._hub)
        except OSError as error:
            member.child = None
            self._on_gone(member, End(f"cannot start a process: {error.strerror}"))

    def _on_event(self, member: Member, event: Any) -> None:
        kind = type(event)
        if kind is wire.Transformed:
            self._listener.on_transformed(member, event)
        elif kind is wire.Ready:
            member.up = True
            if member.ready:
                self._listener.on_up(member)
            self.changed.set()
        elif kind is wire.StartFailed:
            member.start_error = event.text

    def _on_gone(self, member: Member, end: End) -> None:
        del self.members[member.id]
        cause = member.start_error or end.cause
        if member.child is not None:
            self.ended_cpu_s += member.child.cpu_s
        if not self._stopping:
            log.error("a preprocess process of %s ended: %s", self.model, cause)
            if not member.up:
                self._start_failed(cause)
            self._failures = 0 if member.used else self._failures + 1
            self._start_later()
        self._gone.set()
        self.changed.set()
        self._listener.on_gone(member, End(cause, end.own))
        member.slot.close()

    def _start_failed(self, cause: str) -> None:
        self.first_error = self.first_error or cause
        self.changed.set()

    def _start_later(self) -> None:
        """Replace a process at once, unless it never came to work: then after a pause that doubles each time."""
        self.restarts_n += 1
        pause_s = 0.0
        if self._failures:
            pause_s = min(_LAST_BACKOFF_S, _FIRST_BACKOFF_S * 2.0 ** min(self._failures - 1, 10))
        self._loop.call_later(pause_s, self._start_member)

    def _end(self, member: Member) -> None:
        if not member.ending:
            member.ending = True
            self._listener.on_ending(member)

    async def _wait_gone(self) -> None:
        while self.members:
            self._gone.clear()
            await self._gone.wait()
