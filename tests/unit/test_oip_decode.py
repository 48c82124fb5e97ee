"""`decode_infer` on bodies that are right, and on every way that they can be wrong."""

import json
import re

import msgspec
import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES, WantedOutput
from hybrid.protocol.oip import decode_infer

MISSING = object()


def request_of(data=MISSING, shape=(1,), datatype="FP32", name="x", parameters=MISSING, **fields) -> bytes:
    tensor = {"name": name, "shape": shape, "datatype": datatype}
    if data is not MISSING:
        tensor["data"] = data
    if parameters is not MISSING:
        tensor["parameters"] = parameters
    return json.dumps({"inputs": [tensor], **fields}).encode()


def refuse(body: bytes, *words: str, header_length: int | None = None) -> str:
    with pytest.raises(BadRequest) as caught:
        decode_infer(body, header_length)
    text = str(caught.value)
    for word in words:
        assert word in text
    assert len(text) < 1000
    return text


def array_of(body: bytes, header_length: int | None = None) -> np.ndarray:
    (tensor,) = decode_infer(body, header_length).inputs
    return tensor.array


def test_smallest_request():
    request = decode_infer(b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1.0]}]}', None)
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype) == ("x", "FP32")
    assert tensor.array.dtype == np.float32
    assert tensor.array.tolist() == [[1.0]]
    assert (request.id, request.outputs, request.binary, request.timeout_s, request.priority) == (
        "",
        None,
        False,
        None,
        None,
    )


@pytest.mark.parametrize(
    ("datatype", "data", "expected"),
    [
        ("BOOL", [True, False], [True, False]),
        ("UINT8", [0, 255], [0, 255]),
        ("UINT16", [0, 65535], [0, 65535]),
        ("UINT32", [0, 2**32 - 1], [0, 2**32 - 1]),
        ("UINT64", [0, 2**64 - 1], [0, 2**64 - 1]),
        ("INT8", [-128, 127], [-128, 127]),
        ("INT16", [-(2**15), 2**15 - 1], [-(2**15), 2**15 - 1]),
        ("INT32", [-(2**31), 2**31 - 1], [-(2**31), 2**31 - 1]),
        ("INT64", [-(2**63), 2**63 - 1], [-(2**63), 2**63 - 1]),
        ("FP16", [1, 65504], [1.0, 65504.0]),
        ("FP32", [1, -0.5], [1.0, -0.5]),
        ("FP64", [0.1, 1e308], [0.1, 1e308]),
        ("BYTES", ["", "žluťoučký 🐎\u0000"], [b"", "žluťoučký 🐎\u0000".encode()]),
    ],
)
def test_limits_of_every_datatype_in_json(datatype, data, expected):
    array = array_of(request_of(data, [2], datatype))
    assert array.dtype == DTYPES[datatype]
    assert array.tolist() == expected


@pytest.mark.parametrize(
    ("datatype", "literal"),
    [
        ("UINT8", "256"), ("UINT8", "-1"), ("INT8", "200"), ("INT8", "-129"), ("UINT16", "65536"), ("INT16", "32768"),
        ("UINT32", "-1"), ("UINT32", "4294967296"), ("INT32", "2147483648"), ("INT64", "9223372036854775808"),
        ("UINT64", "18446744073709551616"), ("UINT64", "-1"), ("INT64", "1" + "0" * 40), ("INT32", "1.5"),
        ("INT32", "1.0"), ("INT32", "1e2"), ("INT32", "true"), ("INT64", '"7"'), ("INT64", "null"), ("BOOL", "2"),
        ("BOOL", "1"), ("BOOL", '"true"'), ("BOOL", "null"), ("FP32", "1e39"), ("FP32", "-3.5e38"), ("FP16", "65520"),
        ("FP32", '"1"'), ("FP32", "true"), ("FP32", "null"), ("FP64", "1e999"), ("FP32", "{}"), ("BYTES", "1"),
        ("BYTES", "null"), ("BYTES", "true"), ("FP32", "[1.0]"),
    ],
)  # fmt: skip
def test_nothing_wraps_or_is_converted(datatype, literal):
    body = b'{"inputs":[{"name":"x","shape":[2],"datatype":"%s","data":[%s,%s]}]}'
    good = {"BOOL": "true", "BYTES": '"a"'}.get(datatype, "1")
    text = refuse(body % (datatype.encode(), good.encode(), literal.encode()), "'x'", "[1]", datatype)
    assert literal.strip('"')[:20].lower() in text.lower() or float(literal) == float(re.search(r"is (\S+),", text)[1])


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_literals_that_are_not_json_name_the_input(literal):
    body = b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":[1,%s]}]}' % literal.encode()
    refuse(body, "'x'", "data[1]", literal, "FP32", "binary")
    refuse(body.replace(b"data", b"dat\\u0061x"), "byte")


@pytest.mark.parametrize("value", [1e-45, 6e-7, 3.4e38, -0.0, 1.1754942e-38, 0.1])
def test_small_and_large_floats_arrive_exactly(value):
    array = array_of(request_of([value]))
    assert array.tobytes() == np.array([value], np.float32).tobytes()


@pytest.mark.parametrize(
    ("data", "shape"),
    [
        ([1, 2, 3, 4, 5, 6], [1, 2, 3]),
        ([[[1, 2, 3], [4, 5, 6]]], [1, 2, 3]),
        ([[1], [2], [3]], [3, 1]),
        ([[1, 2, 3]], [1, 3]),
        ([[[[7]]]], [1, 1, 1, 1]),
        ([], [0]),
        ([], [0, 3]),
        ([[], []], [2, 0]),
        ([], [2, 0]),
        ([[], []], [2, 0, 3]),
    ],
)
def test_flat_and_nested_lists(data, shape):
    for datatype, convert in (("INT32", int), ("FP64", float), ("BYTES", str), ("BOOL", bool)):
        converted = json.loads(json.dumps(data), parse_int=lambda text, convert=convert: convert(int(text)))
        array = array_of(request_of(converted, shape, datatype))
        assert array.shape == tuple(shape)
        flat = np.array(data, dtype=object).reshape(-1)
        assert array.reshape(-1).tolist() == [str(v).encode() if datatype == "BYTES" else convert(v) for v in flat]


@pytest.mark.parametrize(
    ("data", "shape", "words"),
    [
        ([1, 2, 3], [2, 2], ["3 elements", "[2, 2]", "4"]),
        ([1], [2], ["1 elements", "[2]", "2"]),
        ([[1, 2], [3]], [2, 2], ["list 1", "1 elements", "expected 2"]),
        ([[1, 2], [3, 4]], [4, 1], ["2 lists", "4"]),
        ([[1, 2], [3, 4]], [1, 4], ["2 lists", "1"]),
        ([[1, 2], [3, 4]], [4], ["[0]", "[1, 2]"]),
        ([[1, 2], 3], [2, 2], ["data[1]", "3", "nested"]),
        ([1, [2]], [2], ["data[1]", "[2]"]),
        ([[[1], [2]]], [1, 2], ["[0][0]", "[1]"]),
        ([[1, 2]], [1, 2, 1], ["[0][0]", "1", "nested"]),
        ([[1, None]], [1, 2], ["[0][1]", "null"]),
        ([[], [1]], [2, 0], ["list 1", "expected 0"]),
        ([1], [0], ["1 elements", "0"]),
        ({"a": 1}, [1], ["list", '{"a": 1}']),
        (None, [1], ["list", "null"]),
        (1.5, [1], ["list", "1.5"]),
        ("abc", [1], ["list", "abc"]),
    ],
)
def test_lists_that_do_not_agree_with_the_shape(data, shape, words):
    refuse(request_of(data, shape), "'x'", *words)


@pytest.mark.parametrize(
    "shape",
    ["-1", "x", None, {}, 3, ["-1"], [None], [1.5], [1.0], [True], [[1]], [{}], [-1], [1, -2], [2**63], [10**30]],
)
def test_shapes_of_the_wrong_kind(shape):
    text = refuse(request_of([1.0], shape), "'x'", "shape")
    assert json.dumps(shape[-1] if isinstance(shape, list) else shape) in text


@pytest.mark.parametrize(
    ("shape", "word"),
    [
        ([], "row"),
        ([1] * 17, "16"),
        ([2**31, 2**31], "elements"),
        ([2**32, 2**32, 0], "empty"),
        ([2**20] * 16, "elements"),
        ([10**9, 0], "empty"),
    ],
)
def test_shapes_that_no_body_can_fill(shape, word):
    refuse(request_of([1.0], shape), "'x'", word)
    refuse(request_of(shape=shape, parameters={"binary_data_size": 0}), "'x'", header_length=None)
    binary = request_of(shape=shape, parameters={"binary_data_size": 4})
    refuse(binary + b"abcd", "'x'", word, header_length=len(binary))


def test_a_large_shape_is_refused_by_the_data_that_is_there():
    refuse(request_of([1.0], [1 << 39]), "1 elements", str(1 << 39))
    for datatype in ("FP32", "BYTES", "BOOL"):
        binary = request_of(shape=[1 << 39], datatype=datatype, parameters={"binary_data_size": 8})
        refuse(binary + bytes(8), "'x'", str(1 << 39), header_length=len(binary))


@pytest.mark.parametrize("datatype", ["FLOAT", "fp32", "", "STRING", "FP8"])
def test_unknown_datatypes_are_listed(datatype):
    refuse(request_of([1], datatype=datatype), "'x'", repr(datatype), "FP32", "BYTES")


def test_bf16_in_json_says_use_binary():
    refuse(request_of([1.0], datatype="BF16"), "'x'", "BF16", "binary")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", ["byte 0"]),
        (b"   ", ["byte 3"]),
        (b"{", ["byte 1"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1.0]}]', ["ends too early"]),
        (b'{"inputs":[{"name":,}]}', ["byte 19"]),
        (b'{"inputs":[]}x', ["byte 14", "trailing"]),
        (b"[]", ["object", "array"]),
        (b"3", ["object", "int"]),
        (b"null", ["object", "null"]),
        (b'"x"', ["object", "str"]),
        (b"{}", ["inputs", "missing"]),
        (b'{"inputs":[]}', ["inputs", "list of 0"]),
        (b'{"inputs":{}}', ["inputs", "array", "object"]),
        (b'{"inputs":null}', ["inputs", "array", "null"]),
        (b'{"inputs":[1]}', ["number 0", "object", "int"]),
        (b'{"inputs":[{"shape":[1],"datatype":"FP32","data":[1]}]}', ["name"]),
        (b'{"inputs":[{"name":"x","datatype":"FP32","data":[1]}]}', ["'x'", "shape"]),
        (b'{"inputs":[{"name":"x","shape":[1],"data":[1]}]}', ["'x'", "datatype"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32"}]}', ["'x'", "data", "binary_data_size"]),
        (b'{"inputs":[{"name":5,"shape":[1],"datatype":"FP32","data":[1]}]}', ["name", "str", "5"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":7,"data":[1]}]}', ["'x'", "datatype", "7"]),
        (b'\xff{"inputs":[]}', ["byte 0"]),
        (b'{"inputs":[{"name":"\xff\xfe","shape":[1],"datatype":"FP32","data":[1]}]}', ["UTF-8", "byte 20"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"BYTES","data":["\xff"]}]}', ["'x'", "UTF-8"]),
        (b'{"inputs":[{"name":"\\ud800","shape":[1],"datatype":"FP32","data":[1]}]}', ["escape"]),
        (b'{"inputs":' + b"[" * 100_000, ["number 0", "object", "array"]),
        (b'{"other":' + b"[" * 100_000, ["deep"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 100_000, ["deep"]),
        (b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":' + b"[" * 500 + b"]" * 500 + b"}]}", ["'x'"]),
    ],
)
def test_malformed_bodies_are_refused_with_a_place(body, words):
    refuse(body, *words)


def test_long_client_text_is_not_echoed_whole():
    assert len(refuse(request_of([1, 2], name="n" * 100_000))) < 400
    assert len(refuse(request_of(["v" * 100_000]))) < 400
    assert len(refuse(request_of([1], datatype="D" * 100_000))) < 400


def test_faults_in_bodies_too_long_to_open_are_still_refused():
    padding = {"padding": "p" * (1 << 20)}
    refuse(request_of([1], [-1], **padding), "number 0", "shape")
    refuse(request_of([1], **padding, parameters=3), "number 0", "parameters")


def test_duplicate_keys_last_wins():
    body = b'{"inputs":[],"inputs":[{"name":"x","shape":[9],"shape":[1],"datatype":"FP32","data":[1]}]}'
    assert array_of(body).tolist() == [1.0]


def test_unknown_fields_and_parameters_are_ignored():
    body = request_of([1.0], parameters={"classification": 3}, extra={"a": [None]})
    assert array_of(body).tolist() == [1.0]
    body = msgspec.json.encode({**msgspec.json.decode(body), "parameters": {"sequence_id": 5, "custom": {"a": "b"}}})
    assert array_of(body).tolist() == [1.0]


def test_null_stands_for_left_out_in_optional_fields():
    request = decode_infer(request_of([1.0], parameters=None, id=None, outputs=None, **{"unknown": None}), None)
    assert (request.id, request.outputs) == ("", None)


@pytest.mark.parametrize("given", ["", "a", "ž" * 5000, "i" * 10_240])
def test_ids_are_kept(given):
    assert decode_infer(request_of([1], id=given), None).id == given


@pytest.mark.parametrize("given", [1, True, ["a"], {"a": 1}, "i" * 10_241])
def test_ids_that_are_refused(given):
    refuse(request_of([1], id=given), "id", "10240")


def with_parameters(**parameters) -> bytes:
    return json.dumps({**json.loads(request_of([1])), "parameters": parameters}).encode()


@pytest.mark.parametrize(("timeout", "timeout_s"), [(0, None), (1, 1e-6), (1_500_000, 1.5), (86_400_000_000, 86_400.0)])
def test_timeouts(timeout, timeout_s):
    assert decode_infer(with_parameters(timeout=timeout), None).timeout_s == timeout_s


@pytest.mark.parametrize("timeout", [-1, 1.5, 1.0, True, "5", None, [1], 86_400_000_001, 10**30])
def test_timeouts_that_are_refused(timeout):
    refuse(with_parameters(timeout=timeout), "parameters.timeout", "microseconds", json.dumps(timeout))


@pytest.mark.parametrize(("priority", "expected"), [(0, None), (1, 1), (9, 9)])
def test_priorities(priority, expected):
    assert decode_infer(with_parameters(priority=priority), None).priority == expected


@pytest.mark.parametrize("priority", [-1, 10, 1.5, True, "1", None])
def test_priorities_that_are_refused(priority):
    refuse(with_parameters(priority=priority), "parameters.priority", "9", json.dumps(priority))


def test_parameters_of_the_wrong_kind():
    refuse(request_of([1]).replace(b"}]}", b'}],"parameters":[]}'), "parameters", "object", "[]")
    refuse(with_parameters(binary_data_output=1), "binary_data_output", "bool", "1")
    refuse(request_of([1], parameters="p"), "'x'", "parameters")


def test_outputs_and_their_forms():
    outputs = [{"name": "a"}, {"name": "b", "parameters": {"binary_data": True}}, {"name": "c", "parameters": {}}]
    request = decode_infer(request_of([1], outputs=outputs), None)
    assert request.outputs == (WantedOutput("a"), WantedOutput("b", True), WantedOutput("c"))
    outputs[0]["parameters"] = {"binary_data": False}
    body = json.loads(request_of([1], outputs=outputs)) | {"parameters": {"binary_data_output": True}}
    request = decode_infer(json.dumps(body).encode(), None)
    assert request.outputs == (WantedOutput("a", False), WantedOutput("b", True), WantedOutput("c", True))
    assert request.binary


def test_too_many_tensors():
    tensor = {"name": "x", "shape": [1], "datatype": "FP32", "data": [1]}
    refuse(json.dumps({"inputs": [tensor] * 1025}).encode(), "inputs", "1024", "1025")
    refuse(request_of([1], outputs=[{"name": "y"}] * 1025), "outputs", "1024", "1025")


def test_empty_outputs_are_all_outputs():
    assert decode_infer(request_of([1], outputs=[]), None).outputs is None


@pytest.mark.parametrize(
    "outputs", [{}, "y", ["y"], [{}], [{"name": 1}], [{"name": "y", "parameters": {"binary_data": 1}}], [None]]
)
def test_outputs_of_the_wrong_kind(outputs):
    refuse(request_of([1], outputs=outputs), "output")
