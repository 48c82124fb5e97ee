"""One model in a worker: the engine, the checks on what it returns, and the postprocess step.

Whatever goes wrong in a run leaves here as an `EngineFailure`, whoever raised it. Knows no socket and no arena.
"""

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hybrid.engines import postprocess as steps
from hybrid.engines import warmup
from hybrid.engines.base import Arrays, Engine, EngineFailure, MemoryFacts
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
        began = time.perf_counter()
        try:
            outputs = self._run_engine(inputs, rows)
            computed = time.perf_counter()
            if self._post is None:
                return Executed(outputs, computed - began, 0.0)
            outputs = self._post(inputs, outputs)
            return Executed(outputs, computed - began, time.perf_counter() - computed)
        except EngineFailure:
            raise
        except MemoryError as error:
            raise EngineFailure(FailureKind.MEMORY, f"out of memory: {error}") from error
        except Exception as error:
            raise EngineFailure(FailureKind.ENGINE, f"{type(error).__name__}: {error}") from error

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

    def _run_engine(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        fixed = self._engine.max_rows or self.static_rows or rows
        if rows >= fixed:  # with more rows than it takes, the engine says so in its own words
            outputs = self._engine.run(inputs, rows)
            self._check_rows(outputs, rows)
            return outputs
        repeated = {
            name: np.concatenate([array, np.repeat(array[-1:], fixed - rows, axis=0)]) for name, array in inputs.items()
        }
        outputs = self._engine.run(repeated, fixed)
        self._check_rows(outputs, fixed)
        return {name: array[:rows] for name, array in outputs.items()}

    def _check_rows(self, outputs: Arrays, rows: int) -> None:
        for name in self._names:
            array = outputs.get(name)
            if array is None:
                raise EngineFailure(FailureKind.OUTPUT, f"output `{name}` is missing from the engine's answer")
            if array.ndim == 0 or array.shape[0] != rows:
                got = "has no row dimension" if array.ndim == 0 else f"has {array.shape[0]} rows"
                raise EngineFailure(FailureKind.OUTPUT, f"output `{name}` {got}, expected {rows}")
