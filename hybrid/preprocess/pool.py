"""The preprocess step of one model as the rest of the server sees it: submit rows, be called with arrays or an error.

The thin driver of `TaskState`: gives it time, sends what it decides to the processes of its `Crew`, hands answers to
their jobs. Driven by the event loop alone. A slow or crashing decoder costs its own request and one process.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from hybrid.config import PreprocessSettings
from hybrid.errors import HybridError, NotReady
from hybrid.messages import Signature
from hybrid.preprocess.base import Preprocessor, Row
from hybrid.preprocess.cache import CacheStats, RowCache
from hybrid.preprocess.crew import SILENT_S, Crew, Member
from hybrid.preprocess.job import NEVER, Job, Prepared, Refused, Task, TaskLimits
from hybrid.preprocess.short import ShortTexts
from hybrid.preprocess.stats import PreprocessStats, ProcessStats
from hybrid.preprocess.tasks import TaskState
from hybrid.preprocess.transfer import INLINE_BYTES, pack_items, unpack_rows
from hybrid.telemetry.logs import LogHub
from hybrid.workers import wire
from hybrid.workers.process import End

_TICK_S: Final = 0.5
_STALL_S: Final = 1.0  # a timer this late means that this process stood still, not its children
_GRACE_S: Final = 0.25
_TEXTS_PER_TASK: Final = 16


class PreprocessPool:
    """A bounded queue in front of N processes that run one model's preprocess step."""

    def __init__(
        self,
        model: str,
        settings: PreprocessSettings,
        processes: int,
        hub: LogHub,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
    ) -> None:
        self.processes = processes
        self.state = TaskState(_limits(settings))
        self.crew = Crew(model, settings, hub, loop, clock, self)
        salt = msgspec.json.encode(settings)
        self._cache = RowCache(settings.cache_bytes, salt) if settings.cache_bytes else None
        self._short = ShortTexts(settings, clock, self._cache)
        self._loop = loop
        self._clock = clock
        self._stopping = False
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._ticked_at = 0.0

    # Life ----------------------------------------------------------------------------------------------------------

    def start(self, signature: Signature) -> None:
        """Start the processes and return at once. `signature` is what the model takes; the step must fit it."""
        self.crew.start(self.processes, signature)
        self._ticked_at = self._clock()
        self._ticker = self._loop.call_later(_TICK_S, self._tick)

    async def stop(self, timeout_s: float) -> None:
        """Answer what is open with `NotReady`, end the processes, kill what is left after `timeout_s` seconds."""
        self._stopping = True
        for timer in (self._ticker, self._timer):
            if timer is not None:
                timer.cancel()
        self._answer(self.state.close_all(NotReady("the server is shutting down")))
        await self.crew.stop(timeout_s)

    @property
    def ready(self) -> int:
        """How many processes take tasks."""
        return self.crew.ready

    @property
    def first_error(self) -> str:
        """Why the first start failed, in the words of the step; empty when it did not."""
        return self.crew.first_error

    @property
    def changed(self) -> asyncio.Event:
        """Set whenever a process becomes ready or ends; whoever waits on it clears it."""
        return self.crew.changed

    def stats(self) -> PreprocessStats:
        """Return what telemetry shows of this pool."""
        state, short = self.state, self._short
        cache = self._cache.stats() if self._cache is not None else CacheStats()
        members = tuple(
            ProcessStats(member.child.pid, member.ready, member.child.rss_bytes, member.child.cpu_s)
            for member in self.crew.members.values()
            if member.child is not None
        )
        return PreprocessStats(
            processes=self.processes,
            ready=self.ready,
            busy=len(state.running),
            queued_items=state.queued_items,
            queued_bytes=state.queued_bytes,
            jobs_n=state.jobs_n + short.jobs_n,
            items_n=state.items_n + short.items_n,
            failed_n=state.failed_n + short.failed_n,
            timeouts_n=state.timeouts_n,
            downgraded_n=state.downgraded_n,
            restarts_n=self.crew.restarts_n,
            busy_s=state.busy_s + short.busy_s,
            cpu_s=self.crew.ended_cpu_s + sum(member.cpu_s for member in members),
            cache_hits_n=cache.hits_n,
            cache_misses_n=cache.misses_n,
            cache_entries=cache.entries,
            cache_bytes=cache.nbytes,
            members=members,
        )

    # Requests ------------------------------------------------------------------------------------------------------

    def at_once(self, items: Sequence[bytes], step: Preprocessor) -> Prepared | None:
        """Preprocess a request here and now if it is quick to do; None when it must be submitted.

        Raises:
            BadRequest: a row is not what it should be.
            NotReady: the pool is stopping.
        """
        if self._stopping:
            raise NotReady("the server is shutting down")
        return self._short.make(items, step)

    def submit(self, items: Sequence[bytes], deadline: float, on_done: Callable[[Prepared | HybridError], None]) -> Job:
        """Queue the rows of a request that are not in the cache.

        `on_done` is called exactly once, later, unless the job is cancelled first.

        Raises:
            BadRequest: no rows.
            NotReady: the pool is stopping.
            QueueFull: too many rows or bytes wait.
            TooLarge: more rows or bytes than an empty queue would take.
        """
        if self._stopping:
            raise NotReady("the server is shutting down")
        job = self._job(items, deadline, on_done)
        if items and not job.todo:
            job.closed, job.outcome = True, Prepared(tuple(job.rows), 0.0)
            self._answer([job])
            return job
        self.state.submit(job, self._clock())
        # Once per turn of the loop, so that all texts which were parsed in one turn travel in one message.
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)
        return job

    def cancel(self, job: Job) -> None:
        """Forget a job whose client left: rows that wait leave the queue now, `on_done` is not called any more."""
        job.on_done = None
        self.state.cancel(job)

    # Processes (called by the crew) --------------------------------------------------------------------------------

    def on_up(self, member: Member) -> None:
        """Give a process what waits."""
        self.state.add(member.id)
        self._pump()

    def on_transformed(self, member: Member, event: wire.Transformed) -> None:
        """Give each row to its job and answer those that are complete."""
        self._complete(member, unpack_rows(event, member.slot.outputs), event.seconds)

    def on_ending(self, member: Member) -> None:
        """Give it no further task."""
        self.state.retire(member.id)

    def on_gone(self, member: Member, end: End) -> None:
        """What it had in hand is tried again or fails, at once."""
        answered = self.state.lose(member.id, end.cause, own=end.own)
        self._pump()
        self._answer(answered)

    # Driving -------------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        self._pump_due = False
        if self._stopping:
            return
        now = self._clock()
        expired = self.state.expire(now)
        for task in self.state.dispatch(now):
            self._send(task)
        self._arm(now)
        self._answer(expired)

    def _send(self, task: Task) -> None:
        member = self.crew.members[task.process]
        member.used = True
        items = [job.items[index] for job, index in task.items]
        try:
            message = pack_items(task.id, items, member.slot.inputs, cheap=task.cheap)
        except MemoryError as error:
            self._loop.call_soon(self._unsendable, member, task, str(error))
            return
        if member.child is not None:
            member.child.send(message)

    def _unsendable(self, member: Member, task: Task, text: str) -> None:
        if self.state.running.get(member.id) is task:
            self._complete(member, [Refused(text, ours=True)] * len(task.items), 0.0)

    def _complete(self, member: Member, outcomes: Sequence[Row | Refused], seconds: float) -> None:
        member.slot.inputs.release()
        if self._cache is not None:
            self._keep(self._cache, self.state.running[member.id], outcomes)
        answered = self.state.complete(member.id, outcomes, seconds, self._clock())
        self._pump()
        self._answer(answered)

    def _job(self, items: Sequence[bytes], deadline: float, on_done: Callable[[Prepared | HybridError], None]) -> Job:
        cache = self._cache
        if cache is None:
            return Job(items, deadline, on_done)
        keys = [cache.key(item) for item in items]
        return Job(items, deadline, on_done, keys, [cache.get(key) for key in keys])

    @staticmethod
    def _keep(cache: RowCache, task: Task, outcomes: Sequence[Row | Refused]) -> None:
        """Take good rows into the cache, but none that is coarser than the next client may expect."""
        if task.cheap:
            return
        for (job, index), outcome in zip(task.items, outcomes, strict=True):
            if not isinstance(outcome, Refused):
                cache.put(job.keys[index], outcome)

    def _answer(self, jobs: Sequence[Job]) -> None:
        # Each in a call of its own: one that raises must not keep the others from their answers.
        for job in jobs:
            self._loop.call_soon(_finish, job)

    def _arm(self, now: float) -> None:
        """One timer. One that fires too early is kept: re-arming per request would cost more."""
        when = self.state.wake_at()
        if self._timer is not None:
            if self._timer_at <= when:
                return
            self._timer.cancel()
            self._timer = None
        if when != NEVER:
            self._timer_at = when
            # A millisecond is the resolution of the loop's timers: without it, one may fire just before it is due.
            self._timer = self._loop.call_later(max(0.0, when - now) + 0.001, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._clock()
        if now - self._timer_at > _STALL_S:
            self.state.postpone(now + _GRACE_S)
        for task in self.state.overdue(now):
            member = self.crew.members[task.process]
            task.stopped = member.silent_s(now) > SILENT_S or (member.child is not None and member.child.suspended)
            self.crew.kill(member, f"a task of {len(task.items)} rows takes longer than {now - task.started:.1f} s")
        self._pump()

    def _tick(self) -> None:
        now = self._clock()
        late_s = now - self._ticked_at - _TICK_S
        self._ticked_at = now
        self._ticker = self._loop.call_later(_TICK_S, self._tick)
        if late_s < _STALL_S:
            self.crew.watch(now, self.state.running)


def _limits(settings: PreprocessSettings) -> TaskLimits:
    step = settings.text or settings.image
    return TaskLimits(
        input=step.input if step is not None else "",
        item_timeout_s=settings.item_timeout_s,
        queue_items=settings.queue_items,
        queue_bytes=settings.queue_bytes,
        # An image costs milliseconds and a text microseconds: only texts gain from sharing a message.
        task_items=_TEXTS_PER_TASK if settings.text is not None else 1,
        task_bytes=INLINE_BYTES,
        downgrade=settings.on_timeout == "downgrade",
    )


def _finish(job: Job) -> None:
    on_done, job.on_done = job.on_done, None
    if on_done is not None and job.outcome is not None:
        on_done(job.outcome)
