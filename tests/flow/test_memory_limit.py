"""The largest batch that memory allows: found without a process above the limit, and not far below the truth.

A short form of `python -m bench memory_limit`, with a real engine and a simulated device.
"""

import pytest

from bench.memory_limit import run_trial
from hybrid.planner.machine import read_machine

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("seed", "kind"), [(20001, "simulated"), (20004, "onnxruntime")])
def test_the_largest_batch_is_safe_and_large(tmp_path, seed, kind):
    trial = run_trial(seed, tmp_path, read_machine())
    assert trial.kind == kind
    assert trial.killed == 0
    assert not trial.crowded
    assert 0.75 <= trial.share <= 1.0
