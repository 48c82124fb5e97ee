"""A plan beside models that go on by plans of their own."""

import pytest
from msgspec.structs import replace

from hybrid.planner.types import Plan
from hybrid.serving.beside import beside

REASONS = {"instances": "One per CPU.", "cores": "Pinned."}


def plan(model: str = "m", cores: tuple[tuple[int, ...], ...] = ((0,), (1,)), instances: int = 2) -> Plan:
    return Plan(
        model=model,
        device="cpu",
        engine="onnxruntime",
        instances=instances,
        threads_per_instance=1,
        max_batch=8,
        max_wait_ms=0.0,
        early_trigger=8,
        batching="dynamic",
        queue_rows=512,
        queue_bytes=1 << 20,
        preprocess_processes=0,
        cores=cores,
        reasons=REASONS,
    )


def test_alone_or_beside_others_that_would_be_planned_the_same_it_stays_as_it_is() -> None:
    other = plan("other", ((2,), (3,)))
    assert beside(plan(), [], []) == plan()
    assert beside(plan(), [other], [replace(other, reasons={})]) == plan()


def test_beside_one_that_has_more_than_its_share_it_says_so_and_is_not_pinned() -> None:
    running = plan("other", ((0,), (1,), (2,), (3,)), instances=4)
    made = beside(plan(), [running], [plan("other", ((2,), (3,)))])
    assert made.reasons["instances"].startswith("One per CPU. Planned beside other, as if planned anew too")
    assert made.cores == ((), ())
    assert made.reasons["cores"].startswith("Not pinned: ")
    assert made.instances == 2
    assert REASONS["cores"] == "Pinned."


def test_beside_one_with_other_cores_it_is_pinned() -> None:
    running = plan("other", ((2,),), instances=1)
    made = beside(plan(), [running], [plan("other", ((2,), (3,)))])
    assert made.cores == ((0,), (1,))
    assert "Planned beside other" in made.reasons["instances"]


def test_plans_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        beside(plan(), [plan("other")], [])
