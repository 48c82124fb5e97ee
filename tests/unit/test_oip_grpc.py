"""The gRPC codec: every datatype in both forms, and every way to get a message wrong."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.errors import BadRequest, OutputInvalid
from hybrid.messages import DTYPES, InferRequest, InferResponse, Tensor, Timings, WantedOutput
from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb
from hybrid.protocol.oip_grpc import CONTENTS, decode_infer, encode_infer, parse_infer
from hybrid.protocol.tensors import read_raw, write_raw

TYPED = sorted(CONTENTS)
RAW = sorted(DTYPES)
SMALL_INTEGERS = ("INT8", "INT16", "UINT8", "UINT16")


def message(**more: Any) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="m", **more)


def typed(datatype: str, values: list[Any], shape: list[int], field: str = "") -> pb.ModelInferRequest:
    made = message()
    item = made.inputs.add(name="x", datatype=datatype, shape=shape)
    getattr(item.contents, field or CONTENTS[datatype]).extend(values)
    return made


def raw(datatype: str, data: bytes, shape: list[int]) -> pb.ModelInferRequest:
    made = message(raw_input_contents=[data])
    made.inputs.add(name="x", datatype=datatype, shape=shape)
    return made


def decoded(made: pb.ModelInferRequest) -> InferRequest:
    """Through bytes, as it comes."""
    return decode_infer(parse_infer(made.SerializeToString()))


def array_of(datatype: str, draw: Any) -> np.ndarray:
    rows, columns = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    count = rows * columns
    dtype = DTYPES[datatype]
    if datatype == "BYTES":
        values = draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count))
        return np.array(values, object).reshape(rows, columns)
    if datatype == "BOOL":
        values = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    elif dtype.kind == "f":
        values = draw(st.lists(st.floats(width=8 * dtype.itemsize), min_size=count, max_size=count))
    else:
        info = np.iinfo(dtype)
        values = draw(st.lists(st.integers(info.min, info.max), min_size=count, max_size=count))
    return np.array(values, dtype).reshape(rows, columns)


@pytest.mark.parametrize("datatype", RAW)
@settings(max_examples=40)
@given(data=st.data())
def test_raw_contents_of_every_datatype_come_back(datatype: str, data: Any):
    array = array_of(datatype, data.draw)
    (tensor,) = decoded(raw(datatype, bytes(write_raw(datatype, array)), list(array.shape))).inputs
    assert (tensor.name, tensor.datatype, tensor.array.dtype) == ("x", datatype, DTYPES[datatype])
    np.testing.assert_array_equal(tensor.array, array)


@pytest.mark.parametrize("datatype", TYPED)
@settings(max_examples=40)
@given(data=st.data())
def test_typed_contents_of_every_datatype_come_back(datatype: str, data: Any):
    array = array_of(datatype, data.draw)
    (tensor,) = decoded(typed(datatype, array.ravel().tolist(), list(array.shape))).inputs
    assert (tensor.name, tensor.datatype, tensor.array.dtype) == ("x", datatype, DTYPES[datatype])
    np.testing.assert_array_equal(tensor.array, array)


@pytest.mark.parametrize("datatype", RAW)
@settings(max_examples=40)
@given(data=st.data())
def test_answers_of_every_datatype_come_back(datatype: str, data: Any):
    array = array_of(datatype, data.draw)
    response = InferResponse("m", "3", (Tensor("y", datatype, array),), id="mine", batch_rows=7)
    made = pb.ModelInferResponse.FromString(encode_infer(response, InferRequest(())))
    assert (made.model_name, made.model_version, made.id) == ("m", "3", "mine")
    (output,), (content,) = made.outputs, made.raw_output_contents
    assert (output.name, output.datatype, tuple(output.shape)) == ("y", datatype, array.shape)
    assert not output.contents.ListFields()
    np.testing.assert_array_equal(read_raw(datatype, array.shape, content, 0, len(content)), array)


def test_stage_times_are_whole_microseconds():
    timings = Timings(1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6, 0.5)
    response = InferResponse("m", "1", (), timings=timings, batch_rows=7)
    made = pb.ModelInferResponse.FromString(encode_infer(response, InferRequest(())))
    found = {name: value.int64_param for name, value in made.parameters.items()}
    assert 500_000 <= found.pop("timings_us.serialise") < 600_000
    stages = ("parse", "preprocess", "queue", "copy", "compute", "post")
    assert found == {"batch_rows": 7} | {f"timings_us.{stage}": n for n, stage in enumerate(stages, 1)}


def test_rows_that_were_preprocessed_more_coarsely_are_told():
    made = pb.ModelInferResponse.FromString(encode_infer(InferResponse("m", "1", (), downgraded=3), InferRequest(())))
    assert made.parameters["downgraded"].int64_param == 3


def test_only_the_outputs_that_were_asked_for_in_their_order():
    outputs = tuple(Tensor(name, "FP32", np.zeros((1,), np.float32)) for name in "abc")
    response = InferResponse("m", "1", outputs)
    wanted = InferRequest((), outputs=(WantedOutput("c"), WantedOutput("a")))
    made = pb.ModelInferResponse.FromString(encode_infer(response, wanted))
    assert [output.name for output in made.outputs] == ["c", "a"]
    assert len(made.raw_output_contents) == 2
    with pytest.raises(OutputInvalid, match="did not return output 'z'"):
        encode_infer(response, InferRequest((), outputs=(WantedOutput("z"),)))


def test_the_whole_request():
    made = raw("FP32", bytes(4), [1, 1])
    made.id = "mine"
    made.parameters["timeout"].int64_param = 2_500_000
    made.parameters["priority"].uint64_param = 3
    made.parameters["something_else"].string_param = "ignored"
    made.outputs.add(name="y")
    request = decoded(made)
    assert (request.id, request.timeout_s, request.priority) == ("mine", 2.5, 3)
    assert request.outputs == (WantedOutput("y", binary=True),)
    assert request.binary


def test_parameters_that_are_unset():
    made = raw("FP32", bytes(4), [1, 1])
    made.parameters["timeout"].int64_param = 0
    made.parameters["priority"].int64_param = 0
    request = decoded(made)
    assert (request.timeout_s, request.priority, request.outputs, request.id) == (None, None, None, "")


def test_very_large_integers_are_no_floats():
    values = [0, 2**63 + 1, 2**64 - 1]
    (tensor,) = decoded(typed("UINT64", values, [3])).inputs
    assert tensor.array.tolist() == values


def test_long_typed_contents_are_read_in_pieces():
    values = list(range(100_000))
    (tensor,) = decoded(typed("INT64", values, [100_000])).inputs
    assert tensor.array.tolist() == values


@pytest.mark.parametrize("datatype", TYPED)
def test_an_empty_tensor_has_no_contents(datatype: str):
    (tensor,) = decoded(typed(datatype, [], [0, 3])).inputs
    assert tensor.array.shape == (0, 3)


# What is wrong -----------------------------------------------------------------------------------------------------


def refused(made: pb.ModelInferRequest) -> str:
    with pytest.raises(BadRequest) as caught:
        decoded(made)
    return str(caught.value)


def test_bytes_that_are_no_message():
    with pytest.raises(BadRequest, match="body: 3 bytes are not a ModelInferRequest"):
        parse_infer(b"\xff\xff\xff")


def test_no_inputs():
    assert refused(message()) == "inputs: expected 1 to 1024 tensors, got a list of 0"


@pytest.mark.parametrize("datatype", TYPED)
def test_the_field_of_another_datatype(datatype: str):
    field = "fp64_contents" if datatype != "FP64" else "fp32_contents"
    text = refused(typed(datatype, [1.0], [1], field))
    assert text == f"input 'x': {datatype} belongs into contents.{CONTENTS[datatype]}, got contents.{field}"


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_halves_have_no_typed_contents(datatype: str):
    text = refused(typed(datatype, [1.0], [1], "fp32_contents"))
    assert text == f"input 'x': {datatype} has no typed contents; send it in raw_input_contents"


@pytest.mark.parametrize(
    ("datatype", "value"),
    [(name, np.iinfo(DTYPES[name]).max + 1) for name in SMALL_INTEGERS]
    + [(name, np.iinfo(DTYPES[name]).min - 1) for name in SMALL_INTEGERS if name.startswith("I")],
)
def test_small_integers_that_do_not_fit(datatype: str, value: int):
    text = refused(typed(datatype, [0, value], [2]))
    assert text.startswith(f"input 'x': element 1 is {value}, {datatype} holds ")


def test_a_value_that_does_not_fit_beyond_the_first_piece():
    values = [0] * 40_000 + [200]
    assert "element 40000 is 200" in refused(typed("INT8", values, [40_001]))


def test_a_wrong_number_of_elements():
    text = refused(typed("FP32", [1.0, 2.0], [3]))
    assert text == "input 'x': contents.fp32_contents has 2 elements, shape [3] holds 3"
    assert "0 elements" in refused(typed("FP32", [], [3]))
    assert "8 bytes of binary data, expected 12 for FP32" in refused(raw("FP32", bytes(8), [3]))


def test_both_forms_at_once():
    made = typed("FP32", [1.0], [1])
    made.raw_input_contents.append(bytes(4))
    assert refused(made) == "input 'x': both contents and raw_input_contents are given, expected one of them"


def test_raw_contents_for_some_inputs_only():
    made = raw("FP32", bytes(4), [1])
    made.inputs.add(name="y", datatype="FP32", shape=[1])
    assert refused(made) == "raw_input_contents: expected one entry for each of 2 inputs, got 1"


def test_shared_memory():
    made = message()
    item = made.inputs.add(name="x", datatype="FP32", shape=[1])
    item.parameters["shared_memory_region"].string_param = "r"
    assert refused(made) == "input 'x': shared memory is not supported"
    made = raw("FP32", bytes(4), [1])
    made.outputs.add(name="y").parameters["shared_memory_region"].string_param = "r"
    assert refused(made) == "output 'y': shared memory is not supported"


@pytest.mark.parametrize(
    ("datatype", "shape", "text"),
    [
        ("FP31", [1], "unknown datatype 'FP31'"),
        ("FP32", [], "is a scalar"),
        ("FP32", [-1], "negative dimension"),
        ("FP32", [1] * 17, "17 dimensions"),
        ("FP32", [1 << 40, 2], "more than"),
    ],
)
@pytest.mark.parametrize("make", [lambda d, s: typed(d, [1.0], s, "fp32_contents"), lambda d, s: raw(d, bytes(4), s)])
def test_shapes_and_datatypes_that_cannot_be(make: Any, datatype: str, shape: list[int], text: str):
    assert text in refused(make(datatype, shape))


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("timeout", "int64_param", -1),
        ("timeout", "int64_param", 86_400_000_001),
        ("timeout", "string_param", "5"),
        ("timeout", "double_param", 0.5),
        ("priority", "int64_param", 10),
        ("priority", "bool_param", True),
    ],
)
def test_parameters_that_are_no_such_number(name: str, field: str, value: Any):
    made = raw("FP32", bytes(4), [1])
    setattr(made.parameters[name], field, value)
    assert refused(made).startswith(f"parameters.{name}: expected int64_param from 0 (unset) to ")
    assert f"{value}" in refused(made)


def test_a_parameter_without_a_value():
    made = raw("FP32", bytes(4), [1])
    made.parameters["timeout"].SetInParent()
    assert refused(made).endswith("got nothing")


def test_an_id_without_end():
    made = raw("FP32", bytes(4), [1])
    made.id = "x" * 10_241
    assert refused(made) == "id: expected at most 10240 characters, got 10241"


@given(st.binary(max_size=200))
def test_any_bytes_are_a_request_or_refused(data: bytes):
    try:
        request = decode_infer(parse_infer(data))
    except BadRequest:
        return
    assert request.inputs
