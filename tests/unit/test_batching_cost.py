import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hybrid.batching.cost import CostModel, CostStats, SizeCost

rows_of_batches = st.integers(1, 4096)


def observed(*points, times=1):
    cost = CostModel()
    for _ in range(times):
        for rows, seconds in points:
            cost.observe(rows, seconds)
    return cost


def test_nothing_known():
    cost = CostModel()
    assert not cost.known
    assert cost.predict(8) == 0.0
    assert cost.stats() == CostStats(per_row_s=0.0, fixed_s=0.0, known=False)


@given(
    per_row=st.floats(1e-6, 1.0), fixed=st.floats(0.0, 1.0), sizes=st.lists(rows_of_batches, min_size=2, max_size=40)
)
def test_line_is_found(per_row, fixed, sizes):
    cost = observed(*((rows, per_row * rows + fixed) for rows in sizes))
    if max(sizes) - min(sizes) < 0.01 * max(sizes):
        return  # next to one size only: the next test
    for rows in sizes:
        assert cost.predict(rows) == pytest.approx(per_row * rows + fixed, rel=1e-3)


@example(rows=3333, seconds=9.09520772528455, times=16, other=1)
@given(rows=rows_of_batches, seconds=st.floats(1e-5, 100.0), times=st.integers(1, 400), other=rows_of_batches)
def test_one_size_only_errs_on_the_long_side(rows, seconds, times, other):
    """Proportional beyond the size that was seen, constant below: whatever the true line is, it is not above."""
    cost = observed((rows, seconds), times=times)
    assert cost.predict(other) == pytest.approx(seconds * max(1.0, other / rows), rel=1e-6)


@given(st.lists(st.tuples(rows_of_batches, st.floats(0.0, 100.0)), min_size=1, max_size=60), rows_of_batches)
def test_never_negative_and_never_beyond_reason(points, rows):
    cost = observed(*points)
    predicted = cost.predict(rows)
    assert predicted >= 0.0
    assert predicted <= 4096 * 4096 * (1.0 + max(seconds for _, seconds in points))
    stats = cost.stats()
    assert stats.known
    assert stats.per_row_s >= 0.0
    assert stats.fixed_s >= 0.0


def test_old_behaviour_fades():
    cost = observed((1, 0.001), (8, 0.008), times=200)
    for _ in range(150):
        cost.observe(1, 0.010)
        cost.observe(8, 0.080)
    assert cost.predict(8) == pytest.approx(0.080, rel=0.02)


def test_stats_are_the_line():
    stats = observed((1, 0.003), (4, 0.006), (8, 0.010), times=5).stats()
    assert stats.per_row_s == pytest.approx(0.001)
    assert stats.fixed_s == pytest.approx(0.002)


def test_fixed_part_is_found_under_noise_that_is_longer_than_it_is():
    """Batches of up to 2000 tokens and 10 % of noise: 50 ms of it, around a fixed part of 2 ms."""
    rng = random.Random(5)
    cost = SizeCost()
    assert cost.fixed_work() is None
    for _ in range(400):
        work = rng.randint(1, 8) * rng.randint(4, 256)
        cost.observe(work, (0.002 + work * 0.00025) * rng.lognormvariate(0.0, 0.1))
    fixed_work = cost.fixed_work()
    assert fixed_work is not None
    assert 6.0 < fixed_work < 14.0


def test_fixed_part_of_batches_that_are_all_alike_is_unknown():
    cost = SizeCost()
    for _ in range(50):
        cost.observe(64, 0.02)
    assert cost.line() is None
    assert cost.fixed_work() is None


def test_device_that_takes_as_long_for_any_length():
    cost = SizeCost()
    for work in range(10, 60):
        cost.observe(work, 0.05)
    fixed_work = cost.fixed_work()
    assert fixed_work is not None
    assert fixed_work > 1e5
