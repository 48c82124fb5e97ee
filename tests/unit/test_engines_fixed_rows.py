"""Models that are fixed to a number of rows get as many as they take, and clients see only their own."""

from pathlib import Path

import numpy as np
import onnx_graphs as graphs
import pytest

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineFailure, EngineSettings
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine


def fixed(path: Path, rows: int, kind: int = graphs.FLOAT) -> Pipeline:
    file = graphs.identity(path / "m.onnx", kind=kind, shape=(rows, 4))
    return Pipeline(load_engine(ModelSettings(name="m", file=file), EngineSettings()))


@pytest.mark.parametrize("rows", [1, 3, 4])
def test_fewer_rows_are_filled_up_and_cut_again(tmp_path: Path, rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    np.testing.assert_array_equal(fixed(tmp_path, 4).run({"x": x}, rows)["y"], x)


def test_what_is_filled_in_is_valid_text_too(tmp_path: Path) -> None:
    x = np.array([[b"a", b"b", b"c", b"d"]], object)
    assert fixed(tmp_path, 3, graphs.STRING).run({"x": x}, 1)["y"].tolist() == x.tolist()


def test_more_rows_than_the_model_takes_are_its_own_error(tmp_path: Path) -> None:
    with pytest.raises(EngineFailure, match="Got: 3 Expected: 2"):
        fixed(tmp_path, 2).run({"x": np.zeros((3, 4), np.float32)}, 3)


def test_a_fixed_count_above_one_may_be_batched(tmp_path: Path) -> None:
    assert fixed(tmp_path, 1).check_batchable(1e-3) == "the model takes exactly 1 row"
    assert fixed(tmp_path, 2).check_batchable(1e-3) is None
    assert fixed(tmp_path, 4).check_batchable(1e-3) is None


def test_a_fixed_count_hides_no_influence_between_rows(tmp_path: Path) -> None:
    nodes = [
        graphs.helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        graphs.helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    x, y = (graphs.value(name, graphs.FLOAT, [4, 4]) for name in "xy")
    file = graphs.write(tmp_path / "m.onnx", nodes, [x], [y])
    pipeline = Pipeline(load_engine(ModelSettings(name="m", file=file), EngineSettings()))
    assert "differs from the row alone" in (pipeline.check_batchable(1e-3) or "")
