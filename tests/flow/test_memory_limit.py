"""The largest batch that memory allows: found without a process above the limit, and not far below the truth.

A short form of `python -m bench memory_limit`, with a real engine and a simulated device.
"""

import pytest

from bench.memory_limit import run_trial
from hybrid.planner.machine import read_machine

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[(20001, "simulated"), (20004, "onnxruntime")], ids=lambda param: param[1])
def trial(request, tmp_path_factory):
    seed, kind = request.param
    found = run_trial(seed, tmp_path_factory.mktemp(kind), read_machine())
    assert found.kind == kind
    return found


def test_nothing_goes_above_the_limit(trial):
    assert trial.killed == 0
    assert trial.chosen <= trial.true_max


def test_the_batch_is_not_far_below_what_fits(trial):
    assert not trial.crowded
    assert 0.75 <= trial.share <= 1.0
