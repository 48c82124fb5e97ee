"""Small ONNX files for tests, each with one property that an engine must cope with."""

from pathlib import Path

from onnx import NodeProto, TensorProto, ValueInfoProto, helper

FLOAT, INT64, STRING, BFLOAT16 = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING, TensorProto.BFLOAT16
Shape = list[int | str | None]


def value(name: str, kind: int, shape: Shape) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def write(
    path: Path,
    nodes: list[NodeProto],
    inputs: list[ValueInfoProto],
    outputs: list[ValueInfoProto],
    constants: list[TensorProto] | None = None,
) -> str:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants or [])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    return str(path)


def identity(path: Path, kind: int = FLOAT, shape: tuple[int | str | None, ...] = ("n", 4)) -> str:
    node = helper.make_node("Identity", ["x"], ["y"])
    return write(path, [node], [value("x", kind, list(shape))], [value("y", kind, list(shape))])


def minus_batch_mean(path: Path) -> str:
    """y = x - mean over the rows: rows influence each other."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[0], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    return write(path, nodes, [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, ["n", 4])])


def constant_rows(path: Path) -> str:
    """y = sum over the rows, [1, 4] whatever the batch."""
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=1)
    axes = helper.make_tensor("axes", INT64, [1], [0])
    return write(path, [node], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, [1, 4])], [axes])


def scalar_output(path: Path) -> str:
    node = helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)
    return write(path, [node], [value("x", FLOAT, ["n", 4])], [value("y", FLOAT, [])])


def two_outputs(path: Path) -> str:
    """`double` = x + x [n, 4], and `total` = sum of a row [n]."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["double"]),
        helper.make_node("ReduceSum", ["x", "axes"], ["total"], keepdims=0),
    ]
    outputs = [value("double", FLOAT, ["n", 4]), value("total", FLOAT, ["n"])]
    return write(path, nodes, [value("x", FLOAT, ["n", 4])], outputs, [helper.make_tensor("axes", INT64, [1], [1])])


def gather(path: Path) -> str:
    """y[i] = (10, 20, 30)[x[i]]; any other index is an error of the input."""
    node = helper.make_node("Gather", ["table", "x"], ["y"])
    table = helper.make_tensor("table", FLOAT, [3], [10.0, 20.0, 30.0])
    return write(path, [node], [value("x", INT64, ["n"])], [value("y", FLOAT, ["n"])], [table])


def add(path: Path) -> str:
    """y = a + b, whose second dimensions may disagree at run time."""
    node = helper.make_node("Add", ["a", "b"], ["y"])
    inputs = [value("a", FLOAT, ["n", "k"]), value("b", FLOAT, ["n", "j"])]
    return write(path, [node], inputs, [value("y", FLOAT, ["n", "m"])])


def expand(path: Path) -> str:
    """y has as many elements as the input says: a way to ask for any amount of memory."""
    nodes = [helper.make_node("Expand", ["one", "x"], ["y"])]
    one = helper.make_tensor("one", FLOAT, [1], [1.0])
    return write(path, nodes, [value("x", INT64, [1])], [value("y", FLOAT, ["n"])], [one])


def shape_seen(path: Path) -> str:
    """`sum` of a row [n], and `shape` [n, 2]: how many rows and columns the model was really run with."""
    nodes = [
        helper.make_node("ReduceSum", ["x", "axes"], ["sum"], keepdims=0),
        helper.make_node("Shape", ["x"], ["both"]),
        helper.make_node("Reshape", ["both", "row"], ["one"]),
        helper.make_node("Slice", ["both", "zero", "axes"], ["rows"]),
        helper.make_node("Concat", ["rows", "two"], ["target"], axis=0),
        helper.make_node("Expand", ["one", "target"], ["shape"]),
    ]
    numbers = {"axes": [1], "zero": [0], "two": [2], "row": [1, 2]}
    constants = [helper.make_tensor(name, INT64, [len(data)], data) for name, data in numbers.items()]
    outputs = [value("sum", FLOAT, ["n"]), value("shape", INT64, ["n", 2])]
    return write(path, nodes, [value("x", FLOAT, ["n", "k"])], outputs, constants)
