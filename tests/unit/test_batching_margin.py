"""A lane that is held back leaves early enough for its earliest deadline, also when it never ran."""

import pytest
from batching_world import SECONDS, World

from hybrid.batching.policy import BatchPolicy


def test_a_lane_that_never_ran_is_judged_by_the_warm_up():
    world = World(BatchPolicy(max_wait_s=5.0))
    world.state.lanes.unknown.observe(1, 0.3)
    world.submit(deadline=world.now + 1.0)
    assert world.pump() == []
    assert world.state.wake_at(world.now) - world.now == pytest.approx(0.7, abs=1e-6)


def test_the_margin_covers_the_way_there_and_back():
    world = World(BatchPolicy(max_wait_s=5.0, margin_s=0.01, margin_ratio=0.2))
    world.submit(8)
    world.settle()
    world.submit(8 - 1, deadline=world.now + 1.0)
    assert world.pump() == []
    left_s = world.state.wake_at(world.now) - world.now
    assert left_s == pytest.approx(1.0 - 1.2 * SECONDS - 0.01, abs=1e-6)
