"""Size classes: names, and learned edges against every other choice of edges."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.batching.classes import BatchCost, Mix, class_of, expected_cost, grid_step, learn_edges

MIX = Mix(max_batch=8, waiting=32)


@pytest.mark.parametrize(
    ("size", "name"), [(1, "16"), (16, "16"), (17, "32"), (32, "32"), (33, "32+"), (500, "32+"), (0, "16")]
)
def test_names(size, name):
    assert class_of((16, 32), size) == name
    assert class_of((), size) == "all"


@pytest.mark.parametrize(("largest", "step"), [(1, 8), (512, 8), (513, 16), (1024, 16), (224 * 224, 1024)])
def test_the_grid_has_64_points_at_most(largest, step):
    assert grid_step(largest) == step
    assert -(-largest // step) <= 64


@given(
    histogram=st.dictionaries(st.integers(1, 80), st.integers(1, 50), min_size=1, max_size=12),
    max_classes=st.integers(1, 5),
    fixed=st.floats(0.0, 200.0),
    waiting=st.integers(1, 100),
)
@settings(max_examples=150, deadline=None)
def test_no_other_edges_are_cheaper(histogram, max_classes, fixed, waiting):
    cost, mix = BatchCost(fixed_s=fixed, per_unit_s=1.0), Mix(max_batch=8, waiting=waiting)
    edges = learn_edges(histogram, max_classes=max_classes, cost=cost, mix=mix)
    grid = sorted({-(-size // 8) * 8 for size in histogram})
    others = [
        (*inner, grid[-1]) for count in range(min(max_classes, len(grid))) for inner in combinations(grid[:-1], count)
    ]
    best = min(expected_cost(histogram, other, cost=cost, mix=mix) for other in others)
    assert edges in others
    assert expected_cost(histogram, edges, cost=cost, mix=mix) == pytest.approx(best, rel=1e-9)


def test_two_kinds_of_text_get_two_classes():
    histogram = dict.fromkeys(range(8, 17), 100) | dict.fromkeys(range(180, 190), 30)
    assert learn_edges(histogram, max_classes=2, cost=BatchCost(5.0, 1.0), mix=MIX) == (16, 192)


def test_no_class_that_costs_more_than_it_saves():
    """A device that takes as long for any length gains nothing from classes, and pays for emptier batches."""
    histogram = dict.fromkeys(range(1, 257), 10)
    assert learn_edges(histogram, max_classes=8, cost=BatchCost(5.0, 0.0), mix=MIX) == (256,)
    assert learn_edges(histogram, max_classes=8, cost=BatchCost(1e6, 1.0), mix=Mix(8, 8)) == (256,)
    assert len(learn_edges(histogram, max_classes=8, cost=BatchCost(0.0, 1.0), mix=MIX)) == 8


def test_sizes_above_the_last_edge_cost_what_the_largest_of_them_does():
    cost = BatchCost(0.0, 1.0)
    assert expected_cost({8: 1, 24: 1}, (8,), cost=cost, mix=MIX) == pytest.approx(16.0)
    assert expected_cost({8: 1, 24: 1}, (), cost=cost, mix=MIX) == pytest.approx(24.0)


def test_nothing_to_learn_from():
    with pytest.raises(ValueError, match="needs sizes"):
        learn_edges({}, max_classes=2, cost=BatchCost(1.0, 1.0), mix=MIX)
    with pytest.raises(ValueError, match="at least one class"):
        learn_edges({8: 1}, max_classes=0, cost=BatchCost(1.0, 1.0), mix=MIX)
