"""Batching state: bounds, requests that leave, wrong moves, and that nothing grows."""

import gc
import re

import pytest
from batching_world import SECONDS, World

from hybrid.batching import state as state_module
from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import LaneKey, Outcome, PieceState, Ticket
from hybrid.batching.types import IllegalMove
from hybrid.errors import QueueFull, TooLarge


def sizes(world):
    return [batch.rows for batch in world.runs]


# Bounds --------------------------------------------------------------------------------------------------------------


def test_batches_are_limited_in_rows_not_in_requests():
    """BAT-04: five requests of six rows never share a batch of eight."""
    world = World(BatchPolicy(max_batch=8))
    tickets = [world.submit(6) for _ in range(5)]
    world.settle()
    assert sizes(world) == [6] * 5
    assert all(ticket.outcome is Outcome.OK for ticket in tickets)


def test_big_request_is_split_and_put_together_in_order():
    """BAT-05: 33 rows into max batch 8, alone."""
    world = World(BatchPolicy(max_batch=8))
    ticket = world.submit(33)
    world.settle()
    assert sizes(world) == [8, 8, 8, 8, 1]
    assert [(piece.start, piece.rows) for piece in ticket.pieces] == [(0, 8), (8, 8), (16, 8), (24, 8), (32, 1)]
    assert ticket.outcome is Outcome.OK


def test_big_request_shares_with_small_ones():
    world = World(BatchPolicy(max_batch=8), workers=2, slots=2)
    tickets = [world.submit(1), world.submit(33), *(world.submit(1) for _ in range(7))]
    world.settle()
    assert max(sizes(world)) == 8
    assert sum(sizes(world)) == 41
    assert all(ticket.outcome is Outcome.OK for ticket in tickets)
    world.assert_at_rest()


def test_row_bound():
    world = World(BatchPolicy(queue_rows=20), workers=0)
    world.submit(18)
    with pytest.raises(QueueFull, match="18 of 20 rows wait and the request has 3") as caught:
        world.submit(3)
    assert caught.value.retry_after_s >= 0.05
    world.submit(2)
    world.cancel(world.tickets[0])
    world.submit(18)
    assert world.state.stats.refused_n == 1


def test_byte_bound_holds_until_the_answer():
    """A request that runs may have to run again, so its bytes count until it is answered."""
    world = World(BatchPolicy(queue_bytes=100))
    world.submit(nbytes=90)
    world.pump()
    with pytest.raises(QueueFull, match="90 of 100 bytes held and the request has 11"):
        world.submit(nbytes=11)
    world.complete(world.runs[0])
    world.submit(nbytes=100)


@pytest.mark.parametrize("given", [{"rows": 21}, {"nbytes": 101}])
def test_request_over_a_bound_by_itself_is_told_so(given):
    """429 with Retry-After would make its client come back for ever."""
    world = World(BatchPolicy(queue_rows=20, queue_bytes=100))
    with pytest.raises(TooLarge, match=r"20 rows and 100 bytes"):
        world.submit(**given)


def test_retry_after_follows_the_predicted_time():
    world = World(BatchPolicy(max_batch=8, queue_rows=80))
    world.submit(8)
    world.pump()
    world.state.complete(world.runs[0].id, 2.0, world.now)
    for _ in range(10):
        world.submit(8)
    with pytest.raises(QueueFull) as caught:
        world.submit(1)
    assert caught.value.retry_after_s == pytest.approx(20.0)


# Leaving -------------------------------------------------------------------------------------------------------------


def test_expired_before_it_came_is_answered_and_never_sent():
    world = World()
    ticket = world.submit(deadline=999.0)
    assert world.state.wake_at(world.now) == world.now
    assert world.pump() == []
    assert ticket.outcome is Outcome.EXPIRED
    world.assert_at_rest()


def test_expiry_while_the_workers_are_busy():
    world = World()
    running = world.submit(deadline=1000.5)
    world.pump()
    waiting = world.submit(deadline=1000.5, rows=20)
    assert world.state.wake_at(world.now) == 1000.5
    world.now = 1000.5
    world.pump()
    assert [running.outcome, waiting.outcome] == [Outcome.EXPIRED] * 2
    assert world.state.lanes.rows == world.state.held_bytes == 0
    assert world.complete(world.runs[0]) == []  # what ran for it is not an answer
    world.assert_at_rest()


def test_cancelled_leaves_the_counters_at_once():
    world = World(workers=0)
    ticket = world.submit(20, nbytes=77)
    world.cancel(ticket)
    assert world.state.lanes.rows == world.state.held_bytes == 0
    world.cancel(ticket)  # late, and harmless
    world.up()
    assert world.pump() == []
    world.assert_at_rest()


def test_cancel_of_a_ticket_that_was_refused():
    world = World(BatchPolicy(queue_rows=1))
    world.submit()
    ticket = Ticket(rows=1, payload=None)
    with pytest.raises(QueueFull):
        world.state.submit(ticket, world.now)
    assert not world.state.cancel(ticket, world.now)
    world.after()
    world.pump()
    world.state.submit(ticket, world.now)  # it stayed the caller's, who may try again
    world.after()


def test_oversized_request_that_leaves_half_way():
    world = World(BatchPolicy(max_batch=8))
    ticket = world.submit(33)
    world.pump()
    world.complete(world.runs[0])
    world.pump()
    world.cancel(ticket)
    assert world.state.lanes.rows == 0
    assert world.complete(world.runs[1]) == []
    assert world.pump() == []
    world.assert_at_rest()


# Wrong moves ---------------------------------------------------------------------------------------------------------


def test_illegal_move_tells_the_story():
    world = World()
    ticket = world.submit(2)
    world.pump()
    world.advance(0.25)
    piece = world.runs[0].pieces[0]
    with pytest.raises(IllegalMove) as caught:
        world.state._move(piece, "drop", world.now)
    text = str(caught.value)
    assert "drop on a piece that is sent. This is a bug. ticket 1 (2 rows, lane " in text
    assert text.endswith("1000.000000 queued, 1000.000000 send")
    assert piece.state is PieceState.SENT
    world.complete(world.runs[0])
    with pytest.raises(IllegalMove, match=r"answered twice.*1000.250000 ok"):
        world.state._close(ticket, Outcome.OK, world.now)


def test_wrong_calls_are_refused_before_they_do_harm():
    world = World()
    ticket = world.submit()
    with pytest.raises(IllegalMove, match="for the second time"):
        world.state.submit(ticket, world.now)
    with pytest.raises(IllegalMove, match="without rows"):
        world.submit(0)
    with pytest.raises(IllegalMove, match="worker 1 came up twice"):
        world.state.worker_up(1, 1)
    with pytest.raises(IllegalMove, match="batch 77 ended but is not in flight"):
        world.state.complete(77, 0.1, world.now)
    assert world.state.worker_lost(77, world.now, own=True) == []
    world.state.worker_retired(77)
    world.settle()
    world.assert_at_rest()


def test_diagram_is_the_table():
    """Each arrow of the picture is a legal move and each legal move is an arrow."""
    picture = state_module.__doc__.split("story):", 1)[1].split("Knows no clock", 1)[0]
    drawn = set(re.findall(r"[─◀▶](\w+)─", picture))
    assert drawn == {event for _, event in state_module._MOVES}
    states = {piece_state.name for piece_state in PieceState}
    assert set(re.findall(r"\b[A-Z]{4,}\b", picture)) == states


# Growth --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ten_thousand_shapes_leave_few_lanes_and_all_counts():
    world = World()
    state = world.state
    arrived = 0
    for index in range(10_000):
        key = LaneKey(("x", index), f"class {index % 3}")
        state.submit(Ticket(rows=1, payload=None, lane_key=key), world.now)
        (batch,) = state.pump(world.now)
        if index % 7:
            state.complete(batch.id, SECONDS, world.now)
        else:
            state.worker_lost(batch.worker, world.now, own=True)
            state.worker_up(index + 2, 1)
            (again,) = state.pump(world.now)
            state.complete(again.id, SECONDS, world.now)
        count = sum(counters.arrived_n for counters in state.lanes.classes.values())
        assert count == arrived + 1
        arrived = count
    assert len(state.lanes) <= 128
    assert len(state.lanes.classes) == 3
    state.check()


@pytest.mark.slow
def test_lanes_in_use_are_never_closed_and_idle_ones_go_later():
    world = World(BatchPolicy(max_batch=1), workers=0)
    tickets = [world.submit(lane_key=LaneKey(index)) for index in range(140)]
    assert len(world.state.lanes) == 140
    world.up()
    world.settle()
    assert all(ticket.outcome is Outcome.OK for ticket in tickets)
    for index in range(140, 260):
        world.submit(lane_key=LaneKey(index))
        world.settle()
    assert len(world.state.lanes) <= 128
    world.assert_at_rest()


def test_lane_of_a_batch_in_flight_keeps_what_it_knows():
    world = World(workers=2)
    world.submit(lane_key=LaneKey("slow"))
    world.settle()
    world.submit(lane_key=LaneKey("slow"))
    (slow,) = world.pump()
    for index in range(200):
        world.submit(lane_key=LaneKey(index))
        (batch,) = world.pump()
        world.complete(batch)
    assert world.state.predicted_s(slow) == SECONDS
    world.settle()
    world.assert_at_rest()


@pytest.mark.slow
def test_a_hundred_thousand_cancelled_tickets_leave_nothing():
    state = World(workers=0).state
    keep = Ticket(rows=1, payload=None, deadline=5000.0)
    state.submit(keep, 1000.0)
    for index in range(100_000):
        ticket = Ticket(rows=1, payload=None, deadline=2000.0 + index, priority=index % 9 + 1)
        state.submit(ticket, 1000.0)
        state.cancel(ticket, 1000.0)
    (lane,) = state.lanes
    assert max(len(lane._heap), len(lane._arrivals), len(state._deadlines)) <= 70
    state.check()


def test_a_full_queue_that_leaves_is_let_go_without_a_new_request():
    state = World(BatchPolicy(queue_rows=5000), workers=0).state
    tickets = [Ticket(rows=1, payload=None, priority=index % 3 + 1) for index in range(5000)]
    for ticket in tickets:
        state.submit(ticket, 1000.0)
    for ticket in tickets:
        state.cancel(ticket, 1000.0)
    (lane,) = state.lanes
    assert max(len(lane._heap), len(lane._arrivals)) <= 70


def test_one_that_always_waits_does_not_make_the_arrivals_grow():
    """A request of the least priority stays at the front while urgent ones pass it."""
    world = World(BatchPolicy(max_batch=1))
    world.submit()
    world.pump()
    patient = world.submit(priority=9)
    for _ in range(1000):
        world.submit(priority=1)
        world.complete(world.running()[0])
        world.pump()
    assert patient.outcome is None
    (lane,) = world.state.lanes
    assert len(lane._arrivals) <= 70
    assert lane.oldest() == patient.arrived


def test_ended_requests_are_freed_without_the_garbage_collector():
    """Once the results are taken (which clears the pieces), nothing forms a cycle, however a request ended."""
    gc.collect()
    gc.disable()
    try:
        _every_ending()
        assert gc.collect() == 0
    finally:
        gc.enable()


def _every_ending():
    state = World().state
    for rows, ending in enumerate(("ok", "expire", "cancel", "lose"), start=1):
        ticket = Ticket(rows=rows * 5, payload=None, deadline=2000.0)
        state.submit(ticket, 1000.0)
        batches = state.pump(1000.0)
        if ending == "expire":
            state.expire(2000.0)
        elif ending == "cancel":
            state.cancel(ticket, 1000.0)
        while state.batches:
            batch = batches[0]
            if ending == "lose":
                state.worker_lost(batch.worker, 1000.0, own=True)
                state.worker_up(batch.worker + 1, 1)
            else:
                state.complete(batch.id, SECONDS, 1000.0)
            batches = state.pump(1000.0)
        assert ticket.outcome is not None
        if ticket.outcome is Outcome.OK:
            ticket.pieces.clear()
