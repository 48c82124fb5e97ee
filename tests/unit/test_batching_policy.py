import itertools

import pytest

from hybrid.batching.policy import BatchPolicy, LaneView, leave_at, release
from hybrid.batching.queue import INFINITY
from hybrid.messages import ReleaseReason

NOW = 1000.0
EAGER = BatchPolicy(max_batch=8, early_trigger=6, max_wait_s=0.0)
WAITING = BatchPolicy(max_batch=8, early_trigger=6, max_wait_s=0.05)


def view(rows=1, waited=0.0, due=INFINITY, others=0, draining=False):
    return LaneView(rows, NOW - waited, due, others, draining)


@pytest.mark.parametrize(
    ("policy", "given", "reason"),
    [
        (EAGER, {"rows": 8}, ReleaseReason.FULL),
        (EAGER, {"rows": 80}, ReleaseReason.FULL),
        (EAGER, {"rows": 6}, ReleaseReason.EARLY_TRIGGER),
        (EAGER, {"rows": 1}, ReleaseReason.IDLE_WORKER),
        (EAGER, {"rows": 1, "draining": True}, ReleaseReason.IDLE_WORKER),
        (EAGER, {"rows": 1, "others": 3}, ReleaseReason.SIZE_CLASS),
        (WAITING, {"rows": 8}, ReleaseReason.FULL),
        (WAITING, {"rows": 6}, ReleaseReason.EARLY_TRIGGER),
        (WAITING, {"rows": 5}, None),
        (WAITING, {"rows": 5, "others": 100}, None),
        (WAITING, {"waited": 0.05}, ReleaseReason.MAX_WAIT),
        (WAITING, {"waited": 0.0499}, None),
        (WAITING, {"due": NOW}, ReleaseReason.DEADLINE),
        (WAITING, {"due": NOW - 1.0}, ReleaseReason.DEADLINE),
        (WAITING, {"due": NOW + 1e-6}, None),
        (WAITING, {"draining": True}, ReleaseReason.DRAIN),
        (WAITING, {"waited": 1.0, "due": NOW - 1.0, "draining": True}, ReleaseReason.MAX_WAIT),
    ],
)
def test_release(policy, given, reason):
    assert release(policy, view(**given), NOW) is reason


def test_an_idle_worker_never_waits_without_a_wait():
    by_rows = {1: ReleaseReason.IDLE_WORKER, 5: ReleaseReason.IDLE_WORKER, 9: ReleaseReason.FULL}
    for (rows, reason), waited, draining in itertools.product(by_rows.items(), [0.0, 1.0], [False, True]):
        assert release(EAGER, view(rows, waited, INFINITY, 0, draining), NOW) is reason
        cut_short = ReleaseReason.SIZE_CLASS if rows < 9 else reason
        assert release(EAGER, view(rows, waited, INFINITY, 4, draining), NOW) is cut_short


@pytest.mark.parametrize("wait_s", [0.001, 0.0107, 0.05, 0.1, 1 / 3])
def test_released_at_the_very_moment_that_was_named(wait_s):
    """Also where (a + b) - a < b in floating point."""
    policy = BatchPolicy(max_wait_s=wait_s)
    for step in range(2000):
        oldest = 1000.1 + step * 0.037
        at = leave_at(policy, oldest, INFINITY)
        assert release(policy, LaneView(1, oldest, INFINITY, 0, False), at) is ReleaseReason.MAX_WAIT


def test_leave_at_is_the_earlier_of_wait_and_deadline():
    assert leave_at(WAITING, NOW, INFINITY) == NOW + 0.05
    assert leave_at(WAITING, NOW, NOW + 0.02) == NOW + 0.02
