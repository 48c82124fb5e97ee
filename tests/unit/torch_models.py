"""Small PyTorch models for tests, written to files as TorchScript, exported programs and ONNX."""

import warnings
from pathlib import Path
from typing import Any

import onnx_graphs as graphs
import torch
from onnx import numpy_helper

from hybrid.config import TensorSettings

CHANNELS = 12


class ConvNet(torch.nn.Module):
    """x [n, 3, h, w] -> y [n, 12]."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, CHANNELS, 3, padding=1, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3))


class Small(torch.nn.Module):
    """x [n, k, 4] -> y [n, 8]: one operator that is called and one kernel that is made, where it is compiled."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.first(x)).mean(1)


class TwoHeads(torch.nn.Module):
    """x [n, 4] -> {"total": [n], "double": [n, 4]}."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"double": x + x, "total": x.sum(1)}


class WritesItsInput(torch.nn.Module):
    """y = x + 1, computed in x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Gather(torch.nn.Module):
    """y[i] = (10, 20, 30)[x[i]]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.tensor([10.0, 20.0, 30.0]), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table[x]


def tensor(name: str, datatype: str, *shape: int) -> TensorSettings:
    return TensorSettings(name=name, datatype=datatype, shape=shape)


PICTURES = tensor("x", "FP32", -1, 3, -1, -1)
FEATURES = tensor("y", "FP32", -1, CHANNELS)
ROWS = tensor("x", "FP32", -1, 4)


def script(path: Path, module: torch.nn.Module) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.script(module.eval()).save(str(path))
    return str(path)


def program(path: Path, module: torch.nn.Module, *example: torch.Tensor, dynamic: Any = None) -> str:
    torch.export.save(torch.export.export(module.eval(), example, dynamic_shapes=dynamic), str(path))
    return str(path)


def conv_program(path: Path) -> str:
    dim = torch.export.Dim
    names = {0: dim("n"), 2: dim("h", min=8), 3: dim("w", min=8)}
    return program(path, ConvNet(), torch.rand(2, 3, 16, 16), dynamic={"x": names})


def small_program(path: Path) -> str:
    dim = torch.export.Dim
    return program(path, Small(), torch.rand(2, 16, 4), dynamic={"x": {0: dim("n"), 1: dim("k", min=2)}})


def conv_onnx(path: Path) -> str:
    """The same weights as ONNX, without the packages that torch's own exporter needs."""
    net, make = ConvNet(), graphs.helper.make_node
    weights = [numpy_helper.from_array(value.detach().numpy(), name) for name, value in net.state_dict().items()]
    nodes = [
        make("Conv", ["x", "first.weight", "first.bias"], ["a"], pads=[1] * 4),
        make("Relu", ["a"], ["b"]),
        make("Conv", ["b", "second.weight", "second.bias"], ["c"], pads=[1] * 4, strides=[2, 2]),
        make("Relu", ["c"], ["d"]),
        make("ReduceMean", ["d"], ["y"], axes=[2, 3], keepdims=0),
    ]
    x = graphs.value("x", graphs.FLOAT, ["n", 3, "h", "w"])
    return graphs.write(path, nodes, [x], [graphs.value("y", graphs.FLOAT, ["n", CHANNELS])], weights)
