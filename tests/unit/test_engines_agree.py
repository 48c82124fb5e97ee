"""The same rows through all three engines: alone, in a batch, and at several shapes."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch_models as models

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
from hybrid.models.catalog import resolve

#: Of FP32 sums over at most 72 products, in another order in each engine, relative to the largest value.
TOLERANCE = 1e-5
#: Of int8 products: how an engine rounds activations is its own choice.
INT8_COSINE = 0.995

Run = Callable[[np.ndarray], np.ndarray]


def run_of(settings: ModelSettings) -> Run:
    pipeline = Pipeline(load_engine(settings, EngineSettings(threads=1)))
    name = pipeline.signature.outputs[0].name
    return lambda x: pipeline.run({"x": x}, len(x))[name]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("models")
    onnx = models.conv_onnx(folder / "m.onnx")
    declared = {"inputs": (models.PICTURES,), "outputs": (models.FEATURES,)}
    return {
        "onnxruntime": run_of(ModelSettings(name="o", file=onnx)),
        "openvino": run_of(ModelSettings(name="v", file=onnx, engine="openvino")),
        "script": run_of(ModelSettings(name="s", file=models.script(folder / "m.pt", models.ConvNet()), **declared)),
        "program": run_of(ModelSettings(name="p", file=models.conv_program(folder / "m.pt2"))),
    }


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_all_engines_agree_alone_and_batched(engines: dict[str, Run], seed: int) -> None:
    """MIX-08 over the engines."""
    rng = np.random.default_rng(seed)
    rows, height, width = (int(n) for n in (rng.integers(2, 17), *rng.integers(8, 80, 2)))
    x = rng.standard_normal((rows, 3, height, width), np.float32)
    expected = engines["onnxruntime"](x)
    assert np.abs(expected).max() > 0.01
    allowed = TOLERANCE * np.abs(expected).max()
    for name, run in engines.items():
        batched = run(x)
        alone = np.concatenate([run(x[row : row + 1]) for row in range(rows)])
        assert batched.dtype == np.float32
        assert np.abs(batched - expected).max() <= allowed, name
        assert np.abs(alone - expected).max() <= allowed, name


@pytest.mark.slow
def test_minilm_means_the_same_in_openvino(tmp_path: Path) -> None:
    settings = resolve("minilm")
    ort, openvino = (
        Pipeline(
            load_engine(ModelSettings(name="m", file=settings.file, engine=engine), EngineSettings(threads=1)),
            "mean_pool_l2",
        )
        for engine in ("onnxruntime", "openvino")
    )
    rng = np.random.default_rng(0)
    for rows, length in ((1, 5), (4, 33), (8, 128)):
        lengths = rng.integers(3, length + 1, rows)
        mask = (np.arange(length) < lengths[:, None]).astype(np.int64)
        ids = np.where(mask, rng.integers(1000, 20000, (rows, length)), 0)
        inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        a, b = (pipeline.run(inputs, rows)["embedding"] for pipeline in (ort, openvino))
        assert (a * b).sum(axis=1).min() > INT8_COSINE
        one = {name: array[:1, : lengths[0]] for name, array in inputs.items()}
        assert float((openvino.run(one, 1)["embedding"] * b[:1]).sum()) > INT8_COSINE
