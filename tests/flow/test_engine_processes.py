"""What an engine does to its process: noise, threads, and the simulated faults that end or freeze it."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from hybrid.engines import simulated_engine as sim

pytestmark = pytest.mark.slow

ORT = """
import os, sys
import numpy as np
from hybrid.config import ModelSettings
from hybrid.engines.base import EngineFailure, EngineSettings
from hybrid.engines.registry import load_engine
from hybrid.models.catalog import resolve
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
threads = lambda: len(os.listdir("/proc/self/task"))
import onnxruntime
before = threads()
engine = load_engine(resolve("minilm"), EngineSettings(threads=int(sys.argv[1])))
ids = np.ones((2, 8), np.int64)
engine.run({"input_ids": ids, "attention_mask": ids, "token_type_ids": ids * 0}, 2)
try:
    engine.run({"input_ids": ids * 10**9, "attention_mask": ids, "token_type_ids": ids * 0}, 2)
except EngineFailure as failure:
    print(failure.kind.value, threads() - before)
"""

SIMULATED = """
import numpy as np, sys
from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
settings = ModelSettings(name="s", simulated=SimulatedSettings(faults=True))
pipeline = Pipeline(load_engine(settings, EngineSettings()))
print("loaded", flush=True)
pipeline.run({"x": np.full((1, 1), float(sys.argv[1]), np.float32)}, 1)
print("survived", flush=True)
"""


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_onnxruntime_is_quiet_and_keeps_to_its_threads_on_one_cpu(threads: int) -> None:
    process = python(ORT, threads)
    out, err = process.communicate(timeout=60)
    assert err == ""
    assert out.split() == ["input", str(threads - 1)]  # the caller is one of the threads


@pytest.mark.parametrize(("marker", "code"), [(sim.CRASH, sim.CRASH_EXIT_CODE), (sim.ABORT, -signal.SIGABRT)])
def test_faults_that_end_the_process(marker: float, code: int, tmp_path: Path) -> None:
    process = python(SIMULATED, marker)
    out, _ = process.communicate(timeout=60)
    assert out.split() == ["loaded"]
    assert process.returncode == code


@pytest.mark.parametrize(("marker", "status"), [(sim.HANG, psutil.STATUS_SLEEPING), (sim.STOP, psutil.STATUS_STOPPED)])
def test_faults_that_freeze_the_process(marker: float, status: str) -> None:
    process = python(SIMULATED, marker)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "loaded"
        seen = psutil.Process(process.pid)
        end = time.monotonic() + 10
        while seen.status() != status and time.monotonic() < end:
            time.sleep(0.01)
        assert seen.status() == status
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.3)
    finally:
        process.kill()
        out, _ = process.communicate(timeout=10)
    assert "survived" not in out
