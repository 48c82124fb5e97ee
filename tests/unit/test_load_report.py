"""Results: what is counted where, and merging."""

import io
import json

import pytest
from rich.console import Console

from hybrid.load.report import LoadResult, StatusCount, as_json, merge, print_table
from hybrid.load.tally import Tally


def tally(latencies, *, end_s=10.0, slo_s=0.1, lags=()):
    counts = Tally(end_s, slo_s, closed=False)
    counts.offered_n = len(latencies)
    for index, seconds in enumerate(latencies):
        counts.answered(200, "", float(index) / 100, float(index) / 100 + seconds)
    for late_s in lags:
        counts.lag(late_s)
    return counts


def test_goodput_counts_answers_inside_the_objective():
    result = tally([0.05] * 90 + [0.2] * 10).result(10.0, 0.002, 0.0)
    assert result.rps == 10.0
    assert result.goodput_rps == 9.0
    assert result.attainment == 0.9
    assert LoadResult(mode="open", seconds=1.0).attainment is None


def test_answers_after_the_window_are_no_throughput():
    counts = tally([0.05], end_s=0.01)
    assert counts.result(10.0, 0.002, 0.0).in_window_n == 0
    assert counts.result(10.0, 0.002, 0.0).ok_n == 1


@pytest.mark.parametrize(("closed", "count"), [(True, 1), (False, 0)])
def test_in_a_closed_loop_answers_count_when_they_come(closed, count):
    counts = Tally(10.0, None, closed=closed)
    counts.came_in_window(200, 9.0)
    counts.came_in_window(200, 10.1)
    counts.came_in_window(503, 9.0)
    result = counts.result(10.0, 0.002, 0.0)
    assert result.in_window_n == count
    assert (result.ok_n, result.errors_n, result.latency.count) == (0, 0, 0)  # of what was offered in the window


def test_refusals_have_no_latency_and_timeouts_have_the_limit():
    counts = tally([0.05] * 98)
    counts.offered_n += 3
    counts.answered(429, "full", 0.0, 0.001)
    counts.timed_out(5.0)
    counts.broken("gone")
    result = counts.result(10.0, 0.002, 0.0)
    assert result.latency.count == 99
    assert result.latency_max_s == 5.0
    assert result.errors_n == 3
    assert result.first_error == "429 full"
    assert result.statuses == (StatusCount(200, 98), StatusCount(429, 1))


def test_a_run_is_void_when_one_send_in_a_hundred_was_late():
    assert not tally([0.01], lags=[0.0005] * 995 + [0.1] * 5).result(1.0, 0.002, 0.0).void
    assert tally([0.01], lags=[0.0005] * 985 + [0.1] * 15).result(1.0, 0.002, 0.0).void
    assert not tally([0.01], lags=[0.0005] * 985 + [0.1] * 15).result(1.0, 0.2, 0.0).void


def test_merging_gives_the_percentile_of_all_and_no_mean_of_percentiles():
    fast = tally([0.001] * 990).result(10.0, 0.002, 0.1)
    slow = tally([0.5] * 10, lags=[0.01]).result(10.0, 0.002, 0.2)
    both = merge([fast, slow])
    assert both.latency_at(0.98) == pytest.approx(0.001, rel=0.03)
    assert both.latency_at(0.995) == pytest.approx(0.5, rel=0.03)
    assert (both.ok_n, both.offered_n, both.processes_n) == (1000, 1000, 2)
    assert both.lag_max_s == 0.01
    assert both.cpu_s == pytest.approx(0.3)


@pytest.mark.parametrize(("late_n", "holds"), [(1, True), (2, False)])
@pytest.mark.parametrize("slo_s", [0.080, 0.082])  # of one bucket, whose middle is 80.69 ms
def test_a_percentile_is_on_the_side_of_the_objective_that_the_counted_answers_are_on(slo_s, late_n, holds):
    seconds = [slo_s - 0.0001] * (100 - late_n) + [slo_s + 0.0001] * late_n
    result = tally(seconds, slo_s=slo_s).result(10.0, 0.002, 0.0)
    assert (result.latency_at(0.99) <= slo_s) is holds
    assert (as_json(result)["p99_ms"] <= 1000 * slo_s) is holds
    assert result.latency_at(0.99) == pytest.approx(slo_s, rel=0.022)


def test_results_of_different_runs_are_not_merged():
    with pytest.raises(ValueError, match="same mode"):
        merge([LoadResult(mode="open", seconds=1.0), LoadResult(mode="open", seconds=2.0)])
    with pytest.raises(ValueError, match="one or more"):
        merge([])


def test_a_result_is_json_and_a_table():
    result = tally([0.02] * 100, lags=[0.05] * 100).result(10.0, 0.002, 0.0)
    found = json.loads(json.dumps(as_json(result)))
    assert found["p50_ms"] == pytest.approx(20, rel=0.03)
    assert found["void"] is True
    assert found["statuses"] == {"200": 100}
    text = io.StringIO()
    print_table([("poisson", result)], Console(file=text, width=120))
    assert "(void)" in text.getvalue()
    assert "poisson" in text.getvalue()
