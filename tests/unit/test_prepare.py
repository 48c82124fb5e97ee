"""From settings to plans: what a plan says of where its numbers come from."""

import pytest

from hybrid.config import ModelSettings
from hybrid.planner.measures import EngineProfile, ModelProfile, Probe, Timing
from hybrid.planner.prepare import plan_here
from hybrid.planner.profiles import NONE

MODEL = ModelSettings(name="m")
FAILED = Timing(Probe("onnxruntime", 1, 1, 1), float("inf"), failure="killed")
TIMED = tuple(Timing(Probe("onnxruntime", 1, 1, rows), 0.001 * rows) for rows in (1, 8))


@pytest.mark.parametrize("timings", [None, (), (FAILED,)])
def test_a_plan_without_times_says_that_rules_made_it(timings: tuple[Timing, ...] | None) -> None:
    engines = () if timings is None else (EngineProfile("onnxruntime", "1", timings=timings),)
    known = {} if timings is None else {("m", "1"): ModelProfile("m", "", "", 0, engines)}
    for measure in (None, lambda *_: known):  # `--measure never`, and one that knows nothing of use
        (made,) = plan_here([MODEL], NONE, measure=measure).plans
        assert made.reasons["device"].endswith("Not measured: the numbers come from rules.")


def test_a_plan_by_times_does_not() -> None:
    known = {("m", "1"): ModelProfile("m", "", "", 0, (EngineProfile("onnxruntime", "1", timings=TIMED),))}
    (made,) = plan_here([MODEL], NONE, measure=lambda *_: known).plans
    assert "Not measured" not in made.reasons["device"]
