"""ONNX model folders for flow tests, each with one property that a server must cope with."""

import sys
from pathlib import Path

from clients import folder

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

import onnx_graphs as graphs

#: Datatype -> ONNX type of the model `types`, which returns every input as it came.
TYPES = {
    "FP16": graphs.TensorProto.FLOAT16,
    "FP64": graphs.TensorProto.DOUBLE,
    "INT8": graphs.TensorProto.INT8,
    "INT16": graphs.TensorProto.INT16,
    "INT32": graphs.TensorProto.INT32,
    "INT64": graphs.TensorProto.INT64,
    "UINT8": graphs.TensorProto.UINT8,
    "UINT16": graphs.TensorProto.UINT16,
    "UINT32": graphs.TensorProto.UINT32,
    "UINT64": graphs.TensorProto.UINT64,
    "BOOL": graphs.TensorProto.BOOL,
}


def types(path: Path) -> None:
    """One input per datatype, returned as the output of the same name with `_out`."""
    nodes = [graphs.helper.make_node("Identity", [name], [f"{name}_out"]) for name in TYPES]
    inputs = [graphs.value(name, kind, ["n", "k"]) for name, kind in TYPES.items()]
    outputs = [graphs.value(f"{name}_out", kind, ["n", "k"]) for name, kind in TYPES.items()]
    graphs.write(path, nodes, inputs, outputs)


def log(path: Path) -> None:
    """y = log x: NaN below 0, -Inf at 0."""
    node = graphs.helper.make_node("Log", ["x"], ["y"])
    x, y = (graphs.value(name, graphs.FLOAT, ["n", "k"]) for name in "xy")
    graphs.write(path, [node], [x], [y])


def write_all(root: Path) -> list[str]:
    """Write every folder and return their paths."""
    makers = {
        "mean": graphs.minus_batch_mean,
        "constant": graphs.constant_rows,
        "one": lambda path: graphs.identity(path, shape=(1, 4)),
        "four": lambda path: graphs.identity(path, shape=(4, 4)),
        "two": graphs.two_outputs,
        "words": lambda path: graphs.identity(path, kind=graphs.STRING, shape=("n", "k")),
        "gather": graphs.gather,
        "types": types,
        "log": log,
    }
    folders = []
    for name, make in makers.items():
        folders.append(folder(root, name, batching="max_batch = 8\nmax_wait_s = 0.02", extra="threads = 1"))
        make(root / name / "model.onnx")
    return folders
