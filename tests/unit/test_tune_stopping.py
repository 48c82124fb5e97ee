"""The early-stopping rule: its published values, and its promise against exact binomial sums."""

import math

import pytest

from hybrid.tune.stopping import beta, hopeless, judge, needed


@pytest.mark.parametrize(
    ("quantile", "late", "n"),
    [
        *((0.99, late, n) for late, n in ((0, 459), (1, 662), (2, 838), (5, 1307), (10, 2010), (20, 3304), (50, 6898))),
        *((0.95, late, n) for late, n in ((0, 90), (1, 130), (2, 165), (5, 259), (10, 398), (20, 656))),
        (0.999, 0, 4603),
    ],
)
def test_as_many_are_needed_as_mlperf_says(quantile, late, n):
    assert needed(late, quantile) == n
    assert judge(n, late, quantile) == "pass"
    assert judge(n - 1, late, quantile) == "undecided"


def at_least(n, k, p):
    """The chance of k or more of n, each with p, term by term."""
    return sum(math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k, n + 1))


@pytest.mark.parametrize("n", [1, 2, 40, 500])
def test_the_beta_function_is_a_binomial_sum(n):
    for k in {1, n // 3 + 1, n}:
        for p in (0.01, 0.3, 0.99):
            assert beta(k, n - k + 1, p) == pytest.approx(at_least(n, k, p), rel=1e-9, abs=1e-15)
    assert (beta(2, 3, 0.0), beta(2, 3, 1.0)) == (0.0, 1.0)


@pytest.mark.parametrize("n", [100, 500, 900])
def test_a_run_may_end_where_chance_alone_explains_it_no_more(n):
    late = hopeless(n)
    assert at_least(n, late, 0.01) <= 0.01 < at_least(n, late - 1, 0.01)
    assert judge(n, late) == "fail"
    assert judge(n, late - 1) != "fail"
    assert judge(late, late) == "fail"  # nor could those that were not sent any more have saved it


def test_between_both_nothing_is_known():
    assert judge(1000, 10) == "undecided"
    assert judge(0, 0) == "undecided"


@pytest.mark.parametrize(("n", "late", "quantile"), [(10, 11, 0.99), (10, -1, 0.99), (10, 1, 1.0), (10, 1, 0.0)])
def test_nonsense_is_refused(n, late, quantile):
    with pytest.raises(ValueError, match="expected"):
        judge(n, late, quantile)
