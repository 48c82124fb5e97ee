"""Open rows: what runs together, what leaves when, and that nothing beyond the bounds is held."""

import random

import pytest

from hybrid.offline.rows import Fault, Outcome, ReadyRow
from hybrid.offline.window import Hurry, Limits, Window

LIMITS = Limits(open_rows=40, open_bytes=1000, batch_rows=4, sorted_rows=8)


def window(start: int = 0) -> Window:
    return Window(LIMITS, start)


def add(win: Window, *sizes: int, form: object = None, start: int = 0) -> None:
    for offset, size in enumerate(sizes):
        win.admit(start + offset, 10)
        win.ready(ReadyRow(start + offset, None, form=form, size=size))


def done(*indices: int) -> list[Outcome]:
    return [Outcome(index, None, Fault("x")) for index in indices]


def indices(batches: list[list[ReadyRow]]) -> list[list[int]]:
    return [[row.index for row in batch] for batch in batches]


def test_rows_of_like_length_run_together_the_longest_first():
    win = window()
    add(win, 1, 9, 2, 8, 3, 7, 4, 6, 5)
    assert indices(win.cut(Hurry.NONE)) == [[1, 3, 5, 7], [6, 4, 2, 0]]
    assert win.ready_n == 1
    assert indices(win.cut(Hurry.NONE)) == []
    assert indices(win.cut(Hurry.SOME)) == []
    assert indices(win.cut(Hurry.ALL)) == [[8]]


def test_rows_without_a_length_do_not_wait_to_be_sorted():
    win = window()
    add(win, 0, 0, 0, 0, 0)
    assert indices(win.cut(Hurry.NONE)) == [[0, 1, 2, 3]]


def test_with_some_hurry_only_full_batches_leave():
    win = window()
    add(win, 1, 2, 3, 4, 5, 6)
    assert indices(win.cut(Hurry.SOME)) == [[3, 2, 1, 0]]


def test_forms_do_not_mix():
    win = window()
    add(win, 1, 1, form="a")
    add(win, 2, 2, form="b", start=2)
    assert indices(win.cut(Hurry.ALL)) == [[0, 1], [2, 3]]


def test_outcomes_leave_in_order_without_a_gap():
    win = window(start=5)
    for index in range(5, 9):
        win.admit(index, 1)
    win.settle(done(6, 8))
    assert win.take_done() == []
    win.settle(done(5))
    assert [o.index for o in win.take_done()] == [5, 6]
    win.settle(done(7))
    assert [o.index for o in win.take_done()] == [7, 8]
    assert (win.open_n, win.open_bytes) == (0, 0)


def test_wrong_moves_are_refused():
    win = window()
    win.admit(0, 1)
    with pytest.raises(ValueError, match="row 2 came in where 1"):
        win.admit(2, 1)
    win.settle(done(0))
    for again in (0, 1):
        with pytest.raises(ValueError, match="second outcome"):
            win.settle(done(again))


def test_room_is_bounded_in_rows_and_bytes():
    win = window()
    for index in range(39):
        win.admit(index, 1)
    assert win.room
    win.admit(39, 1)
    assert not win.room
    large = window()
    large.admit(0, 5000)
    assert not large.room
    large.settle(done(0))
    large.take_done()
    assert large.room


def test_whatever_happens_each_row_runs_once_and_leaves_in_order():
    chance = random.Random(3)
    for _ in range(30):
        win = window()
        came, left, running, total = 0, 0, [], chance.randrange(1, 300)
        while left < total:
            if came < total and win.room and chance.random() < 0.7:
                add(win, chance.choice((0, 3, 5, 9)), form=chance.randrange(2), start=came)
                came += 1
            stuck = not win.room and not running
            hurry = Hurry.ALL if came == total or stuck else chance.choice((Hurry.NONE, Hurry.SOME))
            for batch in win.cut(hurry):
                assert 0 < len(batch) <= LIMITS.batch_rows
                running.append(batch)
            if running and chance.random() < 0.5:
                win.settle(done(*(row.index for row in running.pop(chance.randrange(len(running))))))
            for outcome in win.take_done():
                assert outcome.index == left
                left += 1
            assert win.open_n == came - left <= LIMITS.open_rows
        assert (win.open_n, win.open_bytes, win.ready_n) == (0, 0, 0)
