"""Size classes from live traffic: when edges are looked for, when they are taken, and that nothing grows."""

import random

import pytest

from hybrid.batching.classes import BatchCost, Mix
from hybrid.serving.learner import SizeLearner

MIX = Mix(max_batch=8, waiting=32)
COST = BatchCost(fixed_s=0.002, per_unit_s=0.00025)


def fed(*sizes: int, requests: int, max_classes: int = 4) -> SizeLearner:
    learner = SizeLearner(max_classes, 0.0)
    feed(learner, *sizes, requests=requests)
    return learner


def feed(learner: SizeLearner, *sizes: int, requests: int) -> None:
    for number in range(requests):
        learner.note((sizes[number % len(sizes)],))


@pytest.mark.parametrize(
    ("requests", "seconds", "due"),
    [(1999, 1.0, False), (2000, 1.0, True), (192, 61.0, False), (256, 61.0, True), (256, 59.0, False)],
)
def test_after_many_requests_or_some_time(requests, seconds, due):
    assert fed(10, requests=requests).due(seconds) == due


def test_edges_follow_the_traffic():
    learner = fed(10, 12, 100, requests=2000)
    learned = learner.look((), COST, MIX, 1.0)
    assert learned is not None
    assert (learned.edges, learned.requests) == ((16, 104), 2000)
    assert 0.5 < learned.gain < 0.7
    assert not learner.due(1.0)
    feed(learner, 10, 12, 100, requests=2000)
    assert learner.look(learned.edges, COST, MIX, 2.0) is None, "nothing changed"
    for _ in range(8):  # what came before fades
        feed(learner, 250, 30, requests=2000)
        again = learner.look(learned.edges, COST, MIX, 3.0)
        learned = again or learned
    assert {32, 256} <= set(learned.edges)


def test_a_small_gain_changes_nothing():
    learner = fed(*range(1, 101), requests=2000, max_classes=8)
    learned = learner.look((), COST, MIX, 1.0)
    assert learned is not None
    feed(learner, *range(1, 101), requests=2000)
    moved = (*learned.edges[:-2], learned.edges[-2] - 8, learned.edges[-1])
    assert learner.look(moved, COST, MIX, 2.0) is None


def test_cost_of_a_batch_may_be_unknown():
    learned = fed(10, 100, requests=2000).look((), None, MIX, 1.0)
    assert learned is not None
    assert learned.edges[-1] == 104


def test_bins_and_edges_are_few_for_any_sizes():
    rng = random.Random(3)
    learner = SizeLearner(8, 0.0)
    edges: tuple[int, ...] = ()
    names = set()
    for round_ in range(50):
        for _ in range(2000):
            learner.note((min(10**6, int(rng.lognormvariate(3 + round_ / 5, 1.0))),))
        learned = learner.look(edges, COST, MIX, float(round_))
        edges = learned.edges if learned is not None else edges
        names |= set(edges)
        assert len(learner._counts) <= 65
        assert len(edges) <= 8
    assert len(names) <= 64 * 6
    assert SizeLearner(8, 0.0).look((), COST, MIX, 1.0) is None
    assert fed(0, requests=2000).look((), COST, MIX, 1.0) is None
