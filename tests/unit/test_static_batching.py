"""Static batching: the plan that asks for it, and batches that have one shape whatever requests bring."""

from pathlib import Path

import numpy as np
import onnx_graphs as graphs
import pytest
from test_plan import machine

from hybrid.config import BatchingSettings, ModelSettings, PreprocessSettings, TextSettings
from hybrid.config_file import load_settings
from hybrid.engines.base import Arrays, EngineSettings, MemoryFacts
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
from hybrid.errors import ConfigError
from hybrid.messages import Signature, Tensor, TensorSpec
from hybrid.planner.plan import first_plan
from hybrid.planner.types import Plan, PlanOverrides
from hybrid.workers.arena import Slab, read_array
from hybrid.workers.pack import Rows, pack_batch

PAD = {"input_ids": 0}


def model(tokens: int = 0, **batching: object) -> ModelSettings:
    text = TextSettings(max_tokens=tokens) if tokens else None
    settings = BatchingSettings(**batching)  # type: ignore[arg-type]
    return ModelSettings(name="m", engine="simulated", preprocess=PreprocessSettings(text=text), batching=settings)


def plan(settings: ModelSettings, **flags: object) -> Plan:
    return first_plan(machine(4), [settings], None, PlanOverrides(**flags))[0]  # type: ignore[arg-type]


def test_the_model_or_an_option_asks_for_it():
    one = plan(model(kind="static", max_batch=6))
    assert (one.batching, one.static, one.max_batch, one.early_trigger, one.static_length) == ("static", True, 6, 6, 0)
    assert one.max_wait_ms == 10.0
    assert "exactly 6 rows." in one.reasons["batching"]
    assert plan(model(), batching="static").static
    assert not plan(model(kind="static"), batching="dynamic").static
    assert plan(model(kind="static", enabled=False)).batching == "off"
    assert plan(model(kind="static", max_wait_s=0.5)).max_wait_ms == 500.0


def test_the_length_is_the_longest_text_or_what_the_model_says():
    text = plan(model(64, kind="static", pad_inputs=PAD, size_edges=(16, 32)))
    assert (text.static_length, text.size_edges) == (64, ())
    assert "rows of length 64" in text.reasons["batching"]
    assert plan(model(64, kind="static", pad_inputs=PAD, static_length=80)).static_length == 80
    assert plan(model(kind="static", pad_inputs=PAD, static_length=80)).static_length == 80
    assert plan(model(64, pad_inputs=PAD, static_length=80)).static_length == 0


def test_a_length_that_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="static_length`: missing"):
        plan(model(kind="static", pad_inputs=PAD))
    with pytest.raises(ConfigError, match=r"expected at least `preprocess.text.max_tokens` \(64\), got 32"):
        plan(model(64, kind="static", pad_inputs=PAD, static_length=32))


def test_the_setting_is_checked():
    with pytest.raises(ConfigError, match="`kind`"):
        load_settings(BatchingSettings, {"kind": "statik"}, "x")


class Recorder:
    """An engine that takes any number of rows and notes what it was given."""

    max_rows = None
    signature = Signature((TensorSpec("x", "FP32", (-1, 2)),), (TensorSpec("y", "FP32", (-1, 2)),))

    def __init__(self) -> None:
        self.given: list[np.ndarray] = []

    def run(self, inputs: Arrays, rows: int) -> Arrays:
        assert len(inputs["x"]) == rows
        self.given.append(inputs["x"].copy())
        return {"y": inputs["x"] * 2}

    def memory(self) -> MemoryFacts:
        return MemoryFacts()

    def close(self) -> None:
        pass


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_every_batch_runs_with_the_same_number_of_rows(rows):
    engine = Recorder()
    x = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    y = Pipeline(engine, "", 4).run({"x": x}, rows)["y"]
    np.testing.assert_array_equal(y, 2 * x)
    np.testing.assert_array_equal(engine.given[0], np.concatenate([x, np.repeat(x[-1:], 4 - rows, axis=0)]))


def test_the_number_that_the_model_itself_is_fixed_to_wins(tmp_path: Path):
    file = graphs.identity(tmp_path / "m.onnx", shape=(3, 2))
    pipeline = Pipeline(load_engine(ModelSettings(name="m", file=file), EngineSettings()), "", 8)
    assert pipeline.run({"x": np.ones((2, 2), np.float32)}, 2)["y"].shape == (2, 2)


def test_rows_are_filled_up_to_the_one_length():
    def tensors(length: int) -> tuple[Tensor, ...]:
        return (Tensor("input_ids", "INT64", np.full((1, length), length, np.int64)),)

    slab = Slab.create()
    (block,) = pack_batch(slab, [Rows(tensors(2), 0, 1), Rows(tensors(3), 0, 1)], 2, {"input_ids": 9}, 5)
    assert read_array(slab.view(slab.size), block).tolist() == [[2, 2, 9, 9, 9], [3, 3, 3, 9, 9]]
    slab.close()


def test_a_plan_for_throughput_differs_only_where_nobody_fixed_a_number():
    settings = ModelSettings(name="m", file="m.onnx")
    image = ModelSettings(name="i", file="i.onnx", preprocess=load_settings(PreprocessSettings, {"image": {}}, "x"))
    facts = machine(8)
    latency = first_plan(facts, [settings, image], None)
    many = first_plan(facts, [settings, image], None, None, None, "throughput")
    assert [(p.max_batch, p.pipeline_depth) for p in latency] == [(8, 1), (8, 1)]
    assert [(p.max_batch, p.pipeline_depth) for p in many] == [(32, 2), (32, 2)]
    assert (latency[1].preprocess_processes, many[1].preprocess_processes) == (2, 4)
    assert [p.instances for p in many] == [p.instances for p in latency]
    assert "hroughput" in many[0].reasons["max_batch"]
    fixed = first_plan(facts, [settings], None, PlanOverrides(max_batch=4, pipeline_depth=3), None, "throughput")[0]
    assert (fixed.max_batch, fixed.pipeline_depth) == (4, 3)
