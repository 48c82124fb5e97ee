"""Batches of neighbours by length: what travels together, who waits for how long, and what it is worth."""

import random
from heapq import heappop, heappush

import pytest
from batching_world import SECONDS, World
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import LaneKey, Outcome, Ticket
from hybrid.batching.state import BatchState
from hybrid.messages import ReleaseReason

TEXT = LaneKey("ids")
SORTED = BatchPolicy(max_batch=8, formation="sorted")
FIXED_S, PER_TOKEN_S = 0.0022, 0.00025  # MiniLM, int8, one thread


def world_of(policy=SORTED, **given):
    """Knows that a batch costs as much as 9 tokens."""
    world = World(policy, **given)
    world.seconds_of = lambda batch: FIXED_S - 0.0003 + batch.rows * batch.size * PER_TOKEN_S
    world.submit(lane_key=TEXT, size=8)
    world.settle()
    for lane in world.state.lanes:
        for rows in range(2, 30):
            lane.observe(rows, 8, FIXED_S - 0.0003 + rows * 8 * PER_TOKEN_S)
        assert lane.size_cost.fixed_work() == pytest.approx(FIXED_S / PER_TOKEN_S)
    world.runs.clear()
    return world


def lengths(world):
    return [[piece.size for piece in batch.pieces] for batch in world.runs]


def test_around_the_most_urgent():
    world = world_of(BatchPolicy(max_batch=4, formation="sorted"))
    block = world.submit(lane_key=TEXT, size=1)
    world.pump()
    for size in (30, 200, 31, 6, 29, 7, 190, 31, 5):
        world.submit(lane_key=TEXT, size=size)
    world.settle()
    assert block.outcome is Outcome.OK
    assert lengths(world) == [[1], [31, 31, 30, 29], [200], [7, 6, 5], [190]]
    reasons = [batch.reason for batch in world.runs[1:]]
    assert reasons == [ReleaseReason.FULL, *[ReleaseReason.SIZE_CLASS] * 2, ReleaseReason.IDLE_WORKER]


def test_deadlines_and_priorities_choose_whom_a_batch_is_built_around():
    world = world_of(workers=1)
    world.submit(lane_key=TEXT, size=1)
    world.pump()
    world.submit(lane_key=TEXT, size=30)
    soon = world.submit(lane_key=TEXT, size=100, deadline=world.now + 9.0)
    first = world.submit(lane_key=TEXT, size=60, priority=1)
    world.settle()
    assert [batch.pieces[0].ticket for batch in world.runs[1:3]] == [first, soon]


def test_rows_of_one_request_travel_by_length_and_come_back_in_order():
    world = world_of()
    world.submit(lane_key=TEXT, size=1)
    world.pump()
    many = world.submit(6, lane_key=TEXT, size=250, sizes=[10, 11, 12, 100, 240, 250])
    world.submit(lane_key=TEXT, size=101)
    assert [(piece.start, piece.rows, piece.size) for piece in many.pieces] == [(0, 3, 12), (3, 1, 100), (4, 1, 240),
                                                                              (5, 1, 250)]  # fmt: skip
    world.settle()
    assert sorted(lengths(world)[1:]) == [[12], [101, 100], [240], [250]]
    assert many.outcome is Outcome.OK
    counters = world.state.lanes.classes["all"]
    # The first two are those that the world began with, and the one in front.
    assert counters.real_n == 8 + 1 + sum([10, 11, 12, 100, 240, 250, 101])
    assert counters.pad_n == 2 + 1 + 1


def test_classes_cut_a_request_at_their_edges():
    world = World(BatchPolicy(max_batch=2, formation="classes", size_edges=(16, 64)), workers=0)
    many = world.submit(6, lane_key=TEXT, size=80, sizes=[3, 4, 5, 50, 60, 80])
    assert [(piece.rows, piece.lane_key.size_class) for piece in many.pieces] == [
        (2, "16"), (1, "16"), (2, "64"), (1, "64+"),
    ]  # fmt: skip
    world.up()
    world.settle()
    assert {name: (c.real_n, c.pad_n) for name, c in world.state.lanes.classes.items()} == {
        "16": (12, 1), "64": (110, 10), "64+": (80, 0),
    }  # fmt: skip


def test_new_edges_are_for_new_requests():
    world = World(BatchPolicy(formation="classes", size_edges=(16,)), workers=0)
    old = world.submit(lane_key=TEXT, size=10)
    world.state.set_policy(BatchPolicy(formation="classes", size_edges=(8, 32)))
    new = world.submit(lane_key=TEXT, size=10)
    assert [ticket.pieces[0].lane_key.size_class for ticket in (old, new)] == ["16", "32"]
    world.up()
    world.settle()
    assert old.outcome is new.outcome is Outcome.OK


def test_what_waits_is_told_by_class_whatever_the_formation():
    for formation in ("fifo", "classes", "sorted"):
        world = World(BatchPolicy(formation=formation, size_edges=(16, 64)), workers=0)
        for size in (3, 16, 17, 65, 400):
            world.submit(lane_key=TEXT, size=size)
        waiting = world.state.lanes.waiting(world.state.policy)
        assert {name: len(pieces) for name, pieces in waiting.items()} == {"16": 2, "64": 1, "64+": 2}


@pytest.mark.parametrize("formation", ["classes", "sorted"])
def test_a_rare_length_does_not_starve_behind_a_busy_one(formation):
    world = world_of(BatchPolicy(formation=formation, size_edges=(16, 256)))
    for _ in range(24):
        world.submit(lane_key=TEXT, size=9)
    world.pump()
    rare = world.submit(lane_key=TEXT, size=200)
    began = len(world.runs)
    while rare.outcome is None:
        world.advance(SECONDS)
        for batch in world.running():
            for ticket in world.complete(batch):
                world.submit(lane_key=TEXT, size=ticket.size)
        world.pump()
        assert len(world.runs) - began <= 5, "starved"


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=30, deadline=None)
def test_nobody_waits_for_more_batches_than_there_were_more_urgent_ones(seed):
    rng = random.Random(seed)
    world = world_of(BatchPolicy(max_batch=rng.choice([1, 3, 8]), formation="sorted", queue_rows=10_000))
    ahead: dict[int, int] = {}  # ticket -> batches that may still leave before it
    for _ in range(150):
        for _ in range(rng.choice([0, 1, 1, 6])):
            ticket = world.submit(lane_key=TEXT, size=rng.choice([4, 9, 10, 60, 250, rng.randint(1, 256)]))
            ahead[ticket.id] = world.state.lanes.rows
        for batch in world.running():
            world.advance(SECONDS)
            world.complete(batch)
        for batch in world.pump():
            for piece in batch.pieces:
                del ahead[piece.ticket.id]
            for ticket_id in ahead:
                ahead[ticket_id] -= 1
            assert min(ahead.values(), default=1) > 0, "overtaken by more batches than there were requests ahead"
    world.settle()


# What it is worth ----------------------------------------------------------------------------------------------------


def closed_loop(policy, clients=64, rows=2000, fixed_s=FIXED_S, per_token_s=PER_TOKEN_S):
    """Two workers, clients that send again at once, lengths log-normal; return (rows/s, padding, longest wait)."""
    rng = random.Random(11)
    state = BatchState(policy)
    for worker in range(2):
        state.worker_up(worker, 1)
    now, done, slowest = 1000.0, 0, 0.0
    ends: list[tuple[float, int]] = []

    def send():
        size = min(256, max(4, round(rng.lognormvariate(3.3, 0.9))))
        state.submit(Ticket(rows=1, payload=None, lane_key=TEXT, size=size), now)

    for _ in range(clients):
        send()
    while done < rows:
        for batch in state.pump(now):
            heappush(ends, (now + fixed_s + per_token_s * batch.rows * batch.size, batch.id))
        now, batch_id = heappop(ends)
        began = state.batches[batch_id].sent_at
        for ticket in state.complete(batch_id, now - began, now):
            done += 1
            slowest = max(slowest, now - ticket.arrived)
            send()
    real = sum(counters.real_n for counters in state.lanes.classes.values())
    pad = sum(counters.pad_n for counters in state.lanes.classes.values())
    return done / (now - 1000.0), pad / (real + pad), slowest


def test_mixed_lengths_twice_the_rate_of_one_queue_and_little_padding():
    rate, padding, slowest = closed_loop(SORTED)
    fifo_rate, fifo_padding, fifo_slowest = closed_loop(BatchPolicy(max_batch=8))
    classes_rate, *_ = closed_loop(BatchPolicy(max_batch=8, formation="classes", size_edges=(16, 32, 64, 128, 256)))
    assert rate > 2.2 * fifo_rate
    assert rate > 1.1 * classes_rate
    assert padding < 0.08
    assert fifo_padding > 0.5
    assert slowest < fifo_slowest


def test_on_a_device_where_another_batch_is_dear_batches_stay_full():
    policy = BatchPolicy(max_batch=32, formation="sorted", queue_rows=1000)
    rate, *_ = closed_loop(policy, clients=256, fixed_s=0.005, per_token_s=0.00001)
    fifo_rate, *_ = closed_loop(BatchPolicy(max_batch=32, queue_rows=1000), 256, fixed_s=0.005, per_token_s=0.00001)
    assert rate > 2.0 * fifo_rate
