"""The program `python -m hybrid.planner.roofline_child`: matrix products and copies on more and more cores at once.

Started by `hybrid.planner.speed`, which loads no numpy itself. One thread per core, pinned, in one process: numpy gives
up the interpreter's lock in a product and in a large copy, so threads compute side by side like processes do, and the
library is loaded once. BLAS itself is held at one thread by the environment.
"""

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from hybrid.group_signals import leave_to_parent
from hybrid.planner.measures import CoreRate, RooflineJob, RooflineRun

_SIZES = (1024, 512, 256)
_SLOWEST_PRODUCT_S = 0.05
_FEWEST_RUNS = 3
Floats = NDArray[np.float32]


def main() -> None:
    """Read one job, answer each of its runs with a line (a `CoreRate`); end early when stdin does."""
    leave_to_parent()
    job = msgspec.json.decode(sys.stdin.readline(), type=RooflineJob)
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    size = _product_size()
    for run in job.runs:
        rate = _Run(run, size, job.window_s).measured()
        print(msgspec.json.encode(rate).decode(), flush=True)


def _end_with_stdin() -> None:
    sys.stdin.read()
    os._exit(0)


class _Run:
    """All threads of one number of cores, which start each part together."""

    def __init__(self, run: RooflineRun, size: int, window_s: float) -> None:
        self._run, self._size, self._window_s = run, size, window_s
        self._barrier = threading.Barrier(len(run.cpus))
        self._products_s: list[float] = []
        self._copies_s: list[float] = []

    def measured(self) -> CoreRate:
        """Run all threads. A number of cores that fails, as for lack of memory, has rates of 0."""
        threads = [threading.Thread(target=self._core, args=(cpu,)) for cpu in self._run.cpus]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cores = len(threads)
        if len(self._copies_s) < cores:
            return CoreRate(cores, 0.0, 0.0)
        flops = sum(2.0 * self._size**3 / seconds for seconds in self._products_s)
        return CoreRate(cores, flops, sum(2.0 * self._run.copy_bytes / seconds for seconds in self._copies_s))

    def _core(self, cpu: int) -> None:
        try:
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, {cpu})  # of this thread alone
            left, right, product = _matrices(self._size)
            source = np.ones(self._run.copy_bytes // 4, np.float32)
            target = np.zeros_like(source)
            self._timed(lambda: np.matmul(left, right, out=product), self._products_s)
            self._timed(lambda: np.copyto(target, source), self._copies_s)
        except (MemoryError, OSError, threading.BrokenBarrierError):
            self._barrier.abort()  # the others need not wait for this one

    def _timed(self, operation: Callable[[], object], medians: list[float]) -> None:
        """Repeat for the window, all threads from the same moment on, and note the median CPU time.

        In CPU time, because neighbours would make this core look slower than it is; waiting for memory counts as CPU
        time. The median and not the best, because what each of many busy cores gets is the question.
        """
        operation()  # touches every page, wakes the vector units
        self._barrier.wait()
        times: list[float] = []
        ends = time.perf_counter() + self._window_s
        now = time.thread_time()
        while time.perf_counter() < ends or len(times) < _FEWEST_RUNS:
            operation()
            last, now = now, time.thread_time()
            times.append(now - last)
        medians.append(statistics.median(times))
        self._barrier.wait()


def _product_size() -> int:
    """The largest size of a square product that is quick enough here to be repeated."""
    left, right, product = _matrices(_SIZES[-1])
    np.matmul(left, right, out=product)
    began = time.perf_counter()
    np.matmul(left, right, out=product)
    small_s = time.perf_counter() - began
    return next((size for size in _SIZES if small_s * (size / _SIZES[-1]) ** 3 <= _SLOWEST_PRODUCT_S), _SIZES[-1])


def _matrices(size: int) -> tuple[Floats, Floats, Floats]:
    return np.ones((size, size), np.float32), np.ones((size, size), np.float32), np.zeros((size, size), np.float32)


if __name__ == "__main__":
    main()
