"""One offline job: puts the parts together, keeps rows moving from the input to the output, and ends cleanly.

Owns the served model, the window of open rows and the counts. One event loop; reading has a thread of its own, because
a pipe may make it wait, and so has syncing, because a disk may.
"""

import asyncio
import gc
import signal
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from hybrid.clock import MonotonicClock
from hybrid.config import ModelSettings
from hybrid.errors import HybridError
from hybrid.offline.array_file import ArrayReader
from hybrid.offline.feed import Feed
from hybrid.offline.prepare import Preparation
from hybrid.offline.report import Counts, JobFailed, Report, Work
from hybrid.offline.results import Results
from hybrid.offline.rows import InputRow, Outcome, ReadyRow
from hybrid.offline.run import Runner
from hybrid.offline.source import Source
from hybrid.offline.window import Hurry, Limits, Window
from hybrid.planner.types import Plan
from hybrid.serving.model import ServedModel
from hybrid.serving.signals import Signals, before
from hybrid.telemetry.logs import LogHub

_SORTED_BATCHES: Final = 32
_AHEAD_CHUNKS: Final = 2
_SYNC_S: Final = 5.0
_PARTIAL_WAIT_S: Final = 0.05
_STOP_S: Final = 2.0


class Order(Struct, frozen=True):
    """What to do. `max_errors` None allows any number of rows to fail."""

    model: ModelSettings
    plan: Plan
    source: Source
    results: Results
    max_errors: int | None = None


class Job:
    """Runs once. `watch` is called with the counts four times a second while it runs."""

    def __init__(self, order: Order, hub: LogHub, watch: Callable[[Counts], None]) -> None:
        self._order = order
        self._hub = hub
        self._watch = watch
        self._clock = MonotonicClock()
        self._done_n = order.results.start
        self._began_at = self._clock()
        self._ready_at = 0.0
        self._signals: list[int] = []
        self._complete = False
        self._timers: list[asyncio.TimerHandle] = []
        self._flush: asyncio.TimerHandle | None = None
        self._pump_due = False
        self._draining = False
        self._syncing: asyncio.Future[None] | None = None

    async def run(self) -> Report:
        """Do all rows that are left, or as many as come before SIGINT, SIGTERM or SIGHUP.

        Raises:
            StartupError: the model cannot start, or does not fit the files.
            JobFailed: too many rows failed, a file cannot be read or written, or workers keep dying.
        """
        loop = self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[None] = loop.create_future()
        signals = Signals(loop)
        try:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signals.hear(number, partial(self._on_signal, number))
            return await self._run(loop)
        finally:
            signals.close(ending=False)  # what is left to say may find no reader, and then a signal ends it

    async def _run(self, loop: asyncio.AbstractEventLoop) -> Report:
        self._model = ServedModel(self._order.model, self._order.plan, self._hub, loop, self._clock)
        self._model.start()
        try:
            try:
                if await self._ready():
                    self._start()
                    await self._ended
            finally:
                await self._finish()
            return self._report()
        finally:
            # What still runs after a signal or a failure is of no use to anybody; after the last row nothing runs.
            await self._model.stop(_STOP_S if self._complete else 0.0)

    def counts(self) -> Counts:
        """Return how far it is."""
        source, results = self._order.source, self._order.results
        return Counts(
            done_n=self._done_n,
            start=results.start,
            faults_n=results.faults_n,
            rows_n=self._done_n if self._complete else source.rows_n,
            position=self._feed.position if self._ready_at else 0,
            size=source.size,
            elapsed_s=self._clock() - self._ready_at if self._ready_at else 0.0,
        )

    # Life ----------------------------------------------------------------------------------------------------------

    async def _ready(self) -> bool:
        """Wait for the model; False when a signal came first."""
        if not await before(asyncio.wait((self._ended,)), self._model.wait_ready()):
            return False
        signature = self._model.signature
        assert signature is not None
        self._order.results.fit(signature)
        if isinstance(self._order.source, ArrayReader):
            self._order.source.fit(signature, self._model.name)
        gc.collect()
        gc.freeze()  # what is there now stays: the collector need not look at it again and again
        return True

    def _start(self) -> None:
        model, results = self._model, self._order.results
        plan = model.plan  # not the order's: what was found when it was loaded may have lowered the batch size
        runner = self._runner = Runner(model, results.output, self._clock, self._on_done, self._fail)
        limits = Limits(
            open_rows=plan.max_batch * (runner.at_once + 2 * _SORTED_BATCHES),
            open_bytes=plan.queue_bytes,
            batch_rows=plan.max_batch,
            sorted_rows=plan.max_batch * _SORTED_BATCHES,
        )
        self._window = Window(limits, results.start)
        self._preparation = Preparation(model, self._on_ready, self._on_fault, self._fail)
        self._feed = Feed(self._order.source, results.start, self._loop, self._on_rows, self._on_end)
        self._ready_at = self._clock()
        self._feed.start()
        self._every(0.25, lambda: self._watch(self.counts()))
        self._every(_SYNC_S, self._sync)
        self._pump()

    def _every(self, seconds: float, do: Callable[[], None]) -> None:
        """Call `do` regularly until the end."""
        place = len(self._timers)

        def tick() -> None:
            self._timers[place] = self._loop.call_later(seconds, tick)
            do()

        self._timers.append(self._loop.call_later(seconds, tick))

    async def _finish(self) -> None:
        """Stop reading and bring what there is to the disk."""
        for timer in (*self._timers, self._flush):
            if timer is not None:
                timer.cancel()
        if self._ready_at:
            self._feed.stop()
        results = self._order.results
        if self._syncing is not None:
            await asyncio.wait((self._syncing,))
        try:
            results.finish(self._done_n if self._complete else None)
        except OSError as error:
            raise JobFailed(_unwritable(results, error)) from error

    def _on_signal(self, number: int) -> None:
        self._signals.append(number)
        if not self._ended.done():
            self._ended.set_result(None)

    def _fail(self, error: HybridError) -> None:
        if not self._ended.done():
            self._ended.set_exception(JobFailed(str(error)))

    # Rows ----------------------------------------------------------------------------------------------------------

    def _on_rows(self, rows: Sequence[InputRow]) -> None:
        image = self._order.model.preprocess.image
        decoded = 3 * image.width * image.height if image is not None else 0
        for row in rows:
            self._window.admit(row.index, max(row.nbytes, decoded))
        self._preparation.take(rows)
        self._pump_soon()

    def _on_end(self, error: Exception | None) -> None:
        if error is not None:
            self._fail(JobFailed(f"the input cannot be read any further: {error}"))
        self._pump_soon()

    def _on_ready(self, rows: Sequence[ReadyRow]) -> None:
        for row in rows:
            self._window.ready(row)
        self._pump_soon()

    def _on_fault(self, outcome: Outcome) -> None:
        self._on_done([outcome])

    def _on_done(self, outcomes: Sequence[Outcome]) -> None:
        self._window.settle(outcomes)
        self._pump_soon()

    def _pump_soon(self) -> None:
        """In a call of its own: the pump itself may cause what it is called for."""
        if not self._pump_due:
            self._pump_due = True
            self._loop.call_soon(self._pump)

    def _pump(self, flush: bool = False) -> None:
        """Move on whatever can move: outcomes to the file, rows into batches, room to the reader."""
        self._pump_due = False
        if self._ended.done():
            return
        window, feed = self._window, self._feed
        self._write(window.take_done())
        while window.room and feed.asked_n < _AHEAD_CHUNKS and not feed.ended:
            feed.more()
        self._runner.take(window.cut(self._hurry(flush)))
        if window.ready_n and self._runner.idle and self._flush is None:
            wait_s = max(_PARTIAL_WAIT_S, self._model.plan.max_wait_s)
            self._flush = self._loop.call_later(wait_s, self._on_flush)
        if feed.ended and self._preparation.idle and not window.ready_n:
            if not self._draining:
                self._draining = True
                self._model.drain()  # a static batch that is cut short need not wait for its timer
            if not window.open_n and not self._ended.done():
                self._complete = True
                self._ended.set_result(None)

    def _hurry(self, flush: bool) -> Hurry:
        idle = self._runner.idle
        if not self._preparation.idle:
            return Hurry.NONE  # more rows are about to be ready; unsorted batches cost more than this wait, even idle
        if self._feed.ended or (flush and idle):
            return Hurry.ALL
        if self._window.room:
            return Hurry.SOME if idle else Hurry.NONE
        return Hurry.ALL if idle else Hurry.SOME

    def _on_flush(self) -> None:
        self._flush = None
        self._pump(flush=True)

    # Files ---------------------------------------------------------------------------------------------------------

    def _write(self, outcomes: Sequence[Outcome]) -> None:
        if not outcomes:
            return
        results, most = self._order.results, self._order.max_errors
        try:
            results.append(outcomes)
        except OSError as error:
            self._fail(JobFailed(_unwritable(results, error)))
            return
        self._done_n += len(outcomes)
        if most is not None and results.faults_n > most:
            text = f"{results.faults_n} rows failed, more than --max-errors {most} allows"
            self._fail(JobFailed(f"{text}; {results.errors_path} says why"))

    def _sync(self) -> None:
        if self._syncing is None or self._syncing.done():
            results = self._order.results
            try:
                results.output.settle()
            except OSError as error:
                self._fail(JobFailed(_unwritable(results, error)))
                return
            self._syncing = self._loop.run_in_executor(None, results.sync)

    def _report(self) -> Report:
        return Report(
            counts=self.counts(),
            work=self._runner.work() if self._ready_at else Work(),
            startup_s=(self._ready_at or self._clock()) - self._began_at,
            signal=self._signals[0] if self._signals else 0,
        )


def run_job(order: Order, hub: LogHub, watch: Callable[[Counts], None]) -> Report:
    """Run a job in this process.

    Raises:
        StartupError, JobFailed: as `Job.run`.
    """
    import uvloop  # the only place here that needs it

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(Job(order, hub, watch).run())


def _unwritable(results: Results, error: OSError) -> str:
    return f"{results.path}: cannot be written: {error.strerror or error}"
