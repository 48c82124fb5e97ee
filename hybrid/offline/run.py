"""Batches of rows through the served model, and what becomes of each row when a batch fails.

Each batch is one request to the model, as a client would send it, so queue, workers and retries are those of a server.
A request that fails is cut in two until only the guilty rows fail.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybrid.batching.queue import INFINITY
from hybrid.errors import HybridError, NotReady, QueueFull, WorkerLost
from hybrid.messages import InferRequest, InferResponse, Tensor
from hybrid.offline.output import Output
from hybrid.offline.report import Work
from hybrid.offline.rows import Fault, Outcome, ReadyRow
from hybrid.serving.inference import Answer, Inference
from hybrid.serving.model import ServedModel

Rows = Sequence[ReadyRow]


class Runner:
    """Keeps as many batches with the model as it needs to never wait. `on_done` is called for the rows of each."""

    def __init__(
        self,
        model: ServedModel,
        output: Output,
        clock: Callable[[], float],
        on_done: Callable[[Sequence[Outcome]], None],
        on_failure: Callable[[HybridError], None],
    ) -> None:
        self._model = model
        self._output = output
        self._clock = clock
        self._on_done = on_done
        self._on_failure = on_failure
        self._waiting: deque[Rows] = deque()
        self._running_n = 0
        # One more per worker than it takes: when a worker is done, the next batch must be in the queue already.
        self.at_once = model.plan.instances * (model.plan.pipeline_depth + 1)
        self._batches_n = self._rows_n = self._real_n = self._computed_n = 0

    @property
    def idle(self) -> bool:
        """Whether the model has nothing to do."""
        return not self._running_n and not self._waiting

    def work(self) -> Work:
        """Return what was computed so far."""
        released: dict[str, int] = {}
        for lane in self._model.scheduler.state.lanes.classes.values():
            for reason, count in lane.released.items():
                if count:
                    released[reason.value] = released.get(reason.value, 0) + count
        return Work(self._batches_n, self._rows_n, self._real_n, self._computed_n, released)

    def take(self, batches: Sequence[Rows]) -> None:
        """Take batches in; they are run in this order."""
        self._waiting += batches
        self._send()

    def _send(self) -> None:
        while self._waiting and self._running_n < self.at_once:
            rows = self._waiting.popleft()
            request = InferRequest(inputs=self._assemble(rows))
            self._running_n += 1
            try:
                Inference(self._model, request, self._clock(), 0.0).start(INFINITY, self._answer(rows))
            except QueueFull as error:
                self._running_n -= 1
                self._waiting.appendleft(rows)
                if not self._running_n:  # nothing will leave the queue that would make room
                    self._on_failure(error)
                return
            except HybridError as error:
                self._running_n -= 1
                self._failed(rows, error)  # what it puts back is next in this loop

    def _answer(self, rows: Rows) -> Callable[[Answer], None]:
        def on_answer(answer: Answer) -> None:
            self._running_n -= 1
            self._send()  # before the results are encoded: no worker waits for that
            if isinstance(answer, InferResponse):
                self._succeeded(rows, answer)
            else:
                self._failed(rows, answer)
                self._send()

        return on_answer

    def _succeeded(self, rows: Rows, response: InferResponse) -> None:
        results = self._output.encode(rows, response.outputs, response.finite)
        self._count(rows)
        self._on_done([Outcome(row.index, row.id, result) for row, result in zip(rows, results, strict=True)])

    def _failed(self, rows: Rows, error: HybridError) -> None:
        if isinstance(error, NotReady):
            self._on_failure(error)
        elif len(rows) == 1:
            self._on_done([Outcome(rows[0].index, rows[0].id, Fault(str(error), error.code))])
        else:
            # Halving finds one guilty row in few runs; where each run costs a worker, alone is cheaper at once.
            step = 1 if isinstance(error, WorkerLost) else (len(rows) + 1) // 2
            parts = [rows[start : start + step] for start in range(0, len(rows), step)]
            self._waiting.extendleft(reversed(parts))

    def _count(self, rows: Rows) -> None:
        plan = self._model.plan
        real = sum(row.size or 1 for row in rows)
        longest = plan.static_length or max(row.size for row in rows) or 1
        self._batches_n += 1
        self._rows_n += len(rows)
        self._real_n += real
        self._computed_n += longest * (max(len(rows), plan.max_batch) if plan.static else len(rows))

    def _assemble(self, rows: Rows) -> tuple[Tensor, ...]:
        step = self._model.preprocessor
        if rows[0].arrays:
            assert step is not None
            return step.assemble([row.arrays for row in rows])
        if len(rows) == 1:
            return rows[0].tensors
        pad = self._model.settings.batching.pad_inputs
        return tuple(
            Tensor(first.name, first.datatype, _stack([row.tensors[index].array for row in rows], pad.get(first.name)))
            for index, first in enumerate(rows[0].tensors)
        )


def _stack(arrays: Sequence[np.ndarray[Any, Any]], fill: int | None) -> np.ndarray[Any, Any]:
    """Put one-row arrays of one batch below each other, filled up along dimension 1 where that is allowed."""
    if fill is None or arrays[0].ndim < 2:
        return np.concatenate(arrays)
    longest = max(array.shape[1] for array in arrays)
    stacked = np.full((len(arrays), longest, *arrays[0].shape[2:]), fill, arrays[0].dtype)
    for position, array in enumerate(arrays):
        stacked[position, : array.shape[1]] = array[0]
    return stacked
