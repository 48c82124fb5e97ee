"""Small models for measurements, written as files: an encoder over ids, a conv net and an MLP, with random weights.

Small on purpose: 20,000 runs of each take minutes, while what they do to an engine's memory is what large ones do.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

_WIDTH = 64
_IDS = 1000


def encoder_onnx(path: Path, layers: int = 2) -> str:
    """Ids [n, length] -> y [n, 64]: self-attention over the length, whose scores grow with its square."""
    rng = np.random.default_rng(1)
    weights: list[TensorProto] = []
    nodes: list[NodeProto] = []

    def weight(name: str, *shape: int) -> str:
        values = rng.standard_normal(shape, np.float32) / np.sqrt(shape[0], dtype=np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def node(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    hidden = node("Gather", [weight("table", _IDS, _WIDTH), "ids"], "h0")
    for layer in range(layers):
        q, k, v = (node("MatMul", [hidden, weight(f"w{n}{layer}", _WIDTH, _WIDTH)], f"{n}{layer}") for n in "qkv")
        turned = node("Transpose", [k], f"t{layer}", perm=[0, 2, 1])
        scores = node("Softmax", [node("MatMul", [q, turned], f"s{layer}")], f"p{layer}", axis=-1)
        mixed = node("Add", [node("MatMul", [scores, v], f"m{layer}"), hidden], f"a{layer}")
        wide = node("MatMul", [mixed, weight(f"u{layer}", _WIDTH, 4 * _WIDTH)], f"x{layer}")
        active = node("Relu", [wide], f"r{layer}")
        down = node("MatMul", [active, weight(f"d{layer}", 4 * _WIDTH, _WIDTH)], f"y{layer}")
        hidden = node("Add", [down, mixed], f"h{layer + 1}")
    node("ReduceMean", [hidden], "y", axes=[1], keepdims=0)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["n", "length"])
    return _write(path, nodes, ids, weights, ["n", _WIDTH])


def conv_onnx(path: Path) -> str:
    """Pictures x [n, 3, h, w] -> y [n, 32]."""
    rng = np.random.default_rng(1)
    shapes = {"w1": (16, 3, 3, 3), "w2": (32, 16, 3, 3)}
    weights = [numpy_helper.from_array(rng.standard_normal(s, np.float32) / 9, name) for name, s in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["c", "w2"], ["d"], pads=[1] * 4),
        helper.make_node("Relu", ["d"], ["e"]),
        helper.make_node("ReduceMean", ["e"], ["y"], axes=[2, 3], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, "h", "w"])
    return _write(path, nodes, x, weights, ["n", 32])


def mlp_onnx(path: Path, width: int = 2048, layers: int = 3) -> str:
    """Rows x [n, 512] -> y [n, 64]: 39 MB of weights that every batch reads once, so batches pay."""
    rng = np.random.default_rng(1)
    sides = [512, *[width] * layers, 64]
    weights, nodes, hidden = [], [], "x"
    for layer, (rows, columns) in enumerate(pairwise(sides)):
        values = rng.standard_normal((rows, columns), np.float32) * np.float32(np.sqrt(2.0 / rows))
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        last = layer == layers
        nodes.append(helper.make_node("MatMul", [hidden, f"w{layer}"], ["y" if last else f"m{layer}"]))
        if not last:
            nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"]))
        hidden = f"r{layer}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 512])
    return _write(path, nodes, x, weights, ["n", 64])


def maps_onnx(path: Path, channels: int, side: int) -> str:
    """Pictures x [n, 1, side, side] -> y [n, channels]: large intermediate results at next to no cost in time."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.standard_normal((channels, 1, 3, 3), np.float32) / 3, "w")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["a"], ["b"]),
        helper.make_node("Mul", ["a", "b"], ["c"]),
        helper.make_node("Add", ["a", "c"], ["d"]),
        helper.make_node("ReduceMean", ["d"], ["y"], axes=[2, 3], keepdims=0),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 1, side, side])
    return _write(path, nodes, x, weights, ["n", channels])


def conv_script(path: Path) -> str:
    """The same kind of net as TorchScript."""
    import warnings

    import torch

    class Net(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
            self.second = torch.nn.Conv2d(16, 32, 3, padding=1)

        def forward(self, x):  # type: ignore[no-untyped-def]
            x = torch.nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
            return torch.relu(self.second(x)).mean((2, 3))

    torch.manual_seed(1)
    with warnings.catch_warnings():  # torch calls TorchScript deprecated, which is not what is measured
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(Net().eval()).save(str(path))
    return str(path)


def _write(
    path: Path,
    nodes: list[NodeProto],
    given: ValueInfoProto,
    weights: list[TensorProto],
    result: list[str | int | None],
) -> str:
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, result)
    graph = helper.make_graph(nodes, "g", [given], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)
