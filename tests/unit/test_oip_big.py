"""Long JSON lists, which are read piece by piece: same results and refusals as short ones, and bounded memory."""

import json
import tracemalloc

import numpy as np
import pytest

from hybrid.errors import BadRequest
from hybrid.protocol import oip, tensors_json

PIECE_BYTES = 64


@pytest.fixture
def small_pieces(monkeypatch):
    """Make every list long, so that the piecewise reader meets small cases."""
    monkeypatch.setattr(tensors_json, "BIG_BYTES", 0)
    monkeypatch.setattr(tensors_json, "_PIECE_BYTES", PIECE_BYTES)


def decode(data: str, shape, datatype="FP32") -> np.ndarray:
    tensor = f'{{"name":"x","shape":{json.dumps(shape)},"datatype":"{datatype}","data":{data}}}'
    return oip.decode_infer(f'{{"inputs":[{tensor}]}}'.encode(), None).inputs[0].array


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("shape", "datatype"),
    [([0], "FP32"), ([1], "FP32"), ([3], "INT8"), ([500], "FP64"), ([50, 10], "UINT16"), ([2, 3, 4], "BOOL"),
     ([1, 1, 1, 1, 40], "FP16"), ([40, 1, 1], "INT64"), ([2, 0], "FP32"), ([2, 0, 3], "INT8"), ([0, 3], "UINT8")],
)  # fmt: skip
def test_piecewise_reads_the_same(shape, datatype):
    array = np.arange(np.prod(shape)).reshape(shape) % 7
    array = array > 3 if datatype == "BOOL" else array / 4 if datatype.startswith("FP") else array
    for text in (
        json.dumps(array.tolist()),
        json.dumps(array.tolist(), indent=3),
        json.dumps(array.reshape(-1).tolist()),
    ):
        read = decode(text, shape, datatype)
        assert read.shape == tuple(shape)
        assert read.tolist() == array.tolist()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("data", "shape", "words"),
    [
        ("[1,2,3]", [2], ["3 elements", "2"]),
        ("[]", [2], ["elements", "2"]),
        ("[1]", [0], ["nested", "0 elements"]),
        ("[[1],[2]]", [2, 0], ["nested as shape [2, 0]"]),
        ("[[1,2],[3]]", [3, 1], ["nested as shape [3, 1]"]),
        ("[[1],[]]", [2, 1], ["FP32"]),
        ("[[],[1]]", [2, 1], ["FP32"]),
        ("[[1],[],[3]]", [3, 1], ["FP32"]),
        ("[1,[2]]", [2], ["nested"]),
        ("[1,null]", [2], ["data[1]", "null", "FP32"]),
        ("[1,true]", [2], ["data[1]", "true"]),
        ('[1,"2"]', [2], ["strings", "FP32"]),
        ("[1,{}]", [2], ["objects"]),
        ('["1,2"]', [2], ["strings"]),
        ('"1,2"', [2], ["list"]),
        ("{}", [1], ["list"]),
        ("null", [1], ["list", "null"]),
        (json.dumps([1.5] * 100 + [None]), [101], ["data[100]", "null"]),
        (json.dumps([1.5] * 100 + [1e39]), [101], ["data[100]", "1e39"]),
    ],
)
def test_piecewise_refuses_the_same(data, shape, words):
    with pytest.raises(BadRequest) as caught:
        decode(data, shape)
    for word in ("'x'", *words):
        assert word in str(caught.value)


@pytest.mark.usefixtures("small_pieces")
def test_piecewise_integers_do_not_wrap():
    with pytest.raises(BadRequest, match=r"data\[90\] is 256"):
        decode(json.dumps([7] * 90 + [256]), [91], "UINT8")


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True])
def test_memory_stays_near_the_size_of_the_body(nested):
    rows = 1_000_000
    data = ("[" + "[0]," * (rows - 1) + "[0]]") if nested else ("[" + "0," * (rows - 1) + "0]")
    body = f'{{"inputs":[{{"name":"x","shape":[{rows},1],"datatype":"FP32","data":{data}}}]}}'.encode()
    tracemalloc.start()
    array = oip.decode_infer(body, None).inputs[0].array
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert array.shape == (rows, 1)
    assert peak < 6 * len(body) + array.nbytes


def test_too_many_strings():
    body = b'{"inputs":[{"name":"x","shape":[2097152],"datatype":"BYTES","data":["a"]}]}'
    with pytest.raises(BadRequest, match=r"'x'.*2097152.*1048576"):
        oip.decode_infer(body, None)
    binary = b'{"inputs":[{"name":"x","shape":[2097152],"datatype":"BYTES","parameters":{"binary_data_size":8388608}}]}'
    with pytest.raises(BadRequest, match=r"'x'.*2097152.*1048576"):
        oip.decode_infer(binary + bytes(8388608), len(binary))


def test_malformed_bodies_too_long_for_a_second_look():
    data = b"[" + b"1," * 600_000 + b"NaN]"
    with pytest.raises(BadRequest, match=r"byte.*NaN"):
        oip.decode_infer(b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":%s}]}' % data, None)
    padding = b"p" * (1 << 20)
    with pytest.raises(BadRequest, match=r"parameters.timeout: expected microseconds"):
        oip.decode_infer(b'{"parameters":{"timeout":-1},"padding":"%s"}' % padding, None)


def test_a_lying_shape_allocates_nothing():
    body = b'{"inputs":[{"name":"x","shape":[1000000000,1,1,1],"datatype":"FP32","data":[%s0]}]}' % (b"0," * 600_000)
    binary = b'{"inputs":[{"name":"x","shape":[4000000000],"datatype":"BYTES","parameters":{"binary_data_size":8}}]}'
    tracemalloc.start()
    with pytest.raises(BadRequest):
        oip.decode_infer(binary + b"\xff" * 8, len(binary))
    with pytest.raises(BadRequest, match="600001 elements"):
        oip.decode_infer(body, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * len(body)
