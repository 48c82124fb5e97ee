"""What is read of an ONNX file before it is loaded: whether its rows all have one shape."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from hybrid.engines.onnx_file import rows_are_alike


def written(path: Path, *shapes: object, graph_name: str = "g") -> str:
    """A model with an input of each shape, some weights and an attribute of every kind of number."""
    inputs = [helper.make_tensor_value_info(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    nodes = [helper.make_node("LeakyRelu", [value.name], [f"y{value.name}"], alpha=0.5, axis=-1) for value in inputs]
    weights = [numpy_helper.from_array(np.ones((10, 10), np.float32), "w")]
    model = helper.make_model(helper.make_graph(nodes, graph_name, inputs, [output], weights), producer_name="p" * 200)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize(
    ("shapes", "alike"),
    [
        ([["n", 3, 224, 224]], True),
        ([[None, 4]], True),
        ([[8, 4]], True),
        ([["n"]], True),
        ([["n", 300], ["n", 2**40]], True),
        ([["n", "length"]], False),
        ([["n", 4, None]], False),
        ([["n", -1]], False),
        ([["n", 4], ["n", "length"]], False),
        ([None], False),
        ([], False),
    ],
)
def test_rows_are_alike_when_only_the_first_dimension_varies(tmp_path, shapes, alike):
    assert rows_are_alike(written(tmp_path / "m.onnx", *shapes)) is alike


def test_an_input_that_is_no_tensor_does_not_tell(tmp_path):
    file = written(tmp_path / "m.onnx", ["n", 4])
    model = onnx.load(file)
    model.graph.input.append(helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2, 2]))
    onnx.save(model, file)
    assert not rows_are_alike(file)


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 99, b"\x3b", b"\x3a\x7f", b"\x3a\x02\x5a\x50"])
def test_what_is_no_model_does_not_tell(tmp_path, content):
    (tmp_path / "m.onnx").write_bytes(content)
    assert not rows_are_alike(str(tmp_path / "m.onnx"))


def test_a_file_that_is_cut_off_is_read_as_far_as_it_goes(tmp_path):
    whole = Path(written(tmp_path / "m.onnx", ["n", 4])).read_bytes()
    file = tmp_path / "cut.onnx"
    for length in range(len(whole) // 2):  # the weights, which come before the inputs, are most of the file
        file.write_bytes(whole[:length])
        assert not rows_are_alike(str(file))


def test_no_file_does_not_tell(tmp_path):
    assert not rows_are_alike(str(tmp_path / "none.onnx"))
