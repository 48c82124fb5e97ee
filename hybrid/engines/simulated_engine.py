"""A simulated device: declared latency, memory and faults, for rehearsing a profile on a machine without the device.

One input `x` FP32 [-1, columns] and one output `y` that equals it. A batch of b rows takes
`fixed_ms + per_row_ms*b + per_token_ms*elements`, times a log-normal factor, asleep or (with `busy`) burning that much
CPU time. With `faults = true` the first value of a row orders a fault:

    POISON      -6001  the engine refuses the batch (EngineFailure INPUT)
    CRASH       -6002  the process exits at once with code 3
    HANG        -6003  run() never returns
    SLOW        -6004  run() takes 5 s longer
    WRONG_ROWS  -6005  `y` has one row too few
    LEAK        -6006  8 MiB are lost for ever
    NAN         -6007  the row's outputs are NaN and, with more than one column, infinite
    MEMORY      -6008  MemoryError, as from an allocator
    RAISE       -6009  an exception that no engine should let out (RuntimeError)
    STOP        -6010  the process stops itself (SIGSTOP), like a frozen container
    ABORT       -6011  the process dies of SIGABRT, like a failed assertion in native code
    MISSING     -6012  there is no output `y`

Knows nothing of workers or batching: to them it is an engine like any other.
"""

import math
import os
import random
import signal
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines.base import Arrays, EngineFailure, EngineSettings, MemoryFacts
from hybrid.errors import StartupError
from hybrid.messages import FailureKind, Signature, TensorSpec

POISON: Final = -6001.0
CRASH: Final = -6002.0
HANG: Final = -6003.0
SLOW: Final = -6004.0
WRONG_ROWS: Final = -6005.0
LEAK: Final = -6006.0
NAN: Final = -6007.0
MEMORY: Final = -6008.0
RAISE: Final = -6009.0
STOP: Final = -6010.0
ABORT: Final = -6011.0
MISSING: Final = -6012.0

SLOW_S: Final = 5.0
LEAK_BYTES: Final = 8 * 1024 * 1024
CRASH_EXIT_CODE: Final = 3


class SimulatedEngine:
    """Answers `y = x` after the declared time; the input array itself is returned where nothing forbids it."""

    def __init__(self, settings: SimulatedSettings) -> None:
        self._settings = settings
        self._random = random.Random(settings.seed)
        self._first_run_s = settings.first_run_ms / 1000.0
        self._timed = bool(settings.fixed_ms or settings.per_row_ms or settings.per_token_ms or settings.first_run_ms)
        self._peak_bytes = settings.memory_weights_bytes
        self._lost: list[bytes] = []
        shape = (-1, settings.columns)
        self._signature = Signature(
            inputs=(TensorSpec("x", "FP32", shape),), outputs=(TensorSpec("y", "FP32", shape),), platform="simulated"
        )

    @property
    def signature(self) -> Signature:
        """`x` in, `y` out."""
        return self._signature

    @property
    def max_rows(self) -> int | None:
        """Any number of rows."""
        return None

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Spend the declared time and memory, then answer.

        Raises:
            EngineFailure: the batch does not fit the device's memory, or a row holds POISON.
            MemoryError, RuntimeError: only when a row orders it.
        """
        x = inputs["x"]
        settings = self._settings
        if settings.memory_total_bytes:
            self._take_memory(rows)
        if settings.leak_bytes_per_run:
            self._leak(settings.leak_bytes_per_run)
        if self._timed:
            self._spend(self._latency_s(rows, x.size))
        return self._faulty(x) if settings.faults else {"y": x}

    def memory(self) -> MemoryFacts:
        """Weights as allocated, the peak as reserved, as a caching allocator reports them; nothing without a model."""
        if not self._settings.memory_total_bytes:
            return MemoryFacts()
        return MemoryFacts(allocated=self._settings.memory_weights_bytes, reserved=self._peak_bytes)

    def close(self) -> None:
        """Give back what was leaked."""
        self._lost.clear()

    def _latency_s(self, rows: int, tokens: int) -> float:
        s = self._settings
        seconds = (s.fixed_ms + s.per_row_ms * rows + s.per_token_ms * tokens) / 1000.0
        if s.noise:
            seconds *= math.exp(self._random.gauss(0.0, s.noise))
        first, self._first_run_s = self._first_run_s, 0.0
        return seconds + first

    def _spend(self, seconds: float) -> None:
        if not self._settings.busy:
            time.sleep(seconds)
            return
        # CPU time of this thread, not wall time: on crowded cores it then takes longer, as real work would.
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def _take_memory(self, rows: int) -> None:
        s = self._settings
        needed = s.memory_weights_bytes + s.memory_per_row_bytes * rows
        if needed > s.memory_total_bytes:
            text = f"simulated device: {rows} rows need {needed} bytes of memory, the device has {s.memory_total_bytes}"
            raise EngineFailure(FailureKind.MEMORY, text)
        self._peak_bytes = max(self._peak_bytes, needed)

    def _leak(self, count: int) -> None:
        self._lost.append(b"\x01" * count)  # not zeros: untouched pages would not count as used memory

    def _faulty(self, x: np.ndarray[Any, Any]) -> Arrays:
        """Apply the faults that the rows order, in the order of the rows."""
        first = x.reshape(len(x), -1)[:, :1].ravel().tolist()
        y = x
        for row, marker in enumerate(first):
            if not MISSING <= marker <= POISON:
                continue
            self._strike(marker)
            if marker == NAN:
                y = y.copy() if y is x else y
                y[row] = np.inf
                y[row].flat[0] = np.nan
        if MISSING in first:
            return {}
        return {"y": y[:-1] if WRONG_ROWS in first else y}

    def _strike(self, marker: float) -> None:
        if marker == POISON:
            raise EngineFailure(FailureKind.INPUT, "simulated device: poison marker in the input")
        if marker == MEMORY:
            raise MemoryError("simulated device: allocation failed")
        if marker == RAISE:
            raise RuntimeError("simulated device: unexpected exception")
        if marker == CRASH:
            os._exit(CRASH_EXIT_CODE)
        if marker == ABORT:
            os.abort()
        if marker == STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        if marker == LEAK:
            self._leak(LEAK_BYTES)
        if marker == SLOW:
            time.sleep(SLOW_S)
        while marker == HANG:
            time.sleep(3600.0)


def load(settings: ModelSettings, run: EngineSettings) -> SimulatedEngine:
    """Make the device; takes `start_s` seconds, like weights that are read from disk.

    Raises:
        StartupError: the declared weights do not fit the declared memory.
    """
    simulated = settings.simulated or SimulatedSettings()
    total, weights = simulated.memory_total_bytes, simulated.memory_weights_bytes
    if total and weights > total:
        raise StartupError(f"model {settings.name}: weights of {weights} bytes do not fit the device's {total} bytes")
    if simulated.start_s:
        time.sleep(simulated.start_s)
    return SimulatedEngine(simulated)
