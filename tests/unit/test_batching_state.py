"""Batching state, scenario by scenario: when batches leave, in which order, and how bounds and counters behave."""

import pytest
from batching_world import LANES, SECONDS, World

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import INFINITY, Outcome
from hybrid.messages import ReleaseReason

WAITING = BatchPolicy(max_batch=8, max_wait_s=0.05, early_trigger=8)


def sizes(world):
    return [batch.rows for batch in world.runs]


def reasons(world):
    return [batch.reason for batch in world.runs]


# When a batch leaves -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slots", [1, 2])
def test_zero_wait_takes_what_piled_up_as_one_batch(slots):
    """BAT-01: one request runs, seven come meanwhile, two executions in all."""
    world = World(slots=slots)
    world.submit()
    world.pump()
    for _ in range(7):
        world.submit()
        world.pump()
    world.settle()
    assert sizes(world) == [1, 7]
    assert reasons(world) == [ReleaseReason.IDLE_WORKER] * 2
    world.assert_at_rest()


def test_max_wait_counts_from_the_oldest():
    """BAT-02: rows that fill no round number leave when the oldest has waited, not later and not a moment earlier."""
    world = World(WAITING)
    world.submit(3)
    world.pump()
    world.advance(0.02)
    world.submit(4)
    assert world.pump() == []
    assert world.state.wake_at(world.now) == pytest.approx(1000.05)
    world.now = 1000.0499
    assert world.pump() == []
    world.now = world.state.wake_at(world.now)
    (batch,) = world.pump()
    assert (batch.rows, batch.reason) == (7, ReleaseReason.MAX_WAIT)


def test_wait_of_the_rest_still_counts_from_its_own_oldest():
    world = World(BatchPolicy(max_batch=4, max_wait_s=0.05, early_trigger=4))
    for _ in range(6):
        world.submit()
        world.advance(0.002)
    world.pump()
    world.complete(world.runs[0])
    assert world.pump() == []
    assert world.state.wake_at(world.now) == pytest.approx(1000.008 + 0.05)


@pytest.mark.parametrize("wait_s", [0.001, 0.005, 0.0107, 0.05, 0.1, 1 / 3])
@pytest.mark.parametrize("start", [0.1, 1000.1, 123456.789, 9_999_999.97])
def test_at_wake_up_time_something_happens(start, wait_s):
    """Rounding never makes the state ask to be woken at a moment when it then does nothing."""
    world = World(BatchPolicy(max_wait_s=wait_s))
    for deadline_s in (INFINITY, wait_s / 3, wait_s / 2 + 1e-4, wait_s * 2):
        world.now = start + len(world.runs) * 7.7
        ticket = world.submit(deadline=world.now + deadline_s)
        for _ in range(3):
            world.now = world.state.wake_at(world.now)
            if world.pump() or ticket.outcome:
                break
        else:
            pytest.fail("woken without a reason")
        for batch in world.running():
            world.complete(batch)


def test_early_trigger():
    world = World(BatchPolicy(max_batch=8, max_wait_s=1.0, early_trigger=5))
    for _ in range(4):
        world.submit()
    assert world.pump() == []
    world.submit()
    (batch,) = world.pump()
    assert (batch.rows, batch.reason) == (5, ReleaseReason.EARLY_TRIGGER)


def test_full():
    world = World(BatchPolicy(max_batch=4, max_wait_s=1.0, early_trigger=4))
    for _ in range(5):
        world.submit()
    (batch,) = world.pump()
    assert (batch.rows, batch.reason) == (4, ReleaseReason.FULL)


def test_deadline_releases_in_time_for_the_predicted_compute():
    world = World(BatchPolicy(max_wait_s=1.0))
    world.submit(8)
    world.pump()
    world.complete(world.runs[0])  # now it is known that 8 rows take SECONDS
    world.submit()
    world.submit(deadline=world.now + 0.2)
    assert world.pump() == []
    world.now = world.state.wake_at(world.now)
    assert world.now == pytest.approx(1000.2 - SECONDS)
    (batch,) = world.pump()
    assert (batch.rows, batch.reason) == (2, ReleaseReason.DEADLINE)


def test_other_class_waiting_is_the_reason_for_a_small_batch():
    world = World()
    world.submit(lane_key=LANES[0])
    world.submit(lane_key=LANES[1])
    world.settle()
    assert reasons(world) == [ReleaseReason.SIZE_CLASS, ReleaseReason.IDLE_WORKER]


def test_drain_releases_what_waits_and_what_still_comes():
    world = World(BatchPolicy(max_wait_s=10.0))
    ticket = world.submit(3)
    assert world.pump() == []
    world.state.drain()
    (batch,) = world.pump()
    assert batch.reason is ReleaseReason.DRAIN
    late = world.submit()  # accepted before the drain, and only now done with preprocessing
    world.settle()
    assert ticket.outcome is late.outcome is Outcome.OK
    assert set(reasons(world)) == {ReleaseReason.DRAIN}
    world.assert_at_rest()


def test_second_slot_is_filled_only_when_it_pays():
    world = World(BatchPolicy(max_batch=8, early_trigger=6), slots=2)
    for _ in range(6):
        world.submit()
        world.pump()
    assert sizes(world) == [1]  # five wait although a slot is free: the next batch is formed as late as possible
    world.submit()
    world.pump()
    assert sizes(world) == [1, 6]


def test_full_batch_is_prefetched_even_if_the_early_trigger_is_out_of_reach():
    world = World(BatchPolicy(max_batch=4, early_trigger=64), slots=2)
    world.submit()
    world.pump()
    for _ in range(4):
        world.submit()
    world.pump()
    assert sizes(world) == [1, 4]


def test_cancelled_retry_does_not_make_a_small_batch_leave_early():
    world = World(slots=2)
    first, second = world.submit(), world.submit()
    world.pump()
    world.fail(world.runs[0])
    world.cancel(second)
    world.submit()
    (batch,) = world.pump()  # the retry of the first; the new one is not worth the second slot yet
    assert [piece.ticket for piece in batch.pieces] == [first]


def test_batches_spread_over_idle_workers_first():
    world = World(BatchPolicy(max_batch=2), workers=3, slots=2)
    for _ in range(8):
        world.submit()
    world.pump()
    assert sorted(batch.worker for batch in world.runs[:3]) == [1, 2, 3]
    assert len(world.runs) == 4


def test_started_at_moves_only_when_the_batch_in_front_ends():
    world = World(BatchPolicy(max_batch=1), slots=3)
    for _ in range(3):
        world.submit()
    first, second, third = world.pump()
    world.advance(1.0)
    world.complete(second)  # out of order: the first still runs since it was sent
    assert first.started_at == first.sent_at
    world.complete(first)
    assert third.started_at == world.now


# Order ---------------------------------------------------------------------------------------------------------------


def test_priority_then_deadline_then_arrival():
    world = World(BatchPolicy(max_batch=1), workers=0)
    late = world.submit(priority=5, deadline=1009.0)
    soon = world.submit(priority=5, deadline=1005.0)
    none = world.submit(priority=5)
    none_later = world.submit(priority=5)
    least = world.submit(priority=9, deadline=1004.0)
    most = world.submit(priority=1)
    world.up()
    world.settle()
    order = [batch.pieces[0].ticket for batch in world.runs]
    assert order == [most, soon, late, none, none_later, least]


def test_priority_decides_between_classes():
    world = World(workers=0)
    world.submit(priority=5, lane_key=LANES[0])
    world.advance(1.0)
    urgent = world.submit(priority=2, lane_key=LANES[1])
    world.up()
    world.pump()
    assert world.runs[0].pieces[0].ticket is urgent


@pytest.mark.parametrize("policy", [BatchPolicy(), WAITING])
def test_quiet_class_does_not_starve_behind_a_busy_one(policy):
    """With the busy class always full, the quiet one leaves as soon as it is the oldest."""
    world = World(policy)
    for _ in range(24):
        world.submit(lane_key=LANES[0])
    quiet = world.submit(lane_key=LANES[1])
    began = len(world.runs)
    while quiet.outcome is None:
        world.pump()
        world.advance(SECONDS)
        for batch in world.running():
            for ticket in world.complete(batch):
                world.submit(lane_key=ticket.lane_key)
        assert len(world.runs) - began < 12, "starved"


def test_requests_that_are_due_on_arrival_do_not_keep_the_other_class_waiting_for_ever():
    world = World(WAITING)
    world.submit(8)
    world.settle()  # from here on it is known what a batch takes
    quiet = world.submit(lane_key=LANES[1])
    for _ in range(12):
        world.submit(lane_key=LANES[0], deadline=world.now + SECONDS * 0.9)
        world.pump()
        world.advance(SECONDS)
        for batch in world.running():
            world.complete(batch)
    assert world.state.lanes.classes[LANES[0].size_class].released[ReleaseReason.DEADLINE] > 2
    assert quiet.outcome is Outcome.OK, "starved"


def test_due_deadline_goes_before_a_class_that_is_merely_full():
    world = World(BatchPolicy(max_batch=4, max_wait_s=1.0, early_trigger=4), workers=0)
    for _ in range(4):
        world.submit(lane_key=LANES[0])
    world.advance(0.1)
    due = world.submit(lane_key=LANES[1], deadline=world.now + 0.5)
    world.state.lanes.get(LANES[1]).cost.observe(1, 0.5)
    world.up()
    (batch,) = world.pump()
    assert (batch.pieces[0].ticket, batch.reason) == (due, ReleaseReason.DEADLINE)
