"""What disqualifies a setting."""

import pytest

from hybrid.planner.measures import Setting
from hybrid.tune.rules import disqualified, exploded, not_worth_it
from hybrid.tune.values import Seen


def batch(rows, wait_ms=0.0, threads=1):
    return Setting("one", 1, threads, rows, wait_ms)


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (Seen(rps=5.0, offered_n=10), ""),
        (Seen(rps=5.0), ""),  # all that was answered had been sent before the window
        (Seen(rps=5.0, offered_n=10, late_n=10), ""),  # late ones are for the objective to judge
        (Seen(offered_n=10, errors_n=2, first_error="429 full"), "2 of 10 requests failed: 429 full"),
        (Seen(failure="no memory"), "cannot run: no memory"),
        (Seen(), "no answer within the window; raise --seconds-per-trial"),
        (Seen(offered_n=10), "no answer within the window"),
    ],
)
def test_failed_requests_disqualify(seen, words):
    assert disqualified(seen).startswith(words)
    assert bool(disqualified(seen)) == bool(words)


def test_a_median_of_ten_times_a_single_request_is_too_much():
    assert exploded(Seen(p50_s=0.1), 0.01) == ""
    assert "p50 101 ms is 10 times that of a single request (10 ms)" in exploded(Seen(p50_s=0.101), 0.01)
    assert exploded(Seen(p50_s=0.1), None) == exploded(Seen(), 0.01) == ""


def test_a_gain_under_five_percent_is_not_worth_a_larger_batch():
    out = not_worth_it({batch(1): 100.0, batch(2): 140.0, batch(4): 146.0, batch(8): 146.9, batch(16): 120.0})
    assert out.keys() == {batch(4), batch(8), batch(16)}
    assert out[batch(4)] == "batch 4 gains only 4 % over batch 2"
    assert out[batch(16)] == "batch 16 gains nothing over batch 2"


def test_many_small_gains_are_one_large_one():
    assert not_worth_it({batch(1): 100.0, batch(2): 104.0, batch(4): 108.0}).keys() == {batch(2)}


def test_waiting_must_gain_as_much_and_other_shapes_are_not_compared():
    out = not_worth_it(
        {batch(8): 100.0, batch(8, 3.0): 101.0, batch(8, threads=2): 90.0, batch(4, 3.0, threads=2): 80.0}
    )
    assert out.keys() == {batch(8, 3.0), batch(4, 3.0, threads=2)}
    assert "waiting 3 ms gains only 1 %" in out[batch(8, 3.0)]
