"""Send times: their statistics, their seeds, their split over generators, and traces."""

import itertools
import statistics

import pytest

from hybrid.errors import ConfigError
from hybrid.load.arrivals import Bursts, Constant, Poisson, Sending, Trace, mean_rate_rps, read_trace, sendings


def times(arrivals, seconds, **split):
    return [sending.t_s for sending in sendings(arrivals, seconds, **split)]


def gaps(arrivals, seconds):
    found = times(arrivals, seconds)
    return [after - before for before, after in itertools.pairwise(found)]


def test_poisson_has_the_rate_and_exponential_gaps():
    found = gaps(Poisson(500.0, seed=7), 40.0)
    assert len(found) == pytest.approx(20_000, rel=0.03)
    assert statistics.mean(found) == pytest.approx(1 / 500, rel=0.03)
    assert statistics.stdev(found) == pytest.approx(1 / 500, rel=0.05)  # an exponential's deviation is its mean
    assert statistics.median(found) == pytest.approx(0.6931 / 500, rel=0.05)


def test_a_seed_gives_the_same_times_and_another_gives_others():
    assert times(Poisson(100.0, seed=1), 2.0) == times(Poisson(100.0, seed=1), 2.0)
    assert times(Poisson(100.0, seed=1), 2.0) != times(Poisson(100.0, seed=2), 2.0)


def test_constant_does_not_drift():
    found = times(Constant(3.0), 1000.0)
    assert len(found) == 3000
    assert found[2999] == 2999 / 3.0


def test_bursts_come_together_and_keep_the_mean_rate():
    found = times(Bursts(200.0, burst=20, seed=3), 100.0)
    assert len(found) == pytest.approx(20_000, rel=0.1)
    assert all(len(set(found[i : i + 20])) == 1 for i in range(0, len(found) - 20, 20))


@pytest.mark.parametrize("arrivals", [Poisson(50.0, seed=5), Constant(50.0), Bursts(50.0, 7, seed=5)])
def test_generators_together_send_what_one_would(arrivals):
    parts = [times(arrivals, 5.0, part=part, parts=3) for part in range(3)]
    assert sorted(t for part in parts for t in part) == times(arrivals, 5.0)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_a_trace_is_played_at_its_speed_and_ends():
    trace = read_trace(iter([b'{"t_s": 0}', b"", b'{"t_s": 0.5, "size": 12}', b'{"t_s": 2, "more": 1}']))
    assert trace.points == (Sending(0.0), Sending(0.5, 12), Sending(2.0))
    assert list(sendings(Trace(trace.points, speed=2.0), 9.0)) == [Sending(0.0), Sending(0.25, 12), Sending(1.0)]
    assert list(sendings(trace, 1.0)) == [Sending(0.0), Sending(0.5, 12)]
    assert mean_rate_rps(trace) == 1.5


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([b'{"t_s": 1}', b'{"t_s": 0.5}'], "line 2: t_s is 0.5 after 1"),
        ([b'{"t_s": -1}'], "line 1: expected"),
        ([b'{"at": 1}'], "line 1: expected"),
        ([b"no json"], "line 1: expected"),
        ([b""], "no arrivals"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(lines, words):
    with pytest.raises(ConfigError, match=words):
        read_trace(iter(lines))
