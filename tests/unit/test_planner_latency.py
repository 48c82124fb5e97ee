"""The model of batch times."""

import numpy as np
import pytest

from hybrid.planner.latency import fit, turning_point
from hybrid.planner.measures import Probe, Timing


def law(instances: int, threads: int, rows: int, cpus: int = 8) -> float:
    """A device like that of the model, with constants of its own."""
    busy = (instances - 1) * threads / (cpus - 1)
    return (0.002 * (0.5 + 0.5 / threads) + 0.004 * rows * (0.05 + 0.95 / threads)) * (1 + 0.6 * busy**1.3)


def times(*places: tuple[int, int, int], noise: float = 0.0) -> list[Timing]:
    chance = np.random.default_rng(3)
    return [Timing(Probe("e", *place), law(*place) * float(np.exp(noise * chance.normal()))) for place in places]


CORNERS = ((1, 1, 1), (1, 1, 8), (1, 8, 1), (1, 8, 8), (1, 8, 32), (8, 1, 1), (8, 1, 8), (8, 1, 32), (2, 4, 8))
OTHERS = [(4, 2, 4), (2, 2, 16), (4, 1, 12), (1, 4, 2), (8, 1, 16), (2, 3, 32)]


def worst(timings: list[Timing]) -> float:
    model = fit(timings, 8)
    return max(abs(float(np.log(model.seconds(*place) / law(*place)))) for place in OTHERS)


def test_nine_times_tell_all_others() -> None:
    assert worst(times(*CORNERS)) < 0.12


def test_with_noise_it_is_off_by_little_more_than_the_noise() -> None:
    assert worst(times(*CORNERS, noise=0.05)) < 0.2


def test_more_times_make_it_better() -> None:
    few = fit(times(*CORNERS), 8)
    more = fit([*times(*CORNERS), *times(*OTHERS)], 8)
    errors = [[abs(np.log(model.seconds(*one) / law(*one))) for one in OTHERS] for model in (few, more)]
    assert max(errors[1]) < 0.5 * max(errors[0])


def test_one_time_is_enough_for_something_sensible() -> None:
    model = fit(times((1, 1, 1)), 8)
    assert model.seconds(1, 1, 1) == pytest.approx(law(1, 1, 1), rel=0.05)
    assert 1.5 < model.seconds(1, 1, 8) / model.seconds(1, 1, 1) < 8.5
    assert 0.1 < model.seconds(1, 8, 8) / model.seconds(1, 1, 8) < 1.0
    assert model.seconds(8, 1, 1) > model.seconds(1, 1, 1)


def test_a_measured_time_pulls_the_model_to_it() -> None:
    odd = Timing(Probe("e", 4, 2, 8), 1.5 * law(4, 2, 8))
    before, after = fit(times(*CORNERS), 8), fit([*times(*CORNERS), odd], 8)
    assert before.seconds(4, 2, 8) == pytest.approx(law(4, 2, 8), rel=0.15)
    assert after.seconds(4, 2, 8) == pytest.approx(1.5 * law(4, 2, 8), rel=0.15)
    assert after.seconds(8, 1, 1) == pytest.approx(law(8, 1, 1), rel=0.1)


def test_doubt_grows_with_the_distance_to_what_was_measured() -> None:
    model = fit(times(*CORNERS), 8)
    at, near, far = model.doubts(np.array([8.0, 7, 4]), np.array([1.0, 1, 2]), np.array([8.0, 8, 128]))
    assert at < near < far


def test_a_curve_never_falls_and_meets_its_times() -> None:
    measured = [*times((1, 1, 1), (1, 1, 8)), Timing(Probe("e", 1, 1, 4), 0.9 * law(1, 1, 1))]
    model = fit(measured, 8)
    curve = model.curve(1, 1, 64)
    assert len(curve) == 64
    assert (np.diff(curve) >= 0).all()
    assert curve[0] == pytest.approx(model.seconds(1, 1, 1))


def test_constants_are_found() -> None:
    model = fit(times(*CORNERS), 8)
    assert model.fixed_s + model.per_row_s == pytest.approx(0.006, rel=0.1)
    assert model.per_row_s == pytest.approx(0.004, rel=0.1)
    assert model.slow_down == pytest.approx(1.6, rel=0.1)


def test_failures_are_left_out_and_nothing_is_refused() -> None:
    failed = Timing(Probe("e", 1, 1, 64), float("inf"), failure="out of memory")
    assert fit([*times((1, 1, 1)), failed], 8).timings == tuple(times((1, 1, 1)))
    with pytest.raises(ValueError, match="at least one"):
        fit([failed], 8)


def test_the_turning_point() -> None:
    rows = (1, 2, 4, 8, 16, 32, 64)
    assert turning_point(rows, [max(2.0, 0.25 * b) for b in rows]) == pytest.approx(8, rel=0.25)
    assert turning_point(rows, [1.0 + b for b in rows]) is None
    assert turning_point((1, 2, 4), (1.0, 2.0, 3.0)) is None


def test_workers_that_were_never_timed_are_in_more_doubt_than_other_batches_of_timed_ones() -> None:
    model = fit([*times(*CORNERS), *times((4, 2, 4), (4, 2, 16))], 8)
    timed, near = model.doubts(np.array([4.0, 3.0]), np.array([2.0, 2.0]), np.array([8.0, 8.0]))
    assert near > 1.5 * timed


def test_reading_the_weights_makes_small_batches_cost_the_same() -> None:
    places = [Probe("e", i, 1, b) for i in (1, 8) for b in (1, 2, 4, 16, 64)]
    model = fit([Timing(one, max(0.02, 0.002 * one.rows)) for one in places], 8)
    assert model.seconds(1, 1, 3) == pytest.approx(0.02, rel=0.1)
    assert model.seconds(1, 1, 32) == pytest.approx(0.064, rel=0.1)


def test_curves_side_by_side_are_those_of_each() -> None:
    model = fit(times(*CORNERS), 8)
    first, second = model.curves([(1, 8), (4, 2)], 48)
    assert first.tolist() == model.curve(1, 8, 48).tolist()
    assert second.tolist() == model.curve(4, 2, 48).tolist()
