"""Knees of curves whose knee is known."""

import random

import pytest

from hybrid.tune.knee import find_knee, hinge, kneedle

RATES = [25, 45, 65, 80, 92, 100, 108, 120]


def hockey_stick(bend, noise=0.0, seed=1):
    chance = random.Random(seed)
    flat = [10.0 * (1.0 + 0.001 * rate) for rate in RATES]
    grown = [value * 10.0 ** (max(0.0, rate - bend) / 12.0) for value, rate in zip(flat, RATES, strict=True)]
    return [value * chance.uniform(1.0 - noise, 1.0 + noise) for value in grown]


@pytest.mark.parametrize("bend", [80, 92, 100])
def test_the_bend_of_a_hockey_stick_is_found(bend):
    knee = find_knee(RATES, hockey_stick(bend))
    assert knee is not None
    assert knee.x == pytest.approx(bend, abs=2.0)
    assert knee.y == pytest.approx(10.0, rel=0.25)


def test_noise_moves_it_little():
    for seed in range(10):
        knee = find_knee(RATES, hockey_stick(92, noise=0.1, seed=seed))
        assert knee is not None
        assert knee.x == pytest.approx(92, abs=6.0)


def test_a_queue_bends_before_its_capacity():
    curve = [5.0 / (1.0 - rate / 125.0) for rate in RATES]
    knee = find_knee(RATES, curve)
    assert knee is not None
    assert 80 <= knee.x < 120
    assert 80 <= kneedle(RATES, curve) < 120


def test_kneedle_agrees_on_a_hockey_stick():
    assert kneedle(RATES, hockey_stick(92)) == pytest.approx(100, abs=9)


@pytest.mark.parametrize("curve", [[10.0] * 8, [10.0 * 1.02**n for n in range(8)], [1.0 * rate for rate in RATES]])
def test_what_does_not_bend_has_no_knee(curve):
    assert hinge(RATES, curve) is None
    assert find_knee(RATES, curve) is None


def test_a_gentle_bend_is_no_sharp_knee():
    gentle = [10.0 * 2.0 ** (rate / 30.0) for rate in RATES]
    assert hinge(RATES, gentle) is None
    knee = find_knee(RATES, gentle)
    assert knee is not None
    assert not knee.sharp
    assert knee.x == knee.cross_check == kneedle(RATES, gentle)
    assert find_knee(RATES, hockey_stick(92)).sharp


def test_few_points_have_no_knee():
    assert find_knee([1, 2, 3, 4], [1, 1, 1, 9]) is None
    assert kneedle([1, 2], [1, 9]) is None
    assert kneedle(RATES, [10.0] * 8) is None


@pytest.mark.parametrize("rates", [[1, 2], [1, 2, 2], [3, 2, 1]])
def test_a_curve_goes_one_way(rates):
    with pytest.raises(ValueError, match="rising"):
        find_knee(rates, [1.0, 2.0, 3.0])
