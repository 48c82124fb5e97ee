"""`check_inputs`: requests against the signature of a model, and the hints given."""

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import InferRequest, Tensor, TensorSpec, WantedOutput
from hybrid.protocol.oip import check_inputs

X = TensorSpec("x", "FP32", (-1, 4))
MASK = TensorSpec("mask", "INT64", (-1, -1))
Y = TensorSpec("y", "FP32", (-1, 2))


def tensor(name: str, *shape: int, datatype: str = "FP32") -> Tensor:
    dtype = {"FP32": np.float32, "INT64": np.int64, "FP64": np.float64}[datatype]
    return Tensor(name, datatype, np.zeros(shape, dtype))


def check(*tensors: Tensor, specs=(X, MASK), outputs=None) -> int:
    wanted = None if outputs is None else tuple(map(WantedOutput, outputs))
    return check_inputs(InferRequest(tensors, outputs=wanted), specs, (Y,))


def refuse(*words: str, **call) -> None:
    tensors = call.pop("tensors")
    with pytest.raises(BadRequest) as caught:
        check(*tensors, **call)
    for word in words:
        assert word in str(caught.value)


def test_rows_are_dimension_0_in_any_order_of_inputs():
    x, mask = tensor("x", 3, 4), tensor("mask", 3, 7, datatype="INT64")
    assert check(x, mask) == 3
    assert check(mask, x) == 3
    assert check(mask, x, outputs=["y"]) == 3


def test_missing_input_is_named_and_the_expected_are_listed():
    refuse("missing input 'mask'", "'x' FP32 [-1, 4]", "'mask' INT64 [-1, -1]", tensors=[tensor("x", 1, 4)])


@pytest.mark.parametrize("name", ["X", "z", ""])
def test_unknown_input_is_named(name):
    refuse(f"unknown input {name!r}", "missing input 'x'", "'x' FP32", tensors=[tensor(name, 1, 4)], specs=(X,))
    refuse(f"unknown input {name!r}", "'x' FP32", tensors=[tensor("x", 1, 4), tensor(name, 1, 4)], specs=(X,))


def test_duplicate_input_is_named():
    refuse("'x'", "more than once", tensors=[tensor("x", 1, 4)] * 2, specs=(X,))
    refuse("'x'", "more than once", "missing input 'mask'", tensors=[tensor("x", 1, 4)] * 2)


def test_many_inputs_are_refused_in_linear_time():
    many = [tensor(str(index % 50_000), 1, 4) for index in range(60_000)]
    refuse("more than once", "missing input 'x'", "unknown input", tensors=many)


def test_datatype():
    refuse("'x'", "FP32", "FP64", tensors=[tensor("x", 1, 4, datatype="FP64")], specs=(X,))


@pytest.mark.parametrize(
    ("expected", "shape", "words"),
    [
        ((-1, 238), (238,), ["[-1, 238]", "[238]", "batch", "[1, 238]"]),
        ((-1, 1), (1, 67), ["[-1, 1]", "[1, 67]", "batch", "67 rows are [67, 1]"]),
        ((-1, 4), (4, 1), ["[-1, 4]", "[4, 1]", "dimension 1 must be 4", "batch"]),
        ((-1, 4), (1, 2, 4), ["[-1, 4]", "[1, 2, 4]", "too many", "batch"]),
        ((-1, 4), (1, 1, 2, 4), ["[1, 1, 2, 4]", "4 dimensions, expected 2", "batch"]),
        ((-1, 3, 8, 8), (8, 8), ["[8, 8]", "2 dimensions, expected 4", "batch"]),
        ((-1, 4), (5,), ["[5]", "1 dimensions, expected 2"]),
        ((-1, 3, 224, 224), (1, 224, 224, 3), ["[1, 224, 224, 3]", "dimension 1 must be 3"]),
        ((-1, 4), (2, 0), ["[2, 0]", "dimension 1 must be 4"]),
    ],
)
def test_rank_and_fixed_dimensions(expected, shape, words):
    specs = (TensorSpec("x", "FP32", expected),)
    refuse("'x'", *words, tensors=[tensor("x", *shape)], specs=specs)


def test_variable_dimensions_take_any_size_and_dimension_0_is_never_compared():
    for expected in ((-1, -1), (8, -1), (1, -1)):
        specs = (TensorSpec("x", "FP32", expected),)
        assert check(tensor("x", 3, 5), specs=specs) == 3
        assert check(tensor("x", 3, 0), specs=specs) == 3


def test_rows_must_agree():
    refuse("rows", "'x' [3, 4]", "'mask' [2, 7]", tensors=[tensor("x", 3, 4), tensor("mask", 2, 7, datatype="INT64")])
    refuse("rows", "'x' [3, 4]", tensors=[tensor("x", 3, 4), tensor("mask", 0, 7, datatype="INT64")])


def test_zero_rows():
    refuse("'x'", "rows", "0", tensors=[tensor("x", 0, 4)], specs=(X,))


def test_scalars_have_no_row():
    specs = (TensorSpec("x", "FP32", ()),)
    refuse("'x'", "[]", tensors=[tensor("x")], specs=specs)


@pytest.mark.parametrize(("outputs", "words"), [(["z"], ["'z'", "'y' FP32"]), (["Y"], ["'Y'"]), (["y", "y"], ["once"])])
def test_wanted_outputs(outputs, words):
    refuse("output", *words, tensors=[tensor("x", 1, 4)], specs=(X,), outputs=outputs)


def test_rank_1_models():
    specs = (TensorSpec("text", "FP32", (-1,)),)
    assert check(tensor("text", 5), specs=specs) == 5
    refuse("'text'", "[5, 1]", "batch", tensors=[tensor("text", 5, 1)], specs=specs)
