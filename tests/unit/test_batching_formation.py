"""Who travels together: against all batches of neighbours, and cuts of large requests against the optimum."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.batching.formation import BySize, cut_even, cut_sorted, neighbours
from hybrid.batching.queue import Piece, Ticket

sizes_of = st.lists(st.integers(1, 256), min_size=1, max_size=40)
fixed_of = st.sampled_from([0.5, 3.0, 7.5, 40.0, 500.0, 1e6])


def piece(size, *, rows=1, priority=5, sequence=0):
    made = Piece(Ticket(rows=rows, payload=None, size=size, priority=priority), 0, rows)
    made.sequence = sequence
    return made


def level_of(pieces):
    for number, one in enumerate(pieces):
        one.sequence = number + 1
    return sorted((one.size, one.sequence, one) for one in pieces)


def share_of(pieces, max_rows, fixed):
    """The share of a batch's cost that is useful work."""
    rows = sum(one.rows for one in pieces)
    useful = sum(one.rows * (one.size + fixed / max_rows) for one in pieces)
    return useful / (fixed + rows * max(one.size for one in pieces))


@given(sizes=sizes_of, at=st.integers(0, 39), max_rows=st.integers(1, 24), fixed=fixed_of)
@settings(max_examples=200, deadline=None)
def test_no_other_run_of_neighbours_is_better(sizes, at, max_rows, fixed):
    level = level_of([piece(size) for size in sizes])
    at %= len(level)
    chosen = [level[place][2] for place in neighbours(level, at, max_rows, fixed)]
    assert level[at][2] in chosen
    assert len(set(map(id, chosen))) == len(chosen) <= max_rows
    assert max(one.size for one in chosen) - min(one.size for one in chosen) <= fixed
    runs = [
        [entry[2] for entry in level[first : last + 1]]
        for first in range(at + 1)
        for last in range(at, min(len(level), first + max_rows))
        if level[last][0] - level[first][0] <= fixed
    ]
    best = max(share_of(run, max_rows, fixed) for run in runs)
    assert share_of(chosen, max_rows, fixed) >= best * (1.0 - 1e-9)


@given(
    rows=st.lists(st.tuples(st.integers(1, 100), st.integers(1, 9), st.integers(1, 3)), min_size=1, max_size=30),
    at=st.integers(0, 29), max_rows=st.integers(1, 8), fixed=fixed_of,
)  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_take_keeps_all_bounds_and_the_rest(rows, at, max_rows, fixed):
    pieces = [piece(size, rows=n, priority=p, sequence=i + 1) for i, (size, n, p) in enumerate(rows)]
    by_size = BySize()
    for one in pieces:
        by_size.add(one)
    most_urgent = min(one.ticket.priority for one in pieces)
    urgent = [one for one in pieces if one.ticket.priority == most_urgent]
    anchor = urgent[at % len(urgent)]
    taken = by_size.take(anchor, max_rows, fixed)
    assert anchor in taken
    assert len(taken) == 1 or sum(one.rows for one in taken) <= max_rows
    longest = max(one.size for one in taken)
    assert all(longest - one.size <= fixed for one in taken)
    assert longest == max(one.size for one in taken if one.ticket.priority == most_urgent), (
        "padded for a lower priority"
    )
    assert {*map(id, by_size), *map(id, taken)} == set(map(id, pieces))
    assert len(by_size) == len(pieces) - len(taken)
    for one in list(by_size):
        by_size.remove(one)
    assert len(by_size) == 0


def test_company_of_the_same_size_costs_one_look():
    level = level_of([piece(16) for _ in range(100)])
    assert neighbours(level, 0, 8, 7.5) == [7, 6, 5, 4, 3, 2, 1, 0]


def test_a_short_text_does_not_wait_for_a_long_one():
    """Alone it is a poor batch, but a batch of both would cost more than two."""
    level = level_of([piece(5), piece(250)])
    assert neighbours(level, 0, 8, 7.5) == [0]
    assert neighbours(level, 0, 8, 500.0) == [1, 0]


def test_a_large_piece_in_between_is_passed_over():
    level = level_of([piece(10), piece(11, rows=8), piece(11), piece(12)])
    assert neighbours(level, 0, 8, 7.5) == [3, 2, 0]


def test_lower_priorities_only_fill_up():
    by_size = BySize()
    pieces = [piece(20, priority=1), piece(22, priority=1), piece(22, priority=2), piece(60, priority=2), piece(21)]
    for number, one in enumerate(pieces):
        one.sequence = number
        by_size.add(one)
    assert by_size.take(pieces[0], 4, 7.5) == [pieces[1], pieces[0], pieces[2], pieces[4]]
    assert list(by_size) == [pieces[3]]


# Cutting a request ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "counts"), [(1, [1]), (8, [8]), (9, [8, 1]), (33, [8, 8, 8, 8, 1])])
def test_alike(rows, counts):
    assert cut_even(rows, 8) == counts


def cost_of(sizes, counts, fixed):
    ends = [sum(counts[: index + 1]) for index in range(len(counts))]
    return sum(fixed + count * sizes[end - 1] for count, end in zip(counts, ends, strict=True))


def optimum(sizes, max_rows, fixed):
    best = [0.0]
    for end in range(1, len(sizes) + 1):
        starts = range(max(0, end - max_rows), end)
        best.append(min(best[start] + fixed + (end - start) * sizes[end - 1] for start in starts))
    return best[-1]


@given(sizes=st.lists(st.integers(1, 256), min_size=1, max_size=70), max_rows=st.integers(1, 32), fixed=fixed_of)
@settings(max_examples=200, deadline=None)
def test_cuts_are_near_the_cheapest(sizes, max_rows, fixed):
    sizes.sort()
    counts = cut_sorted(sizes, max_rows, fixed)
    assert sum(counts) == len(sizes)
    assert min(counts) >= 1
    assert max(counts) <= max_rows
    assert cost_of(sizes, counts, fixed) <= 1.5 * optimum(sizes, max_rows, fixed)


def test_cut_where_the_length_changes():
    assert cut_sorted([5, 6, 6, 200, 210], 8, 7.5) == [3, 1, 1]
    assert cut_sorted([5, 6, 6, 200, 210], 8, 500.0) == [3, 2]
    assert cut_sorted([9] * 20, 8, 7.5) == [4, 8, 8]
