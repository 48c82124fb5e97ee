import itertools
import math
from bisect import bisect_left

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.telemetry.histogram import EDGES_S, OVERFLOW, PER_OCTAVE, Hist, Histogram

inside = st.floats(min_value=EDGES_S[0], max_value=EDGES_S[-1])
anything = st.floats() | st.just(-0.0)
fractions = st.floats(min_value=0.0, max_value=1.0)


def filled(values):
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


def test_edges_are_sixteen_per_octave_from_a_tenth_of_a_millisecond_to_a_hundred_seconds():
    assert EDGES_S[0] == 1e-4
    assert 100.0 <= EDGES_S[-1] < 101.0
    assert all(EDGES_S[i + PER_OCTAVE] / EDGES_S[i] == pytest.approx(2.0) for i in range(len(EDGES_S) - PER_OCTAVE))


@given(st.lists(inside, min_size=1, max_size=200), fractions)
def test_percentile_is_within_two_point_two_percent_of_the_sorted_list(values, q):
    exact = sorted(values)[max(1, math.ceil(q * len(values))) - 1]
    assert filled(values).percentile(q) == pytest.approx(exact, rel=0.022)


@given(inside)
def test_a_value_falls_into_the_bucket_whose_upper_edge_is_next(value):
    ((index, n),) = filled([value]).sparse().buckets
    assert n == 1
    # On an edge, rounding of the logarithm may choose the neighbour; anywhere else it may not.
    on_edge = min(abs(value / edge - 1.0) for edge in EDGES_S[max(0, index - 2) : index + 2]) < 1e-12
    assert abs(index - bisect_left(EDGES_S, value)) <= int(on_edge)


@given(st.lists(anything, max_size=50))
def test_no_input_raises_and_none_is_lost(values):
    histogram = filled(values)
    assert histogram.count == len(values)
    assert math.isfinite(histogram.sum_s)
    assert histogram.sum_s >= 0.0


@pytest.mark.parametrize("value", [-1.0, -math.inf, math.nan, 0.0])
def test_nonsense_counts_as_zero(value):
    histogram = filled([value])
    assert histogram.sparse() == Hist(buckets=((0, 1),), sum_s=0.0)


def test_too_long_is_clamped():
    histogram = filled([math.inf, 1e300, 200.0])
    assert histogram.sparse().buckets == ((OVERFLOW, 3),)
    assert histogram.sum_s == 2 * 86_400.0 + 200.0
    assert histogram.percentile(0.5) == EDGES_S[-1]


@given(st.lists(anything, max_size=50), st.lists(anything, max_size=50))
def test_merging_equals_counting_together(left, right):
    merged = filled(left)
    merged.merge(filled(right))
    together = filled(left + right)
    assert merged.sparse().buckets == together.sparse().buckets
    assert merged.sum_s == pytest.approx(together.sum_s)


@given(st.lists(anything, max_size=50))
def test_the_resting_form_loses_nothing(values):
    histogram = filled(values)
    hist = histogram.sparse()
    assert hist.count == len(values)
    assert all(n > 0 for _, n in hist.buckets)
    assert [i for i, _ in hist.buckets] == sorted({i for i, _ in hist.buckets})
    assert Histogram.from_sparse(hist).sparse() == hist


@pytest.mark.parametrize("bucket", [(-1, 1), (OVERFLOW + 1, 1), (3, -1)])
def test_a_damaged_resting_form_is_refused(bucket):
    with pytest.raises(ValueError, match="histogram bucket"):
        Histogram.from_sparse(Hist(buckets=(bucket,)))


def test_an_empty_histogram_has_no_percentile():
    assert Histogram().percentile(0.5) is None


@pytest.mark.parametrize("q", [-0.1, 1.1, 99, math.nan])
def test_a_percentile_is_a_fraction(q):
    with pytest.raises(ValueError, match="fraction"):
        Histogram().percentile(q)


@given(st.lists(anything, max_size=200))
def test_counting_many_at_once_equals_counting_one_by_one(values):
    one, many = filled(values), Histogram()
    many.observe_many(np.array(values, np.float64))
    assert many.count == one.count
    assert many.sum_s == pytest.approx(one.sum_s)


def test_counting_many_agrees_in_the_middle_of_every_bucket():
    middles = [math.sqrt(low * high) for low, high in itertools.pairwise(EDGES_S)]
    many = Histogram()
    many.observe_many(np.array(middles))
    assert many.sparse().buckets == filled(middles).sparse().buckets
