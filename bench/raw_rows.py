"""The limit to hold `hybrid batch` against: bare ONNX Runtime over the same rows, tokenised and sorted beforehand.

`python -m bench.raw_rows MODEL FILE BATCH CORE PART PARTS` is one process: it loads, warms up, says `ready`, waits for
a line, runs its share of the batches once, and prints rows and seconds as JSON.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from msgspec import Struct

from hybrid.models.catalog import resolve


class RawRows(Struct, frozen=True):
    """One pass over all rows: seconds from the common start to the last process's end, CPU, and what was padding."""

    rows: int
    seconds: float
    cpu_s: float
    padding: float

    @property
    def rate(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds


def save_rows(path: Path, rows: list[np.ndarray]) -> None:
    """Write token ids of rows of any length for `run_rows`, sorted by length."""
    ordered = sorted(rows, key=len)
    np.savez(path, ids=np.concatenate(ordered), lengths=[len(row) for row in ordered])


def run_rows(model: str, path: Path, batch: int, cores: list[int]) -> RawRows:
    """Run one process per core, each pinned with one engine thread; batches are dealt out in turn."""
    command = [sys.executable, "-m", "bench.raw_rows", model, str(path), str(batch)]
    processes = [
        subprocess.Popen(
            [*command, str(core), str(part), str(len(cores))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for part, core in enumerate(cores)
    ]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    began = time.perf_counter()  # the same clock in all processes
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    results = [json.loads(process.communicate()[0]) for process in processes]
    computed = sum(result["computed"] for result in results)
    return RawRows(
        rows=sum(result["rows"] for result in results),
        seconds=max(result["ended"] for result in results) - began,
        cpu_s=sum(result["cpu_s"] for result in results),
        padding=1.0 - sum(result["real"] for result in results) / computed,
    )


def main() -> None:
    """Run one process."""
    import onnxruntime

    model, path, batch, core, part, parts = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    os.sched_setaffinity(0, [core])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(resolve(model).file, options, providers=["CPUExecutionProvider"])
    stored = np.load(path)
    rows = np.split(stored["ids"], np.cumsum(stored["lengths"])[:-1])
    mine = [rows[start : start + batch] for start in range(0, len(rows), batch)][part::parts]
    feeds = [_padded(some) for some in mine]
    for feed in feeds[-2:]:
        session.run(None, feed)
    print("ready", flush=True)
    sys.stdin.readline()
    cpu = time.process_time()
    for feed in feeds:
        session.run(None, feed)
    ended = time.perf_counter()
    real = sum(len(row) for some in mine for row in some)
    computed = sum(feed["input_ids"].size for feed in feeds)
    figures = {"ended": ended, "cpu_s": time.process_time() - cpu, "real": real, "computed": computed}
    print(json.dumps({"rows": sum(map(len, mine)), **figures}))


def _padded(rows: list[np.ndarray]) -> dict[str, np.ndarray]:
    shape = (len(rows), max(map(len, rows)))
    ids, mask = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for position, row in enumerate(rows):
        ids[position, : len(row)] = row
        mask[position, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(shape, np.int64)}


if __name__ == "__main__":
    main()
