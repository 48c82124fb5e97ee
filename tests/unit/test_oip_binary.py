"""The binary tensor extension inwards: sizes that add up, and all those that do not."""

import json
import struct

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.messages import DTYPES
from hybrid.protocol.oip import decode_infer


def binary_request(*inputs, tail: bytes = b"", **fields) -> tuple[bytes, int]:
    """Each input is (name, datatype, shape, payload) or with the size that is claimed as a fifth item."""
    tensors = []
    for name, datatype, shape, payload, *claimed in inputs:
        size = claimed[0] if claimed else len(payload)
        parameters = {"binary_data_size": size}
        tensors.append({"name": name, "datatype": datatype, "shape": shape, "parameters": parameters})
    text = json.dumps({"inputs": tensors, **fields}, ensure_ascii=False).encode()
    return text + b"".join(item[3] for item in inputs) + tail, len(text)


def refuse(request: tuple[bytes, int | None], *words: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_infer(*request)
    for word in words:
        assert word in str(caught.value)


def prefixed(*elements: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(element)) + element for element in elements)


@pytest.mark.parametrize("datatype", sorted(set(DTYPES) - {"BYTES", "BOOL"}))
def test_fixed_size_datatypes_are_views_of_the_body(datatype):
    payload = bytes(range(6 * DTYPES[datatype].itemsize))
    body, length = binary_request(("x", datatype, [2, 3], payload))
    (tensor,) = decode_infer(body, length).inputs
    assert tensor.array.dtype == DTYPES[datatype]
    assert tensor.array.shape == (2, 3)
    assert tensor.array.tobytes() == payload
    assert np.shares_memory(tensor.array, np.frombuffer(body, np.uint8))
    assert not tensor.array.flags.writeable


def test_bool_is_a_view_too():
    body, length = binary_request(("x", "BOOL", [3], b"\0\1\1"))
    (tensor,) = decode_infer(body, length).inputs
    assert tensor.array.tolist() == [False, True, True]
    assert np.shares_memory(tensor.array, np.frombuffer(body, np.uint8))


def test_bool_bytes_other_than_0_and_1():
    refuse(binary_request(("x", "BOOL", [2, 2], b"\0\1\2\1")), "'x'", "element 2", "2", "BOOL")


def test_non_finite_floats_travel():
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45], np.float32)
    body, length = binary_request(("x", "FP32", [5], values.tobytes()))
    assert decode_infer(body, length).inputs[0].array.tobytes() == values.tobytes()


def test_several_inputs_mixed_with_json():
    body, length = binary_request(("a", "INT8", [3], b"\1\2\3"), ("b", "FP64", [1], struct.pack("<d", 0.5)))
    wire = json.loads(body[:length])
    wire["inputs"].insert(1, {"name": "j", "datatype": "INT32", "shape": [1], "data": [7]})
    text = json.dumps(wire).encode()
    tensors = decode_infer(text + body[length:], len(text)).inputs
    assert [(tensor.name, tensor.array.tolist()) for tensor in tensors] == [("a", [1, 2, 3]), ("j", [7]), ("b", [0.5])]


def test_header_for_json_alone():
    body = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1]}]}'
    assert decode_infer(body, len(body)).inputs[0].array.tolist() == [1.0]


@pytest.mark.parametrize("shape", [[0], [2, 0], [0, 3]])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_tensors_without_elements(datatype, shape):
    body, length = binary_request(("x", datatype, shape, b""))
    assert decode_infer(body, length).inputs[0].array.shape == tuple(shape)
    refuse(binary_request(("x", datatype, shape, b"\0\0\0\0")), "'x'", "4")


@pytest.mark.parametrize(("claimed", "payload"), [(11, 12), (13, 12), (12, 11), (12, 13), (0, 12), (24, 24), (11, 11)])
def test_sizes_that_do_not_add_up(claimed, payload):
    request = binary_request(("x", "FP32", [3], bytes(payload), claimed))
    refuse(request, str(claimed), "12" if claimed != 12 else str(payload))


def test_two_inputs_whose_sum_differs_from_the_rest():
    refuse(binary_request(("a", "INT8", [2], b"ab"), ("b", "INT8", [2], b"c", 2)), "'b'", "2", "1 bytes")
    refuse(binary_request(("a", "INT8", [2], b"ab"), tail=b"zz"), "inputs", "2 bytes", "4 bytes")


@pytest.mark.parametrize("size", [-1, 1.0, "4", True, [4]])
def test_sizes_of_the_wrong_kind(size):
    refuse(binary_request(("x", "FP32", [1], bytes(4), size)), "'x'", "binary_data_size", json.dumps(size))


def test_size_over_all_limits():
    refuse(binary_request(("x", "FP32", [1], bytes(4), 10**18)), "'x'", str(10**18), "4 bytes")


def test_header_missing():
    body, _ = binary_request(("x", "FP32", [1], bytes(4)))
    refuse((body, None), "byte")
    body, length = binary_request(("x", "FP32", [0], b""))
    refuse((body[:length], None), "'x'", "Inference-Header-Content-Length")


@pytest.mark.parametrize("header_length", [-1, 10_000])
def test_header_beyond_the_body(header_length):
    body, _ = binary_request(("x", "FP32", [1], bytes(4)))
    refuse((body, header_length), "Inference-Header-Content-Length", str(header_length), str(len(body)))


@pytest.mark.parametrize("off_by", [-2, -1, 1, 3])
def test_header_that_is_a_little_off(off_by):
    body, length = binary_request(("x", "FP32", [1], bytes(4)))
    refuse((body, length + off_by), "Inference-Header-Content-Length", str(length + off_by))
    refuse((body, 0), "Inference-Header-Content-Length")


def test_header_counted_in_characters():
    body, length = binary_request(("žluťoučký", "FP32", [1], bytes(4)))
    characters = len(body[:length].decode())
    assert characters < length
    refuse((body, characters), "Inference-Header-Content-Length", "not characters")
    assert decode_infer(body, length).inputs[0].name == "žluťoučký"


def test_both_data_and_binary():
    text = b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":[1],"parameters":{"binary_data_size":4}}]}'
    refuse((text + bytes(4), len(text)), "'x'", "both")


def test_bytes_elements():
    elements = [b"", b"a\0b", bytes(range(256)), "ž".encode()]
    body, length = binary_request(("x", "BYTES", [2, 2], prefixed(*elements)))
    array = decode_infer(body, length).inputs[0].array
    assert array.shape == (2, 2)
    assert array.reshape(-1).tolist() == elements


@pytest.mark.parametrize(
    ("shape", "payload", "words"),
    [
        ([1], b"abc", ["element 0", "prefix"]),
        ([2], prefixed(b"abcd"), ["element 1", "prefix"]),
        ([2], prefixed(b"abcd") + b"\1\0", ["element 1", "prefix", "2 bytes"]),
        ([1], b"\xff\xff\xff\xff", ["element 0", "4294967295", "0 bytes"]),
        ([2], prefixed(b"a") + b"\xff\xff\xff\xffabc", ["element 1", "4294967295", "3 bytes"]),
        ([2], prefixed(b"a") + b"\5\0\0\0abc", ["element 1", "5", "3 bytes"]),
        ([1], prefixed(b"a") + b"z", ["1 bytes left over", "element 0"]),
        ([1], prefixed(b"a", b"b"), ["5 bytes left over"]),
        ([1], b"no prefix here", ["element 0"]),
        ([1000], prefixed(b"abcd"), ["element 2", "1000"]),
    ],
)
def test_bytes_without_right_prefixes(shape, payload, words):
    refuse(binary_request(("x", "BYTES", shape, payload)), "'x'", *words)


def test_bytes_cannot_reach_into_the_next_input():
    first = b"\6\0\0\0abc"
    refuse(binary_request(("a", "BYTES", [1], first), ("b", "BYTES", [1], prefixed(b"secret"))), "'a'", "element 0")
