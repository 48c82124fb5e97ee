"""The limit to hold a server against: bare ONNX Runtime in N pinned processes, nothing around it.

`python -m bench.raw_engine MODEL BATCH CORE SECONDS` is one such process; it prints items and CPU seconds as JSON.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
from msgspec import Struct

from hybrid.models.catalog import resolve

TOKENS = 16


class RawRound(Struct, frozen=True):
    """One round of all processes together."""

    items: int
    seconds: float
    cpu_s: float

    @property
    def rate(self) -> float:
        """Items per second over all processes."""
        return self.items / self.seconds

    @property
    def cpu_us_per_item(self) -> float:
        """CPU per item, in microseconds."""
        return self.cpu_s / self.items * 1e6


def run_raw(model: str, batch: int, cores: list[int], seconds: int) -> RawRound:
    """Run one process per core, each pinned with one engine thread, at the same time."""
    commands = [
        [sys.executable, "-m", "bench.raw_engine", model, str(batch), str(core), str(seconds)] for core in cores
    ]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    results = [json.loads(process.communicate()[0]) for process in processes]
    return RawRound(
        items=sum(result["items"] for result in results),
        seconds=max(result["seconds"] for result in results),
        cpu_s=sum(result["cpu_s"] for result in results),
    )


def _inputs(model: str, batch: int) -> dict[str, np.ndarray[Any, Any]]:
    generator = np.random.default_rng(7)
    if model == "nsfw":
        return {"input:0": generator.random((batch, 224, 224, 3), np.float32)}
    ids = generator.integers(1000, 20000, (batch, TOKENS), np.int64)
    ones = np.ones((batch, TOKENS), np.int64)
    return {"input_ids": ids, "attention_mask": ones, "token_type_ids": np.zeros_like(ones)}


def main() -> None:
    """Run one process."""
    import onnxruntime

    model, batch, core, seconds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    os.sched_setaffinity(0, [core])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(resolve(model).file, options, providers=["CPUExecutionProvider"])
    inputs = _inputs(model, batch)
    for _ in range(3):
        session.run(None, inputs)
    runs = 0
    began, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - began < seconds:
        session.run(None, inputs)
        runs += 1
    took = time.perf_counter() - began
    print(json.dumps({"items": runs * batch, "seconds": took, "cpu_s": time.process_time() - cpu}))


if __name__ == "__main__":
    main()
