"""Row checks, exception mapping, warm-up and the check whether batching is legal."""

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_graphs as graphs
import pytest

from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines import simulated_engine as sim
from hybrid.engines.base import Arrays, EngineFailure, EngineSettings, MemoryFacts
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import engine_name, load_engine
from hybrid.errors import ConfigError, StartupError
from hybrid.messages import FailureKind, Signature, TensorSpec


class ToyEngine:
    """Answers with whatever the test hands in."""

    max_rows: int | None = None

    def __init__(self, answer: Arrays | Exception, outputs: tuple[TensorSpec, ...]) -> None:
        self.answer = answer
        self.signature = Signature((TensorSpec("attention_mask", "INT64", (-1, -1)),), outputs)
        self.seen: list[Arrays] = []

    def run(self, inputs: Mapping[str, np.ndarray], rows: int) -> Arrays:
        self.seen.append(dict(inputs))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def memory(self) -> MemoryFacts:
        return MemoryFacts(1, 2)

    def close(self) -> None:
        self.answer = RuntimeError("closed")


def pipeline_of(file: str) -> Pipeline:
    return Pipeline(load_engine(ModelSettings(name="m", file=file), EngineSettings()))


def faulty() -> Pipeline:
    settings = ModelSettings(name="s", simulated=SimulatedSettings(faults=True, columns=1))
    return Pipeline(load_engine(settings, EngineSettings()))


@pytest.mark.parametrize(
    ("marker", "kind", "text"),
    [
        (sim.POISON, FailureKind.INPUT, "poison"),
        (sim.MEMORY, FailureKind.MEMORY, "out of memory"),
        (sim.RAISE, FailureKind.ENGINE, "RuntimeError: simulated device: unexpected exception"),
        (sim.WRONG_ROWS, FailureKind.OUTPUT, "output `y` has 1 rows, expected 2"),
        (sim.MISSING, FailureKind.OUTPUT, "output `y` is missing"),
    ],
)
def test_every_way_to_fail_is_an_engine_failure(marker: float, kind: FailureKind, text: str) -> None:
    pipeline = faulty()
    with pytest.raises(EngineFailure, match=text) as caught:
        pipeline.run({"x": np.array([[1.0], [marker]], np.float32)}, 2)
    assert caught.value.kind is kind
    assert len(pipeline.run({"x": np.ones((2, 1), np.float32)}, 2)["y"]) == 2


def test_rank_one_output_gives_one_value_per_row(tmp_path: Path) -> None:
    pipeline = pipeline_of(graphs.two_outputs(tmp_path / "m.onnx"))
    out = pipeline.run({"x": np.ones((3, 4), np.float32)}, 3)
    assert out["total"].tolist() == [4, 4, 4]
    assert pipeline.check_batchable(1e-3) is None


def test_outputs_without_rows_are_refused(tmp_path: Path) -> None:
    one = np.ones((1, 4), np.float32)
    with pytest.raises(EngineFailure, match="`y` has no row dimension, expected 1"):
        pipeline_of(graphs.scalar_output(tmp_path / "s.onnx")).run({"x": one}, 1)
    constant = pipeline_of(graphs.constant_rows(tmp_path / "c.onnx"))
    assert constant.run({"x": one}, 1)["y"].shape == (1, 4)
    with pytest.raises(EngineFailure, match="`y` has 1 rows, expected 2"):
        constant.run({"x": np.ones((2, 4), np.float32)}, 2)


def test_batching_is_refused_with_a_reason(tmp_path: Path) -> None:
    reasons = {
        "mean": pipeline_of(graphs.minus_batch_mean(tmp_path / "a.onnx")).check_batchable(1e-3),
        "constant": pipeline_of(graphs.constant_rows(tmp_path / "b.onnx")).check_batchable(1e-3),
        "scalar": pipeline_of(graphs.scalar_output(tmp_path / "c.onnx")).check_batchable(1e-3),
        "fixed": pipeline_of(graphs.identity(tmp_path / "d.onnx", shape=(1, 4))).check_batchable(1e-3),
    }
    assert "row 0 of a batch of 3 differs from the row alone" in (reasons["mean"] or "")
    assert "`y` has 1 rows, expected 3" in (reasons["constant"] or "")
    assert "no row dimension" in (reasons["scalar"] or "")
    assert reasons["fixed"] == "the model takes exactly 1 row"


class DriftingEngine(ToyEngine):
    """Rows come out 1 % larger in a batch than alone."""

    def run(self, inputs: Mapping[str, np.ndarray], rows: int) -> Arrays:
        return {"y": np.full((rows, 2), 1.01 if rows > 1 else 1.0)}


def test_the_tolerance_decides() -> None:
    pipeline = Pipeline(DriftingEngine({}, (TensorSpec("y", "FP64", (-1, 2)),)))
    assert pipeline.check_batchable(0.02) is None
    assert "by 0.01, over 0.005 of 1" in (pipeline.check_batchable(0.005) or "")


@pytest.mark.parametrize(
    ("kind", "shape"),
    [(graphs.STRING, ("n",)), (graphs.INT64, ("n", "k")), (graphs.FLOAT, (None, 2, "w", "h"))],
)
def test_models_of_any_type_are_checked(tmp_path: Path, kind: int, shape: tuple[int | str | None, ...]) -> None:
    pipeline = pipeline_of(graphs.identity(tmp_path / "m.onnx", kind=kind, shape=shape))
    assert pipeline.check_batchable(1e-3) is None
    pipeline.warm(2, length=3)  # raises where a made-up row of this type is none for the engine


def test_ids_out_of_a_small_table_are_tried_again_smaller(tmp_path: Path) -> None:
    assert pipeline_of(graphs.gather(tmp_path / "m.onnx")).check_batchable(1e-3) is None


def test_what_cannot_be_checked_is_not_batched() -> None:
    engine = ToyEngine(EngineFailure(FailureKind.INPUT, "only prime numbers"), ())
    assert "could not be checked" in (Pipeline(engine).check_batchable(1e-3) or "")


def test_warm_up_uses_masks_of_one_and_the_fixed_row_count() -> None:
    engine = ToyEngine({}, ())
    Pipeline(engine).warm(3, length=5)
    np.testing.assert_array_equal(engine.seen[0]["attention_mask"], np.ones((3, 5)))
    engine.max_rows = 2
    Pipeline(engine).warm(8, length=5)
    assert engine.seen[1]["attention_mask"].shape == (2, 5)


HIDDEN = (TensorSpec("last_hidden_state", "FP32", (-1, -1, 4)),)


def test_mean_pooling_is_bitwise_independent_of_padding_and_its_content() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((1, 5, 4)).astype(np.float32)
    alone = Pipeline(ToyEngine({"last_hidden_state": hidden}, HIDDEN), "mean_pool_l2")
    assert alone.signature.outputs == (TensorSpec("embedding", "FP32", (-1, 4)),)
    a = alone.run({"attention_mask": np.ones((1, 5), np.int64)}, 1)["embedding"]
    padded = np.full((3, 9, 4), np.nan, np.float32)
    padded[1, :5] = hidden
    mask = np.zeros((3, 9), np.int64)
    mask[1, :5] = 1
    pipeline = Pipeline(ToyEngine({"last_hidden_state": padded}, HIDDEN), "mean_pool_l2")
    b = pipeline.run({"attention_mask": mask}, 3)["embedding"]
    assert a.dtype == np.float32
    np.testing.assert_array_equal(a[0], b[1])
    expected = hidden[0].mean(axis=0)
    np.testing.assert_allclose(a[0], expected / np.linalg.norm(expected), rtol=1e-5)
    np.testing.assert_array_equal(b[[0, 2]], 0.0)


@pytest.mark.parametrize("length", [1, 2, 9, 16, 130, 256])
@pytest.mark.parametrize("width", [1, 3, 384])
def test_rows_without_padding_are_pooled_as_if_there_were_some(length: int, width: int) -> None:
    signature = (TensorSpec("last_hidden_state", "FP32", (-1, -1, width)),)
    hidden = np.random.default_rng(length).standard_normal((4, length, width)).astype(np.float32)
    padded = np.concatenate([hidden, np.zeros((4, 1, width), np.float32)], axis=1)
    mask = np.ones((4, length + 1), np.int64)
    mask[:, -1] = 0
    full = Pipeline(ToyEngine({"last_hidden_state": hidden}, signature), "mean_pool_l2")
    a = full.run({"attention_mask": mask[:, :-1]}, 4)["embedding"]
    short = Pipeline(ToyEngine({"last_hidden_state": padded}, signature), "mean_pool_l2")
    np.testing.assert_array_equal(a, short.run({"attention_mask": mask}, 4)["embedding"])


def test_half_precision_states_are_pooled_in_single() -> None:
    hidden = np.full((1, 100, 4), 1000.0, np.float16)  # the sum, 100000, is over the range of FP16
    pipeline = Pipeline(ToyEngine({"last_hidden_state": hidden}, HIDDEN), "mean_pool_l2")
    out = pipeline.run({"attention_mask": np.ones((1, 100), np.int64)}, 1)["embedding"]
    np.testing.assert_allclose(out, 0.5)


def test_postprocess_needs_its_tensors() -> None:
    with pytest.raises(StartupError, match="needs `last_hidden_state` with 3 dimensions; the model has y"):
        Pipeline(ToyEngine({}, (TensorSpec("y", "FP32", (-1, 4)),)), "mean_pool_l2")
    with pytest.raises(StartupError, match="unknown postprocess"):
        Pipeline(ToyEngine({}, HIDDEN), "softmax")


def test_registry_chooses_by_setting_then_suffix() -> None:
    assert engine_name(ModelSettings(name="m", file="a.ONNX")) == "onnxruntime"
    assert engine_name(ModelSettings(name="m", simulated=SimulatedSettings())) == "simulated"
    assert engine_name(ModelSettings(name="m", engine="simulated")) == "simulated"
    assert [engine_name(ModelSettings(name="m", file=f"m.{s}")) for s in ("xml", "pt", "pt2")] == [
        "openvino",
        "torch",
        "torch",
    ]
    assert engine_name(ModelSettings(name="m", file="m.onnx", engine="openvino")) == "openvino"
    for file in ("m.txt", "onnx", ""):
        with pytest.raises(ConfigError, match=r"expected a file that ends in \.onnx, \.xml, \.pt, \.pt2"):
            engine_name(ModelSettings(name="m", file=file))
    with pytest.raises(ConfigError, match=r"engine torch does not take `m\.onnx`; expected .* \.pt or \.pt2"):
        engine_name(ModelSettings(name="m", file="m.onnx", engine="torch"))


@pytest.mark.parametrize(("engine", "file"), [("onnxruntime", "m.onnx"), ("openvino", "m.xml"), ("torch", "m.pt")])
def test_a_missing_library_names_its_package(engine: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, f"hybrid.engines.{engine}_engine", None)
    monkeypatch.delattr(f"hybrid.engines.{engine}_engine", raising=False)
    with pytest.raises(StartupError, match=rf"pip install {engine}"):
        load_engine(ModelSettings(name="m", file=file), EngineSettings())
