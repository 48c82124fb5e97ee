"""One request on its way: check, preprocess, queue, answer. Protocol-neutral; front ends hand in and get messages.

Callbacks and no coroutine: a task and a future per request would cost more than all of this does.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from hybrid.batching.queue import INFINITY, Outcome, Ticket
from hybrid.errors import (
    BadRequest,
    ClientGone,
    DeadlineExceeded,
    HybridError,
    InferenceFailed,
    NotReady,
    OutOfMemory,
    OutputInvalid,
    TooLarge,
    WorkerLost,
)
from hybrid.messages import FailureKind, InferRequest, InferResponse, Tensor, TensorSpec, Timings
from hybrid.preprocess.base import Preprocessor, Row
from hybrid.preprocess.job import Job, Prepared
from hybrid.protocol.check import check_inputs
from hybrid.serving.model import ServedModel
from hybrid.serving.sizes import lane_of, rising

log = logging.getLogger("hybrid.serving")

DEFAULT_PRIORITY: Final = 5

_FAILURES: Final[dict[FailureKind, type[HybridError]]] = {
    FailureKind.INPUT: BadRequest,
    FailureKind.ENGINE: InferenceFailed,
    FailureKind.MEMORY: OutOfMemory,
    FailureKind.OUTPUT: OutputInvalid,
    FailureKind.LOST: WorkerLost,
}

Answer = InferResponse | HybridError


class Inference:
    """Takes one request through a model. `on_answer` is called exactly once after `start` returned, unless cancelled.

    Times are monotonic seconds; `deadline` may be inf. `held_bytes` is what the front end keeps of the request until
    the answer. It counts against the queue's bound in bytes, or bodies of much white space would be held for free.
    """

    __slots__ = (
        "_deadline", "_downgraded", "_held_bytes", "_job", "_model", "_on_answer", "_parse_s", "_places",
        "_preprocess_s", "_received_at", "_request", "_ticket", "_tokens",
    )  # fmt: skip

    def __init__(
        self, model: ServedModel, request: InferRequest, received_at: float, parse_s: float, held_bytes: int = 0
    ) -> None:
        self._model = model
        self._request = request
        self._received_at = received_at
        self._parse_s = parse_s
        self._held_bytes = held_bytes
        self._preprocess_s = 0.0
        self._downgraded = 0
        self._tokens = 0
        self._deadline = INFINITY
        self._on_answer: Callable[[Answer], None] | None = None
        self._ticket: Ticket | None = None
        self._job: Job | None = None
        self._places: np.ndarray[Any, Any] | None = None  # of the client's rows, where they travel in another order

    def start(
        self, deadline: float, on_answer: Callable[[Answer], None], prepared: Sequence[Row] | None = None
    ) -> None:
        """Check the request and send it on its way.

        `prepared` are the rows where the client has done the preprocessing; the request's inputs are then ignored.

        Raises:
            HybridError: it was refused at once; `on_answer` will not be called. The refusal is counted.
        """
        self._deadline = deadline
        self._on_answer = on_answer
        model = self._model
        model.open_n += 1
        try:
            if model.signature is None or not model.accepting:
                raise self._not_ready()
            encoded = None if prepared is not None else self._encoded_input()
            if prepared is not None:
                self._enqueue_rows(prepared)
            elif encoded is None:
                rows = check_inputs(self._request, model.signature.inputs, model.signature.outputs)
                self._enqueue(self._in_model_order(model.signature.inputs), rows, 0)
            else:
                self._prepare(encoded)
        except HybridError as error:
            self._close()
            model.tally.failed(error)
            raise
        except Exception:
            log.exception("model %s: a request could not be queued", model.name)
            self._close()
            raise self._fault() from None

    def cancel(self, *, counted: bool = True) -> None:
        """The client left: nothing more is computed for it that has not started.

        `counted` is false for a part of a request that is counted as a whole.
        """
        if self._close() is None:
            return
        if self._ticket is not None:
            self._model.scheduler.cancel(self._ticket)
        elif self._job is not None and self._model.preprocess is not None:
            self._model.preprocess.cancel(self._job)
        if counted:
            self._model.tally.failed(ClientGone("the client left"))

    # Preprocess ----------------------------------------------------------------------------------------------------

    def _encoded_input(self) -> Tensor | None:
        """Return the tensor to preprocess, or None when the client sent the model's own tensors."""
        preprocessor = self._model.preprocessor
        if preprocessor is None:
            return None
        signature = self._model.signature
        assert signature is not None
        inputs = self._request.inputs
        names = {spec.name for spec in signature.inputs}
        if preprocessor.input.name not in names and any(tensor.name in names for tensor in inputs):
            return None
        array = inputs[0].array if len(inputs) == 1 else None
        request = self._request
        if array is not None and array.ndim == 2 and array.shape[1] == 1:
            # Clients of servers with a batch dimension of its own send [n, 1]; the same rows as [n].
            flat = Tensor(inputs[0].name, inputs[0].datatype, array.reshape(-1))
            request = InferRequest(inputs=(flat,), outputs=request.outputs)
        check_inputs(request, (preprocessor.input,), signature.outputs)
        return request.inputs[0]

    def _prepare(self, encoded: Tensor) -> None:
        pool, step = self._model.preprocess, self._model.preprocessor
        assert pool is not None
        assert step is not None
        self._refuse_oversized(len(encoded.array))
        items: list[bytes] = encoded.array.tolist()
        prepared = pool.at_once(items, step)
        if prepared is None:
            self._job = pool.submit(items, self._deadline, self._on_prepared)
        else:
            self._preprocess_s = prepared.seconds
            self._enqueue_rows(prepared.rows)

    def _on_prepared(self, result: Prepared | HybridError) -> None:
        self._job = None
        if isinstance(result, HybridError):
            self._answer_error(result)
            return
        self._preprocess_s = result.seconds
        self._downgraded = result.downgraded
        try:
            if not self._model.accepting:
                raise self._not_ready()
            self._enqueue_rows(result.rows)
        except HybridError as error:
            self._answer_error(error)
        except Exception:
            log.exception("model %s: a request could not be queued", self._model.name)
            if (on_answer := self._close()) is not None:
                on_answer(self._fault())

    # Queue ---------------------------------------------------------------------------------------------------------

    def _enqueue_rows(self, rows: Sequence[Row]) -> None:
        preprocessor = self._model.preprocessor
        assert preprocessor is not None
        self._tokens = preprocessor.tokens(rows)
        rows, sizes = self._sorted(rows, preprocessor)
        self._enqueue(preprocessor.assemble(rows), len(rows), preprocessor.size(rows), sizes)

    def _in_model_order(self, specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
        inputs = self._request.inputs
        if len(inputs) == 1:
            return inputs
        by_name = {tensor.name: tensor for tensor in inputs}
        return tuple(by_name[spec.name] for spec in specs)

    def _refuse_oversized(self, rows: int) -> None:
        limit = self._model.plan.queue_rows
        if rows > limit:
            raise TooLarge(f"{rows} rows in one request; the queue of {self._model.name} holds {limit} (queue_rows)")

    def _sorted(self, rows: Sequence[Row], preprocessor: Preprocessor) -> tuple[Sequence[Row], Sequence[int]]:
        """Put rows of different length in rising order, to be cut and padded accordingly; answers are put back."""
        if len(rows) > 1 and self._model.sorts_rows:
            found = rising(rows, lambda row: preprocessor.size((row,)))
            if found is not None:
                rows, sizes, self._places = found
                return rows, sizes
        return rows, ()

    def _enqueue(self, tensors: tuple[Tensor, ...], rows: int, size: int, sizes: Sequence[int] = ()) -> None:
        self._refuse_oversized(rows)
        nbytes = max(self._held_bytes, sum(tensor.nbytes for tensor in tensors))
        limit = self._model.plan.queue_bytes
        if nbytes > limit:
            raise TooLarge(
                f"{nbytes} bytes in one request; the queue of {self._model.name} holds {limit} (queue_bytes)"
            )
        pad = self._model.settings.batching.pad_inputs
        key, size = lane_of(tensors, pad, size)
        if not pad:  # rows of one shape only share a batch: at most their area tells them apart
            size = self._model.area_of(tensors)
        if 0 < (longest := self._model.plan.static_length) < size:
            raise BadRequest(
                f"a row has length {size}; static batching runs rows of {longest} (batching.static_length)"
            )
        ticket = Ticket(
            rows=rows,
            payload=tensors,
            nbytes=nbytes,
            lane_key=key,
            size=size,
            priority=self._request.priority or DEFAULT_PRIORITY,
            deadline=self._deadline,
            on_done=self._on_done,
        )
        ticket.sizes = sizes
        if size:
            self._model.note_sizes(sizes or (size,) * rows)
        self._model.scheduler.submit(ticket)
        self._ticket = ticket

    def _on_done(self, ticket: Ticket) -> None:
        if ticket.outcome is not Outcome.OK:
            self._answer_error(self._error(ticket))
            return
        on_answer = self._close()
        if on_answer is None:
            return
        try:
            on_answer(self._response(ticket))
        except Exception:
            log.exception("model %s: an answer could not be made", self._model.name)
            on_answer(self._fault())

    def _response(self, ticket: Ticket) -> InferResponse:
        outputs = ticket.result
        queue_s = ticket.sent_at - ticket.arrived
        return InferResponse(
            model_name=self._model.settings.name,
            model_version=self._model.settings.version,
            outputs=tuple([Tensor(out.name, out.datatype, self._unsorted(out.array)) for out in outputs]),
            id=self._request.id,
            timings=Timings(self._parse_s, self._preprocess_s, queue_s, ticket.copy_s, ticket.compute_s, ticket.post_s),
            batch_rows=ticket.batch_rows,
            finite=all([out.finite for out in outputs]),
            downgraded=self._downgraded,
            tokens=self._tokens,
        )

    def _unsorted(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array if self._places is None else array[self._places]

    def _error(self, ticket: Ticket) -> HybridError:
        if ticket.outcome is Outcome.EXPIRED:
            where = "executed" if ticket.sent_at else "waited in the queue"
            return DeadlineExceeded(f"the deadline passed while the request {where}")
        if ticket.outcome is Outcome.CANCELLED:
            return self._not_ready()
        kind = ticket.failure or FailureKind.ENGINE
        return _FAILURES[kind](f"model {self._model.name}: {ticket.failure_text}")

    def _not_ready(self) -> NotReady:
        why = self._model.why_not_ready or "the server is shutting down and had no time to finish this request"
        return NotReady(f"model {self._model.name} is not ready: {why}")

    def _fault(self) -> InferenceFailed:
        """Count a fault of ours, and return what the client is told, who would wait for ever otherwise."""
        error = InferenceFailed(f"model {self._model.name}: internal error; the server's log has more")
        self._model.tally.failed(error)
        return error

    def _answer_error(self, error: HybridError) -> None:
        on_answer = self._close()
        if on_answer is not None:
            self._model.tally.failed(error)
            on_answer(error)

    def _close(self) -> Callable[[Answer], None] | None:
        """End the request for its model; return whom to tell, None when it has ended before."""
        on_answer, self._on_answer = self._on_answer, None
        if on_answer is not None:
            self._model.open_n -= 1
        return on_answer
