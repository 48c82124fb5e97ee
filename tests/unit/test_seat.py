"""How long a seat stays empty after its worker has ended."""

from hybrid.workers.seat import PoolCounts, Seat


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
    assert seat.counts.restarts_n == 2008


def test_what_was_ready_is_replaced_at_once_twice():
    assert lives(Seat(), 5, ready=True) == [0.0, 0.0, 0.25, 0.5, 1.0]


def test_a_life_that_was_worth_something_clears_the_record():
    seat = Seat()
    lives(seat, 5, ready=True)
    assert seat.hopeless
    seat.worked(8, 0.5)
    assert not seat.hopeless
    assert (seat.counts.batches_n, seat.counts.rows_n, seat.counts.busy_s) == (1, 8, 0.5)
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


def test_a_new_pool_goes_on_counting_and_an_heir_adds_up():
    counts = PoolCounts()
    Seat(counts.seat(1)).worked(2, 0.5)
    later = Seat(counts.seat(1))
    later.worked(3, 0.25)
    assert (later.counts.batches_n, later.counts.rows_n, later.counts.busy_s) == (2, 5, 0.75)
    assert counts.seat(0).batches_n == 0
    heir = PoolCounts()
    Seat(heir.seat(0)).worked(1, 1.0)
    counts.ends["killed by SIGKILL"] = 2
    heir.take_over(counts)
    assert [seat.rows_n for seat in heir.seats] == [1, 5]
    assert heir.ends == {"killed by SIGKILL": 2}
    assert [seat.rows_n for seat in counts.seats] == [0, 0]
    later.worked(1, 0.0)
    heir.take_over(counts)
    assert heir.seat(1).rows_n == 6
