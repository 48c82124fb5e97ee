"""Waiting and running behind one queue, against a simulation that shares no code with it."""

import heapq
import random

import numpy as np
import pytest

from hybrid.planner.queueing import (
    STABLE_SHARE,
    Floats,
    Server,
    goodput_rps,
    mean_latency_s,
    replay,
    rough_goodput_rps,
    rough_goodputs_rps,
)


def line(fixed_ms: float, row_ms: float, max_batch: int) -> Floats:
    return (fixed_ms + row_ms * np.arange(1, max_batch + 1)) / 1000.0


def simulate(batch_s: Floats, instances: int, rate: float, rows: int, seed: int = 1) -> Floats:
    """Events one by one: whoever is free first takes what waits."""
    chance, at = random.Random(seed), 0.0
    arrivals = [at := at + chance.expovariate(rate) for _ in range(rows)]
    free, head, latencies = [0.0] * instances, 0, []
    while head < rows:
        start = max(heapq.heappop(free), arrivals[head])
        end = head + 1
        while end < rows and end - head < len(batch_s) and arrivals[end] <= start:
            end += 1
        done = start + float(batch_s[end - head - 1])
        latencies += [done - arrival for arrival in arrivals[head:end]]
        heapq.heappush(free, done)
        head = end
    return np.array(latencies[rows // 10 :])


@pytest.mark.parametrize("load", [0.2, 0.5, 0.7])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(5.0, 1.05), (1.0, 4.0), (20.0, 0.5)])
def test_the_closed_form_gives_the_mean_on_one_worker(fixed_ms: float, row_ms: float, load: float) -> None:
    rate = load * 1000.0 / row_ms
    found = simulate(line(fixed_ms, row_ms, 400), 1, rate, 100_000).mean()
    assert mean_latency_s(rate, fixed_ms / 1000, row_ms / 1000) == pytest.approx(found, rel=0.03)


def test_the_closed_form_at_its_ends() -> None:
    assert mean_latency_s(0.0, 0.005, 0.001) == pytest.approx(0.006)
    assert mean_latency_s(1000.0, 0.005, 0.001) == float("inf")


@pytest.mark.parametrize("load", [0.3, 0.7])
@pytest.mark.parametrize(("instances", "max_batch"), [(1, 64), (2, 8), (8, 8), (1, 1), (3, 1)])
@pytest.mark.parametrize(("fixed_ms", "row_ms"), [(5.0, 1.05), (1.0, 4.0)])
def test_the_replay_gives_mean_and_tail(
    fixed_ms: float, row_ms: float, instances: int, max_batch: int, load: float
) -> None:
    server = Server(line(fixed_ms, row_ms, max_batch), instances)
    rate = load * server.capacity_rps
    truth = simulate(server.batch_s, instances, rate, 40_000)
    found = replay([server], np.array([rate]))
    assert found.mean_s[0] == pytest.approx(truth.mean(), rel=0.03)
    assert found.p50_s[0] == pytest.approx(np.quantile(truth, 0.5), rel=0.05)
    assert found.tail_s[0] == pytest.approx(np.quantile(truth, 0.99), rel=0.10)


@pytest.mark.parametrize(("fixed_ms", "row_ms", "instances", "slo_ms"), [(5, 1.05, 2, 25), (1, 4, 1, 100)])
def test_goodput_is_the_rate_whose_tail_is_the_objective(
    fixed_ms: float, row_ms: float, instances: int, slo_ms: float
) -> None:
    server = Server(line(fixed_ms, row_ms, 8), instances)
    (rate,) = goodput_rps([server], slo_ms / 1000)
    tail = np.quantile(simulate(server.batch_s, instances, float(rate), 60_000), 0.99)
    assert tail == pytest.approx(slo_ms / 1000, rel=0.10)


def test_goodput_at_its_ends() -> None:
    server = Server(line(5, 1, 8))
    slow, loose = goodput_rps([server, server], 0.005)[0], goodput_rps([server], 10.0)[0]
    assert slow == 0.0
    assert loose == pytest.approx(STABLE_SHARE * server.capacity_rps)


@pytest.mark.slow
def test_servers_side_by_side_do_not_change_each_other() -> None:
    servers = [Server(line(5, 1, 8)), Server(line(1, 4, 3), 5), Server(line(2, 2, 64), 2, max_wait_s=0.003)]
    together = goodput_rps(servers, 0.05)
    assert together.tolist() == [goodput_rps([server], 0.05)[0] for server in servers]


def test_a_wait_delays_a_lone_row_by_itself() -> None:
    servers = [Server(line(5, 1, 8)), Server(line(5, 1, 8), max_wait_s=0.002)]
    at_once, later = replay(servers, np.array([0.5, 0.5])).p50_s
    assert later - at_once == pytest.approx(0.002, rel=0.01)


@pytest.mark.slow
def test_the_rough_estimate_is_near() -> None:
    servers = [Server(line(c, a, b), n) for c, a in ((5, 1), (1, 4)) for b in (4, 16) for n in (1, 4)]
    ratios = [rough_goodput_rps(one, 0.06) / goodput_rps([one], 0.06)[0] for one in servers]
    assert all(0.7 < ratio < 1.7 for ratio in ratios), ratios


def test_the_sample_is_always_the_same() -> None:
    server = Server(line(5, 1, 8))
    rate = np.array([100.0])
    first, again, second = (float(replay([server], rate, samples=(one,)).tail_s[0]) for one in (0, 0, 1))
    assert first == again != second
    assert min(first, second) <= replay([server], rate, samples=(0, 1)).tail_s[0] <= max(first, second)


def test_rough_estimates_of_several_largest_batches_are_those_of_each() -> None:
    curve, sizes = line(5, 1, 64), [1, 3, 16, 64]
    together = rough_goodputs_rps(Server(curve, 3), sizes, 0.04)
    assert together.tolist() == [rough_goodput_rps(Server(curve[:size], 3), 0.04) for size in sizes]
