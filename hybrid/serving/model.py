"""One served model: its plan, workers, batcher and preprocess pool, started and stopped together.

Owns these parts. Knows no protocol; `inference` takes a request through them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from hybrid.batching.classes import Mix
from hybrid.batching.scheduler import Scheduler
from hybrid.config import ModelSettings
from hybrid.errors import StartupError
from hybrid.messages import Signature, Tensor, TensorSpec
from hybrid.planner.types import Plan
from hybrid.preprocess.base import Preprocessor
from hybrid.preprocess.build import build
from hybrid.preprocess.pool import PreprocessPool
from hybrid.serving.counters import Counters
from hybrid.serving.learner import SizeLearner
from hybrid.serving.policy import policy_of
from hybrid.serving.sizes import area_of, image_dims
from hybrid.telemetry.logs import LogHub
from hybrid.workers import wire
from hybrid.workers.pool import WorkerPool

log = logging.getLogger("hybrid.serving")

_BATCHES_WAITING: Final = 4  # what size classes are learned for: a busy server, where rows choose their company


class ServedModel:
    """A model as the front ends see it."""

    def __init__(
        self,
        settings: ModelSettings,
        plan: Plan,
        hub: LogHub,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        counters: Counters | None = None,
    ) -> None:
        self.settings = settings
        self.plan = plan  # in force: what was planned, with what was found at load and learned from traffic
        self.planned = self.started_by = plan  # last, and when the workers were started
        self.why = ""  # the plan is as it is
        self.since_s = clock()
        self.counters = counters or Counters()
        self.tally = self.counters.tally
        self.open_n = 0  # requests that are bound to this very model and have no answer yet
        self._stopping = False
        self._start_error = ""
        self._clock = clock
        self._caps: dict[int, str] = {}  # rows that a batch may have at most, and why
        self._heir_of: ServedModel | None = None
        self.owns_preprocess = True
        self._image: tuple[str, tuple[int, ...]] | None = None  # input and dimensions where images of any size come
        self._learner: SizeLearner | None = None
        if not settings.batching.size_edges and not plan.static:
            self._learner = SizeLearner(settings.batching.max_classes, clock())
        self.signature: Signature | None = None  # known once the first worker has loaded the model
        self.preprocessor: Preprocessor | None = None
        self.preprocess: PreprocessPool | None = None
        if settings.preprocess.text is not None or settings.preprocess.image is not None:
            self.preprocess = PreprocessPool(
                settings.name, settings.preprocess, max(1, plan.preprocess_processes), hub, loop, clock
            )
        self.pool = WorkerPool(settings, plan, hub, loop, clock, self.counters.pool)
        pad = settings.batching.pad_inputs
        self.scheduler = Scheduler(policy_of(plan, settings.batching), self.pool, pad, loop, clock)
        self.scheduler.state.lanes.classes = self.counters.classes
        self.scheduler.on_ready = self._on_ready

    @property
    def name(self) -> str:
        """The name clients use."""
        return self.settings.name

    @property
    def version(self) -> str:
        """The version clients may name."""
        return self.settings.version

    @property
    def ready(self) -> bool:
        """Whether a request would be served now: at least one warmed worker, and one preprocess process if needed."""
        return self.pool.ready > 0 and (self.preprocess is None or self.preprocess.ready > 0)

    @property
    def accepting(self) -> bool:
        """Whether a request is taken in: once loaded, also for the moment in which a lost worker is replaced.

        Such a request waits in the queue within its bounds and its deadline instead of being bounced.
        """
        if self._stopping:  # first: the workers count as ready until they are told, and would leave without an answer
            return False
        return self.ready or (self.signature is not None and not self.pool.failing)

    @property
    def why_not_ready(self) -> str:
        """One sentence on what is missing; empty when ready."""
        if self._stopping:
            return "it was unloaded or replaced, or the server is shutting down"
        if self.pool.ready == 0:
            ends = [seat.last_end for seat in self.pool.seats if seat.last_end]
            return f"no warmed worker{': ' + ends[-1] if ends else ', still starting'}"
        if self.preprocess is not None and self.preprocess.ready == 0:
            return "no preprocess process" + (f": {self.preprocess.first_error}" if self.preprocess.first_error else "")
        return ""

    def inputs(self) -> tuple[TensorSpec, ...]:
        """What clients are told to send: the encoded item where there is a preprocess step, else the model's inputs."""
        if self.preprocessor is not None:
            return (self.preprocessor.input,)
        return self.signature.inputs if self.signature is not None else ()

    def public_signature(self) -> Signature:
        """The signature for metadata. Models with a preprocess step take their raw tensors as well."""
        signature = self.signature or Signature((), ())
        return Signature(inputs=self.inputs(), outputs=signature.outputs, platform=signature.platform)

    @property
    def sorts_rows(self) -> bool:
        """Whether the rows of one request may travel in another order, each with rows of its own length."""
        policy = self.scheduler.state.policy
        return policy.formation != "fifo" and policy.max_batch > 1

    def area_of(self, tensors: Sequence[Tensor]) -> int:
        """Return the pixels of a row where they vary from request to request; else 0."""
        return area_of(tensors, self._image) if self._image is not None else 0

    def note_sizes(self, sizes: Sequence[int]) -> None:
        """Take in the sizes of a request's rows; now and then the size classes follow the traffic."""
        learner = self._learner
        if learner is not None:
            learner.note(sizes)
            if learner.due(self._clock()):
                self._learn(learner)

    def start(self, *, gently: bool = False) -> None:
        """Start the workers; returns at once. The preprocess step follows when the model's inputs are known.

        `gently` spares those that serve meanwhile, and takes longer.
        """
        self.pool.start(gently=gently)

    async def wait_ready(self) -> None:
        """Wait until every seat is warmed once.

        Raises:
            StartupError: a worker or preprocess process failed before it was ready; in its own words.
        """
        await _wait(
            self.pool.changed, lambda: self._started(self.pool.ready, self.plan.instances, self.pool.first_error)
        )
        preprocess = self.preprocess
        if preprocess is not None and self.owns_preprocess:  # that of another one serves already
            wanted = preprocess.processes
            failed = self._start_error
            await _wait(
                preprocess.changed, lambda: self._started(preprocess.ready, wanted, failed or preprocess.first_error)
            )

    def inherit(self, other: "ServedModel") -> None:
        """Before it starts: make use of what another one of the same settings has, which it will replace."""
        self._heir_of = other
        if self._learner is not None and other._learner is not None:
            self._learner = other._learner
        self._learn_from(other.plan)
        self._enforce()

    def take_over(self, other: "ServedModel") -> None:
        """Be responsible from now on for what both use."""
        self._heir_of = None
        self.since_s = self._clock()
        if self.preprocess is other.preprocess:
            self.owns_preprocess, other.owns_preprocess = other.owns_preprocess, False

    def adopt(self, plan: Plan, why: str) -> None:
        """Go by another plan from now on, with the workers that there are."""
        if plan.differs(self.planned):
            self.since_s, self.why = self._clock(), why
        before, self.planned, self.plan = self.plan, plan, plan
        self._learn_from(before)
        for rows, reason in self._caps.items():
            self._cap(rows, reason)
        self._enforce()

    def drain(self) -> None:
        """Release what waits, and what is still on its way to the queue, without waiting for more."""
        self.scheduler.drain()

    async def stop(self, timeout_s: float) -> None:
        """Answer what is still open with 503 and end all processes; those that do not leave in time are killed."""
        self._stopping = True
        self.scheduler.abandon()
        parts = [self.pool.stop(timeout_s)]
        if self.preprocess is not None and self.owns_preprocess:
            parts.append(self.preprocess.stop(timeout_s))
        await asyncio.gather(*parts)

    def _started(self, ready: int, wanted: int, error: str) -> bool:
        if ready >= wanted:
            return True
        if error:
            raise StartupError(f"model {self.name} cannot start: {error.removeprefix(f'model {self.name}: ')}")
        return False

    def _on_ready(self, ready: wire.Ready) -> None:
        """The engine reports what it has loaded. Rows that influence each other are not batched; a fixed count caps."""
        if self.signature is None:
            self.signature = ready.signature
            self._image = image_dims(ready.signature.inputs)
            if self.preprocess is not None:
                self._start_preprocess(self.preprocess, ready.signature)
        # Kept for good: a worker that is started later for single rows checks nothing, and so takes nothing back.
        if ready.unbatchable is not None:
            self._caps.setdefault(1, f"1, found at load: {ready.unbatchable}")
        elif ready.max_rows is not None:
            rows = ready.max_rows
            self._caps.setdefault(rows, f"{rows}, found at load: the model takes exactly that many rows")
        for rows, reason in self._caps.items():
            if self.plan.max_batch > rows:
                log.warning("%s: %s: %s", self.name, "batching is off" if rows == 1 else "max_batch is lowered", reason)
                self._cap(rows, reason)
                self._enforce()

    def _cap(self, rows: int, reason: str) -> None:
        """Take what was found at load into the plan, so that everybody who reads it sees what is in force."""
        plan = self.plan
        if plan.max_batch > rows:
            self.plan = replace(
                plan,
                max_batch=rows,
                early_trigger=min(plan.early_trigger, rows),
                batching="off" if rows == 1 else plan.batching,
                reasons=plan.reasons | {"max_batch": reason},
            )

    def _learn_from(self, other: Plan) -> None:
        """Take over size classes that another plan has from live traffic, where this one leaves them to be learned."""
        if self._learner is not None and not self.plan.size_edges and other.size_edges:
            reasons = self.plan.reasons | {"size_edges": other.reasons["size_edges"]}
            self.plan = replace(self.plan, size_edges=other.size_edges, reasons=reasons)

    def _enforce(self) -> None:
        self.pool.plan = self.plan
        self.scheduler.set_policy(policy_of(self.plan, self.settings.batching))

    def _learn(self, learner: SizeLearner) -> None:
        """Take better edges into the plan and into force. What waits already keeps its class."""
        plan = self.plan
        mix = Mix(plan.max_batch, _BATCHES_WAITING * plan.max_batch)
        cost = self.scheduler.state.lanes.batch_cost()
        learned = learner.look(plan.size_edges, cost, mix, self._clock())
        if learned is None:
            return
        reason = f"Learned from {learned.requests} requests: rows padded to these edges cost {learned.gain:.0%} less"
        log.info("%s: size classes %s (%s)", self.name, ",".join(map(str, learned.edges)), reason)
        before = "than in one class." if not plan.size_edges else "than with the edges before."
        self.plan = replace(plan, size_edges=learned.edges, reasons=plan.reasons | {"size_edges": f"{reason} {before}"})
        self.scheduler.set_policy(policy_of(self.plan, self.settings.batching))

    def _start_preprocess(self, preprocess: PreprocessPool, signature: Signature) -> None:
        other = self._heir_of
        if other is not None and self._fits(other, signature):
            self.preprocess, self.preprocessor, self.owns_preprocess = other.preprocess, other.preprocessor, False
            return
        try:
            self.preprocessor = build(self.settings.preprocess, signature)
            preprocess.start(signature)
        except StartupError as error:
            self._start_error = str(error)

    def _fits(self, other: "ServedModel", signature: Signature) -> bool:
        """Whether the preprocess step of another one does what this one needs: the start of processes is saved."""
        return (
            other.signature is not None
            and other.signature.inputs == signature.inputs
            and other.planned.preprocess_processes == self.planned.preprocess_processes
        )


async def _wait(changed: asyncio.Event, done: Callable[[], bool]) -> None:
    while not done():
        changed.clear()
        await changed.wait()
