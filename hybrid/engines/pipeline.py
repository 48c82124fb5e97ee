"""One model in a worker: the engine, the checks on what it returns, and the postprocess step.

Whatever goes wrong in a run leaves here as an `EngineFailure`, whoever raised it. Knows no socket and no arena.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from hybrid.engines import postprocess as steps
from hybrid.engines import warmup
from hybrid.engines.base import Arrays, Begun, Engine, EngineFailure, MemoryFacts, OverlappingEngine
from hybrid.messages import FailureKind, Signature


class Executed(NamedTuple):
    """Outputs of a batch, seconds in the engine, seconds in the postprocess step."""

    outputs: Arrays
    compute_s: float
    post_s: float


class Pipeline:
    """Runs batches of one loaded model. `postprocess` is the name from the model's settings, "" for none.

    `static_rows` above 0 has every batch run with exactly that many rows, also where the model would take any number.

    Raises:
        StartupError: the model lacks what the postprocess step needs.
    """

    def __init__(self, engine: Engine, postprocess: str = "", static_rows: int = 0) -> None:
        raw = engine.signature
        self.static_rows = static_rows
        self._engine = engine
        self._overlapping = engine if isinstance(engine, OverlappingEngine) and engine.overlaps else None
        self._ended = 0.0  # when the last batch did: one that overlapped it began to compute then
        self._names = tuple(spec.name for spec in raw.outputs)
        self._post = steps.build(postprocess, raw)
        outputs = raw.outputs if self._post is None else self._post.outputs
        self._signature = Signature(inputs=raw.inputs, outputs=outputs, platform=raw.platform)

    @property
    def signature(self) -> Signature:
        """The engine's inputs, and the outputs after postprocess."""
        return self._signature

    @property
    def max_rows(self) -> int | None:
        """The row count that the model is fixed to, or None."""
        return self._engine.max_rows

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Execute one batch of `rows` rows; every output has exactly that many.

        A batch that is fixed to more rows, by the model or by `static_rows`, is given the last one again until it has
        enough: unlike zeros, a real row is something that the model takes. What comes of the repetitions is cut off.

        Raises:
            EngineFailure: OUTPUT when an output is missing or has another row count; else what the engine said, with
                exceptions that it should not have let out as ENGINE or MEMORY.
        """
        return self.run_timed(inputs, rows).outputs

    def run_timed(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Executed:
        """As `run`, and say how long the engine and the postprocess step took.

        Raises:
            EngineFailure: as `run`.
        """
        return self.begin(inputs, rows).finish()

    @property
    def overlaps(self) -> bool:
        """Whether a batch may begin before the last one has finished."""
        return self._overlapping is not None

    def begin(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> "Batch":
        """Start a batch, which an engine that does not overlap computes when it is finished.

        Raises:
            EngineFailure: as `run`.
        """
        batch = Batch(self, inputs, rows)
        if self._overlapping is not None:
            with _failures():
                filled, fixed = self._filled(inputs, rows)
                batch.begun = self._overlapping.begin(filled, fixed)
        return batch

    def finish(self, batch: "Batch") -> Executed:
        """See `Batch.finish`."""
        with _failures():
            outputs = self._outputs(batch)
            computed = time.perf_counter()
            compute_s = computed - max(batch.began, self._ended)
            self._ended = computed
            if self._post is None:
                return Executed(outputs, compute_s, 0.0)
            outputs = self._post(batch.inputs, outputs)
            return Executed(outputs, compute_s, time.perf_counter() - computed)

    def warm(self, rows: int, length: int = 16) -> float:
        """Run one made-up batch, variable dimensions being `length`, and return the seconds it took.

        A model with a fixed row count is run with that many rows at most.

        Raises:
            EngineFailure: as `run`.
        """
        rows = min(rows, self.max_rows or rows)
        inputs = warmup.plausible_inputs(self._signature, rows, length)
        start = time.monotonic()
        self.run(inputs, rows)
        return time.monotonic() - start

    def check_batchable(self, tolerance: float, length: int = 16) -> str | None:
        """Return why rows of different requests must not share a batch, or None when they may."""
        rows = min(warmup.CHECK_ROWS, self.max_rows or warmup.CHECK_ROWS)
        if rows == 1:
            return "the model takes exactly 1 row"
        return warmup.batching_fault(self.run, self._signature, tolerance, length, rows)

    def memory(self) -> MemoryFacts:
        """Return what the engine knows of its own memory."""
        return self._engine.memory()

    def close(self) -> None:
        """Release the engine."""
        self._engine.close()

    def _outputs(self, batch: "Batch") -> Arrays:
        rows = batch.rows
        if batch.begun is not None:
            fixed, outputs = self._fixed(rows), batch.begun.wait()
        else:
            filled, fixed = self._filled(batch.inputs, rows)
            outputs = self._engine.run(filled, fixed)
        self._check_rows(outputs, fixed)
        return outputs if fixed == rows else {name: array[:rows] for name, array in outputs.items()}

    def _fixed(self, rows: int) -> int:
        """How many rows are run for `rows`. With more than it takes, the engine says so in its own words."""
        return max(rows, self._engine.max_rows or self.static_rows)

    def _filled(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> tuple[Mapping[str, Any], int]:
        fixed = self._fixed(rows)
        if fixed == rows:
            return inputs, rows
        missing = fixed - rows
        return {
            name: np.concatenate([array, np.repeat(array[-1:], missing, axis=0)]) for name, array in inputs.items()
        }, fixed

    def _check_rows(self, outputs: Arrays, rows: int) -> None:
        for name in self._names:
            array = outputs.get(name)
            if array is None:
                raise EngineFailure(FailureKind.OUTPUT, f"output `{name}` is missing from the engine's answer")
            if array.ndim == 0 or array.shape[0] != rows:
                got = "has no row dimension" if array.ndim == 0 else f"has {array.shape[0]} rows"
                raise EngineFailure(FailureKind.OUTPUT, f"output `{name}` {got}, expected {rows}")


class Batch:
    """A batch that has begun. `inputs` must stay as they are until it is finished."""

    def __init__(self, pipeline: Pipeline, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> None:
        self.inputs, self.rows = inputs, rows
        self.began = time.perf_counter()
        self.begun: Begun | None = None
        self._pipeline = pipeline

    def done(self) -> bool:
        """Whether `finish` would not wait for the device."""
        return self.begun is None or self.begun.done()

    def finish(self) -> Executed:
        """Return outputs and times. The time of a batch that overlapped another counts from the end of that one.

        Raises:
            EngineFailure: as `Pipeline.run`.
        """
        return self._pipeline.finish(self)


@contextmanager
def _failures() -> Iterator[None]:
    """Let nothing out but an `EngineFailure`."""
    try:
        yield
    except EngineFailure:
        raise
    except MemoryError as error:
        raise EngineFailure(FailureKind.MEMORY, f"out of memory: {error}") from error
    except Exception as error:
        raise EngineFailure(FailureKind.ENGINE, f"{type(error).__name__}: {error}") from error
