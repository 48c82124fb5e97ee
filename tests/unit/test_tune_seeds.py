"""Which settings there are, and which are picked for a load test."""

import pytest
from msgspec.structs import replace

from hybrid.load.bottleneck import BatchTime
from hybrid.planner.measures import Setting
from hybrid.tune.seeds import Bounds, default_setting, pick, probes, rank, shape_of, shapes, space
from hybrid.tune.values import Terms

TWO = Bounds(("one", "two"), 2)
#: Seconds of 1 and of 8 rows: engine `two` is the faster one, workers of one thread beat one worker of two.
TIMES = {
    ("one", 1, 2): [BatchTime(1, 0.008), BatchTime(8, 0.044)],
    ("one", 2, 1): [BatchTime(1, 0.012), BatchTime(8, 0.074)],
    ("one", 1, 1): [BatchTime(1, 0.010), BatchTime(8, 0.066)],
    ("two", 1, 2): [BatchTime(1, 0.006), BatchTime(8, 0.034)],
    ("two", 2, 1): [BatchTime(1, 0.009), BatchTime(8, 0.052)],
}
SLO = Terms(slo_s=0.2)


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        (1, {(1, 1)}),
        (2, {(1, 2), (2, 1), (1, 1)}),
        (3, {(1, 3), (3, 1), (2, 1)}),
        (4, {(1, 4), (2, 2), (4, 1), (3, 1)}),
    ],
)
def test_shapes_share_out_all_cpus_or_leave_one_idle(cpus, expected):
    found = shapes(Bounds(("one",), cpus))
    assert {shape[1:] for shape in found} == expected
    assert len(found) == len(expected)


def test_a_device_has_instances_and_no_cpus():
    bounds = Bounds(("torch",), 64, largest=100, device="cuda", own_device=True, instances=2)
    assert {shape[1:] for shape in shapes(bounds)} == {(1, 1), (2, 1)}
    assert bounds.batches == (1, 4, 8, 16, 32, 64, 100)
    assert all(setting.device == "cuda" for setting in space(bounds, 0.01))


def test_the_space_is_every_combination_once():
    settings = space(TWO, 0.008)
    assert len(settings) == len(set(settings)) == 2 * 3 * (6 + 5)
    assert {s.max_wait_ms for s in settings} == {0.0, 4.0}
    assert not [s for s in settings if s.max_batch == 1 and s.max_wait_ms]
    assert len(space(Bounds(("one",), 1, largest=1), 0.008)) == 1
    assert {s.max_wait_ms for s in space(TWO, 0.0001)} == {0.0}  # nobody waits for less than the timer's grain


def test_probes_load_every_worker_with_one_row_and_with_a_few():
    found = probes(TWO, 1.5)
    assert {shape_of(setting) for setting, _ in found} == set(shapes(TWO))
    assert all(load.clients == setting.instances and load.rows <= setting.max_batch for setting, load in found)
    assert {load.rows for _, load in found} == {1, 8}
    assert {load.rows for _, load in probes(Bounds(("one",), 2, largest=1), 1.5)} == {1}


def test_the_prediction_knows_what_pays():
    best = rank(space(TWO, 0.006), TIMES, SLO)[0].setting
    assert (best.engine, best.instances, best.threads) == ("two", 2, 1)
    worst = rank(space(TWO, 0.006), TIMES, SLO)[-1].setting
    assert (worst.engine, worst.max_batch) == ("one", 1)
    assert rank(space(TWO, 0.006), TIMES, Terms(slo_s=0.012))[0].predicted_rps < 40  # a queue of one is too long
    assert rank(space(TWO, 0.006), {}, SLO) == []


def test_of_equal_predictions_the_simplest_comes_first():
    flat = {("one", 1, 1): [BatchTime(1, 0.01), BatchTime(8, 0.08)]}  # a batch saves nothing
    ranked = rank(space(Bounds(("one",), 1), 0.01), flat, Terms("throughput"))
    assert ranked[0].setting == Setting("one", 1, 1, 1)


def test_one_of_each_shape_and_the_default_and_one_that_waits_are_picked():
    default = default_setting(TWO)
    assert default == Setting("one", 1, 2, 8)
    ranked = rank(space(TWO, 0.006), TIMES, SLO)
    picked = [c.setting for c in pick(ranked, default)]
    assert len(picked) == len(set(picked)) == 10
    assert default in picked
    assert {shape_of(s) for s in picked} == TIMES.keys()
    assert sum(s.max_wait_ms > 0 for s in picked) == 1
    assert ranked[0].setting in picked
    assert picked == sorted(picked)  # a shape at a time: other batches of it cost no start of workers


def test_the_best_is_tested_beside_the_next_smaller_batch():
    ranked = rank(space(TWO, 0.006), TIMES, SLO)
    first = next(c.setting for c in ranked if not c.setting.max_wait_ms)
    smaller = max(batch for batch in TWO.batches if batch < first.max_batch)
    alone = [c for c in ranked if c.setting == first or shape_of(c.setting) != shape_of(first)]
    beside = [*alone, *(c for c in ranked if c not in alone)]  # all others of its shape have the lowest ranks
    for order in (ranked, beside):
        assert replace(first, max_batch=smaller) in [c.setting for c in pick(order, default_setting(TWO), 8)]
    assert pick(alone, default_setting(TWO), 8)  # none that is smaller is no fault


def test_few_are_the_default_and_the_best_prediction():
    ranked = rank(space(TWO, 0.006), TIMES, SLO)
    assert {c.setting for c in pick(ranked, default_setting(TWO), 2)} >= {default_setting(TWO)}
    assert len(pick(ranked, default_setting(TWO), 2)) == 2
    assert pick([], default_setting(TWO))[0].setting == default_setting(TWO)
