"""Rows that wait are spread over the workers that idle, where that makes them sooner done."""

import itertools

import pytest
from batching_world import LANES, World

from hybrid.batching.lane import Lane
from hybrid.batching.policy import BatchPolicy, spread
from hybrid.batching.queue import Outcome, Piece
from hybrid.messages import FailureKind, ReleaseReason

FIFO = BatchPolicy(max_batch=8)
SORTED = BatchPolicy(max_batch=8, formation="sorted")
PER_ROW_S = 0.01


def slope(rows: int) -> float:
    return 0.001 + PER_ROW_S * rows


def world(policy: BatchPolicy = FIFO, *, workers: int = 2, slots: int = 1, known: bool = True) -> World:
    made = World(policy, workers=workers, slots=slots)
    made.seconds_of = lambda batch: slope(batch.rows)
    if known:
        for rows in (1, 8):
            made.state.lanes.unknown.observe(rows, slope(rows))
    return made


def sent(made: World) -> list[int]:
    return [batch.rows for batch in made.pump()]


# --- the rule ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "workers", "share"),
    [(8, 2, 4), (7, 2, 4), (8, 3, 3), (2, 2, 1), (12, 2, 6), (8, 100, 1), (16, 2, 8), (1, 2, 8), (100, 4, 8)],
)
def test_each_takes_its_share_and_more_than_full_batches_are_not_shared(rows, workers, share):
    assert spread(rows, workers, 8, slope) == share


@pytest.mark.parametrize(("fixed_s", "share"), [(0.0, 4), (0.031, 4), (0.033, 8), (1.0, 8)])
def test_a_share_must_be_done_in_nine_tenths_of_the_time(fixed_s, share):
    # with 0.01 s a row: (f + 0.04) <= 0.9 * (f + 0.08) up to f = 0.32
    assert spread(8, 2, 8, lambda rows: 10 * fixed_s + PER_ROW_S * rows) == share


# --- who gets what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [FIFO, SORTED])
def test_one_request_of_eight_rows_runs_on_both_workers(policy):
    made = world(policy)
    ticket = made.submit(8, size=16)
    first, second = made.pump()
    assert [(first.rows, first.worker), (second.rows, second.worker)] == [(4, 1), (4, 2)]
    assert first.reason is ReleaseReason.IDLE_WORKER
    assert [(piece.start, piece.rows) for piece in ticket.pieces] == [(0, 4), (4, 4)]
    assert not made.complete(second)
    assert made.complete(first) == [ticket]  # the ledger of the world looks at the order of its rows
    made.assert_at_rest()


@pytest.mark.parametrize(
    ("requests", "workers", "batches"),
    [
        ([8], 3, [3, 3, 2]),
        ([12], 2, [6, 6]),
        ([1, 1], 2, [1, 1]),
        ([1] * 8, 2, [4, 4]),
        ([1, 7], 2, [4, 4]),
        ([3, 3, 2], 2, [4, 4]),
        ([16], 2, [8, 8]),
        ([40], 2, [8, 8]),
        ([1], 2, [1]),
        ([8], 1, [8]),
    ],
)
def test_rows_are_shared_evenly(requests, workers, batches):
    made = world(workers=workers)
    for rows in requests:
        made.submit(rows)
    assert sent(made) == batches
    made.settle()
    made.assert_at_rest()


def test_the_most_urgent_rows_come_first_and_a_cut_request_keeps_its_turn():
    made = world()
    later, urgent = made.submit(6), made.submit(2, priority=1)
    after = made.submit(2)
    first, second = made.pump()
    assert [piece.ticket for piece in first.pieces] == [urgent, later]
    assert [piece.ticket for piece in second.pieces] == [later, after]


def test_only_workers_without_any_work_count():
    busy = world()
    busy.submit(1)
    busy.pump()
    busy.submit(8)
    assert sent(busy) == [8]
    deep = world(slots=2)
    deep.submit(1)
    deep.submit(1)
    assert sent(deep) == [1, 1]
    deep.submit(8)
    assert sent(deep) == [8]  # both have work: it lies ready behind that of one


def test_a_lane_leaves_the_others_one_worker_each():
    two, three = world(), world(workers=3)
    for made in (two, three):
        made.submit(8, lane_key=LANES[0])
        made.submit(8, lane_key=LANES[1])
    assert sent(two) == [8, 8]
    assert sorted(sent(three)) == [4, 4, 8]


# --- where not --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy",
    [BatchPolicy(max_batch=8, static=True), BatchPolicy(max_batch=8, max_wait_s=0.005), BatchPolicy(max_batch=1)],
)
def test_full_batches_that_somebody_wants_are_not_cut(policy):
    made = world(policy)
    made.submit(8)
    assert max(sent(made)) == policy.max_batch


def test_not_before_it_is_known_what_rows_cost():
    made = world(known=False)
    made.submit(8)
    assert sent(made) == [8]
    made.settle()
    for rows in (1, 2, 3, 4, 1, 2, 3, 1, 2):
        made.submit(rows)
        made.settle()
    made.submit(8)
    assert sent(made) == [4, 4]


def test_not_where_rows_cost_next_to_nothing():
    made = World(FIFO, workers=2)
    for rows in (1, 8):
        made.state.lanes.unknown.observe(rows, 0.02 + 1e-5 * rows)
    made.submit(8)
    assert sent(made) == [8]


def test_what_goes_with_every_batch_is_counted_in():
    lane = Lane(LANES[0])
    for rows in range(1, 9):
        lane.observe(rows, 0, 5e-6 * rows)
    seconds = lane.predictor(lane.cost)
    assert seconds is not None
    assert spread(8, 2, 8, seconds) == 8  # 20 microseconds are not worth another message


def test_rows_that_no_batch_would_hold_together_are_left_to_their_sizes():
    made = world(SORTED)
    for size in (10, 10, 10, 10, 10, 10, 200, 200):
        made.submit(1, size=size)
    assert sent(made) == [6, 2]


def test_a_cut_request_of_sorted_rows_gives_its_short_ones_first():
    made = world(SORTED)
    ticket = made.submit(8, size=14, sizes=[10, 10, 11, 11, 12, 13, 14, 14])
    assert [(batch.rows, batch.size) for batch in made.pump()] == [(4, 11), (4, 14)]
    made.settle()
    assert ticket.outcome is Outcome.OK


# --- and then ---------------------------------------------------------------------------------------------------------


def test_the_rest_of_a_cut_request_can_be_cancelled():
    made = world(workers=3)
    ticket = made.submit(8)
    (lane,) = made.state.lanes
    piece = lane.take(3, cut=True)[0]
    assert (piece.rows, lane.rows, lane.pieces, len(ticket.pieces), ticket.open_pieces) == (3, 5, 1, 2, 2)
    whole = world()
    gone = whole.submit(20)
    assert sent(whole) == [8, 8]
    whole.cancel(gone)
    assert whole.state.lanes.rows == 0
    whole.settle()
    whole.assert_at_rest()


@pytest.mark.parametrize("kind", [FailureKind.INPUT, FailureKind.MEMORY])
def test_a_share_that_fails_is_retried_and_the_other_is_kept(kind):
    made = world()
    tickets = [made.submit(1) for _ in range(8)]
    first, second = made.pump()
    made.fail(first, kind)
    made.complete(second)
    made.settle()
    assert all(ticket.outcome is Outcome.OK for ticket in tickets)
    made.assert_at_rest()


def test_a_piece_gives_rows_away_and_stays_itself():
    for rows, cut in itertools.product([2, 5], [1]):
        made = world()
        ticket = made.submit(rows, size=7)
        (piece,) = ticket.pieces
        first = piece.cut_off(cut)
        assert [(p.start, p.rows, p.size, p.sequence) for p in ticket.pieces] == [
            (0, cut, 7, piece.sequence),
            (cut, rows - cut, 7, piece.sequence),
        ]
        assert ticket.pieces == [first, piece]
        assert isinstance(first, Piece)
