"""Batching state: batches that fail and workers that are lost. Only the guilty request pays and is found quickly."""

import pytest
from batching_world import LANES, World

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import Outcome
from hybrid.errors import PoisonRefused
from hybrid.messages import FailureKind, ReleaseReason

BIG = BatchPolicy(max_batch=32, early_trigger=32)


def outcomes(tickets):
    return [ticket.outcome for ticket in tickets]


def run_one_bad(position, bad, *, slots=1, workers=1):
    """32 requests in one batch, one of them bad."""
    world = World(BIG, slots=slots, workers=workers)
    tickets = [world.submit(**{bad: {0}}) if index == position else world.submit() for index in range(32)]
    world.settle()
    world.assert_at_rest()
    assert [t.outcome is Outcome.OK for t in tickets] == [index != position for index in range(32)]
    return world, tickets[position]


@pytest.mark.parametrize("slots", [1, 2])
@pytest.mark.parametrize("position", range(32))
def test_one_poison_among_32(position, slots):
    world, bad = run_one_bad(position, "poison", slots=slots)
    assert world.runs[0].rows == 32
    assert len(world.runs) - 1 <= 10
    assert (bad.failure, bad.failure_text) == (FailureKind.INPUT, "told to fail: input")


@pytest.mark.parametrize("position", [0, 13, 31])
@pytest.mark.parametrize("workers", [1, 3])
def test_one_that_kills_its_worker_among_32(position, workers):
    """Each is retried alone, so one worker more is lost, not one per innocent."""
    world, bad = run_one_bad(position, "crash", slots=2, workers=workers)
    assert world.state.stats.lost_batches_n == 2
    assert bad.failure is FailureKind.LOST
    assert "lost twice" in bad.failure_text


@pytest.mark.parametrize("first", range(0, 32, 5))
@pytest.mark.parametrize("second", [1, 15, 16, 31])
def test_two_poisons(first, second):
    world = World(BIG)
    bad = {first, second}
    tickets = [world.submit(poison={0} if index in bad else ()) for index in range(32)]
    world.settle()
    assert {index for index, t in enumerate(tickets) if t.outcome is Outcome.FAILED} == bad
    assert len(world.runs) - 1 <= 20
    world.assert_at_rest()


@pytest.mark.parametrize("row", [0, 7, 8, 20, 32])
def test_poison_within_a_split_request(row):
    """All of it fails, and nothing of it runs that had not started; those beside it are answered."""
    world = World(BatchPolicy(max_batch=8))
    small = [world.submit() for _ in range(3)]
    bad = world.submit(33, poison={row})
    small += [world.submit() for _ in range(3)]
    world.settle()
    assert bad.outcome is Outcome.FAILED
    assert outcomes(small) == [Outcome.OK] * 6
    world.assert_at_rest()


def test_requests_that_leave_while_their_batch_fails():
    """The rest runs together again before it is halved: the guilty one may be gone."""
    world = World(BIG)
    tickets = [world.submit(poison={0} if index == 3 else ()) for index in range(8)]
    world.pump()
    world.cancel(tickets[3])
    world.settle()
    assert [batch.rows for batch in world.runs] == [8, 7]
    assert [t.outcome is Outcome.OK for t in tickets] == [index != 3 for index in range(8)]


def test_failed_batch_that_nobody_waits_for():
    world = World()
    ticket = world.submit()
    world.pump()
    world.cancel(ticket)
    assert world.fail(world.runs[0]) == []
    assert world.pump() == []
    world.assert_at_rest()


def test_retry_that_leaves_is_not_sent():
    world = World()
    first, second = world.submit(), world.submit()
    world.pump()
    world.fail(world.runs[0])
    world.cancel(first)
    (batch,) = world.pump()
    assert [piece.ticket for piece in batch.pieces] == [second]
    assert world.state.lanes.classes[LANES[0].size_class].released[ReleaseReason.ISOLATE] == 1


def test_retries_go_before_those_who_still_wait():
    world = World(BatchPolicy(max_batch=2))
    world.submit()
    world.submit()
    world.pump()
    world.submit(priority=1)
    world.fail(world.runs[0])
    (batch,) = world.pump()
    assert batch.reason is ReleaseReason.ISOLATE


@pytest.mark.parametrize("rows", [1, 5])
def test_wrong_output_fails_the_whole_batch_once(rows):
    world = World()
    tickets = [world.submit(rows), world.submit()]
    world.pump()
    assert world.fail(world.runs[0], FailureKind.OUTPUT) == tickets
    assert world.pump() == []
    assert {t.failure for t in tickets} == {FailureKind.OUTPUT}
    assert world.state.workers, "the worker stays"
    world.assert_at_rest()


def test_wrong_output_of_two_pieces_of_one_request():
    world = World(BatchPolicy(max_batch=4, queue_rows=100), workers=0)
    ticket = world.submit(10)
    world.state.set_policy(BatchPolicy(max_batch=8))
    world.up()
    (batch,) = world.pump()
    assert [piece.rows for piece in batch.pieces] == [4, 4]
    assert world.fail(batch, FailureKind.OUTPUT) == [ticket]
    assert world.state.lanes.rows == 0
    world.assert_at_rest()


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fits", [1, 2, 3, 7])
def test_memory_halves_the_rows_of_a_single_request(fits):
    world = World(BatchPolicy(max_batch=16))
    ticket = world.submit(37)
    world.memory_rows = fits
    world.settle()
    assert ticket.outcome is Outcome.OK
    assert [row for piece in ticket.pieces for row in range(piece.start, piece.start + piece.rows)] == list(range(37))
    assert max(piece.rows for piece in ticket.pieces) <= fits
    world.assert_at_rest()


def test_memory_of_one_row_is_final():
    world = World()
    ticket = world.submit()
    world.memory_rows = 0
    world.settle()
    assert (ticket.outcome, ticket.failure) == (Outcome.FAILED, FailureKind.MEMORY)


def test_halves_remember_the_lost_worker():
    """A piece that lost a worker and then ran out of memory does not get a third life by being cut."""
    world = World()
    ticket = world.submit(4)
    world.pump()
    world.lose(world.runs[0].worker)
    world.up()
    (again,) = world.pump()
    world.fail(again, FailureKind.MEMORY)
    (half,) = world.pump()
    assert world.lose(half.worker) == [ticket]
    assert ticket.failure is FailureKind.LOST
    world.assert_at_rest()


# Lost workers --------------------------------------------------------------------------------------------------------


def test_lost_worker_is_survived_once_alone():
    world = World(BatchPolicy(max_batch=4))
    tickets = [world.submit() for _ in range(3)]
    world.pump()
    assert world.lose(1) == []
    world.up()
    world.settle()
    assert [batch.rows for batch in world.runs] == [3, 1, 1, 1]
    assert outcomes(tickets) == [Outcome.OK] * 3


def test_second_loss_is_final():
    world = World()
    ticket = world.submit()
    world.pump()
    world.lose(1)
    world.up()
    world.pump()
    assert world.lose(2) == [ticket]
    assert (ticket.outcome, ticket.failure) == (Outcome.FAILED, FailureKind.LOST)
    world.assert_at_rest()


def test_batches_that_waited_behind_a_lost_one_are_not_counted():
    """They never ran: sent again as they were, as often as it takes."""
    world = World(BatchPolicy(max_batch=4, early_trigger=4), slots=2)
    guilty = world.submit(4, crash={0})
    behind = [world.submit() for _ in range(4)]
    world.settle()
    assert guilty.failure is FailureKind.LOST
    assert outcomes(behind) == [Outcome.OK] * 4
    assert [batch.rows for batch in world.runs if batch.pieces[0].ticket in behind][-1] == 4
    assert all(piece.losses == 0 for ticket in behind for piece in ticket.pieces)
    world.assert_at_rest()


def test_lost_without_replacement_waits_and_expires():
    world = World()
    ticket = world.submit(deadline=1001.0)
    world.pump()
    world.lose(1)
    world.pump()
    assert world.state.wake_at(world.now) == 1001.0
    world.now = 1001.0
    world.pump()
    assert ticket.outcome is Outcome.EXPIRED
    world.assert_at_rest()


def test_retired_worker_finishes_what_it_has_and_gets_no_more():
    world = World(slots=2)
    first = world.submit()
    world.pump()
    world.state.worker_retired(1)
    second = world.submit()
    assert world.pump() == []
    world.complete(world.runs[0])
    assert first.outcome is Outcome.OK
    assert world.pump() == []
    world.lose(1)
    world.up()
    world.settle()
    assert second.outcome is Outcome.OK


# Repeated offences ---------------------------------------------------------------------------------------------------


def offender():
    hashed = []

    def digest(payload):
        hashed.append(payload)
        return payload

    return World(fingerprint=digest), hashed


def test_content_that_fails_twice_is_refused_for_a_minute():
    world, hashed = offender()
    world.submit(payload=b"good")
    world.settle()
    assert hashed == []  # an undisturbed server hashes nothing
    for _ in range(2):
        world.submit(payload=b"bad", poison={0})
        world.settle()
    with pytest.raises(PoisonRefused):
        world.submit(payload=b"bad")
    world.submit(payload=b"good")
    world.settle()
    assert world.state.stats.poison_refused_n == 1
    world.advance(61.0)
    hashed.clear()
    world.submit(payload=b"bad")
    world.submit(payload=b"bad")
    assert hashed == [b"bad"]  # the first look emptied the list
    world.settle()
    world.assert_at_rest()


def test_content_that_killed_two_workers_is_refused_at_once():
    world, _ = offender()
    world.submit(payload=b"deadly", crash={0})
    world.settle()
    with pytest.raises(PoisonRefused):
        world.submit(payload=b"deadly")


def test_wrong_output_is_the_models_fault_and_not_remembered():
    world, hashed = offender()
    for _ in range(3):
        world.submit(payload=b"fine")
        world.pump()
        world.fail(world.runs[-1], FailureKind.OUTPUT)
    assert hashed == []


@pytest.mark.parametrize(
    ("first", "second", "refused_from"),
    [
        ("crash", "crash", 1),  # alone, and by its own doing: no third worker for it
        ("killed", "crash", 2),  # one offence like any other
        ("crash", "killed", None),  # the first may have been a neighbour's, the second was nobody's
        ("killed", "killed", None),
    ],
)
def test_only_ends_by_its_own_doing_are_held_against_content(first, second, refused_from):
    world, _ = offender()

    def lose_twice():
        ticket = world.submit(payload=b"same", priority=1)
        for how in (first, second):
            (batch,) = world.pump()
            world.lose(batch.worker, own=how == "crash")
            world.up()
        assert (ticket.outcome, ticket.failure) == (Outcome.FAILED, FailureKind.LOST)

    for attempt in range(3):
        if attempt == refused_from:
            with pytest.raises(PoisonRefused):
                world.submit(payload=b"same")
            return
        lose_twice()
    assert refused_from is None
    world.submit(payload=b"same")
    world.settle()
    world.assert_at_rest()


def test_content_that_succeeds_is_acquitted():
    """An engine that fails now and then must not make an innocent input suspicious for good."""
    world, hashed = offender()
    for _ in range(4):
        world.submit(payload=b"unlucky", poison={0})
        world.settle()
        world.submit(payload=b"unlucky")
        world.settle()
    hashed.clear()
    world.submit(payload=b"unlucky")
    world.settle()
    assert hashed == []  # nothing is remembered, so nothing is hashed
    world.assert_at_rest()


def test_a_request_is_hashed_once():
    world, hashed = offender()
    world.submit(payload=b"bad", poison={0})
    world.settle()
    hashed.clear()
    world.submit(payload=b"bad", poison={0})
    world.submit(payload=b"good")
    world.settle()
    assert sorted(hashed) == [b"bad", b"good"]
