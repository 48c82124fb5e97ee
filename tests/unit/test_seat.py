"""How long a seat stays empty after its worker has ended."""

from hybrid.workers.seat import Seat


def lives(seat, count, *, ready, lasted=False):
    pauses = []
    for _ in range(count):
        seat.ended("killed by SIGKILL", lasted=lasted)
        pauses.append(seat.next_life(was_ready=ready))
    return pauses


def test_what_cannot_start_pauses_from_the_first_time_and_ever_longer():
    seat = Seat()
    assert lives(seat, 8, ready=False) == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert lives(seat, 2000, ready=False)[-1] == 10.0
    assert seat.restarts_n == 2008


def test_what_was_ready_is_replaced_at_once_twice():
    assert lives(Seat(), 5, ready=True) == [0.0, 0.0, 0.25, 0.5, 1.0]


def test_a_life_that_was_worth_something_clears_the_record():
    seat = Seat()
    lives(seat, 5, ready=True)
    assert seat.hopeless
    seat.worked(8, 0.5)
    assert not seat.hopeless
    assert (seat.batches_n, seat.rows_n, seat.busy_s) == (1, 8, 0.5)
    assert lives(seat, 5, ready=True, lasted=True) == [0.0] * 5
    assert not seat.hopeless


def test_hopeless_after_four():
    seat = Seat()
    lives(seat, 3, ready=False)
    assert not seat.hopeless
    lives(seat, 1, ready=False)
    assert seat.hopeless
    assert seat.last_end == "killed by SIGKILL"


def test_a_failed_successor_holds_back_the_next():
    seat = Seat()
    assert seat.may_recycle(100.0)
    seat.successor_failed(100.0)
    assert not seat.may_recycle(109.9)
    assert seat.may_recycle(110.0)
