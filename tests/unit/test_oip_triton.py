"""Bytes made and read by the real tritonclient, offline."""

import numpy as np
import pytest
from test_oip_roundtrip import flatten

from hybrid.messages import DTYPES, InferResponse, Tensor, WantedOutput
from hybrid.protocol import oip

http = pytest.importorskip("tritonclient.http")

ARRAYS = {
    "BOOL": np.array([[True, False]]),
    "BYTES": np.array([[b"plain", 'ž \\ "'.encode()]], object),
    **{key: np.array([[1, 2]], DTYPES[key]) for key in DTYPES if key.startswith(("UINT", "INT", "FP"))},
}


def triton_input(name: str, datatype: str, array: np.ndarray, binary: bool) -> "http.InferInput":
    tensor = http.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_requests_of_tritonclient(datatype, binary):
    inputs = [triton_input("žx", datatype, ARRAYS[datatype], binary)]
    request = oip.decode_infer(*http.InferenceServerClient.generate_request_body(inputs))
    (tensor,) = request.inputs
    assert (tensor.name, tensor.datatype, tensor.array.dtype) == ("žx", datatype, DTYPES[datatype])
    assert tensor.array.tolist() == ARRAYS[datatype].tolist()
    assert (request.outputs, request.binary) == (None, True)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
def test_options_of_tritonclient(binary):
    inputs = [
        triton_input("a", "FP32", np.ones((2, 3), np.float32), binary),
        triton_input("b", "INT64", np.arange(2).reshape(2, 1), not binary),
        triton_input("c", "BYTES", np.empty((0, 1), object), True),
    ]
    outputs = [
        http.InferRequestedOutput("y", binary_data=binary),
        http.InferRequestedOutput("z", binary_data=not binary),
    ]
    body, length = http.InferenceServerClient.generate_request_body(
        inputs, outputs, request_id="id", priority=2, timeout=1_500_000, parameters={"own": "text"}
    )
    request = oip.decode_infer(body, length)
    assert [tensor.array.shape for tensor in request.inputs] == [(2, 3), (2, 1), (0, 1)]
    assert request.outputs == (WantedOutput("y", binary), WantedOutput("z", not binary))
    assert (request.id, request.priority, request.timeout_s) == ("id", 2, 1.5)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("datatype", ARRAYS)
def test_answers_read_by_tritonclient(datatype, binary):
    inputs = [triton_input("x", "FP32", np.ones((1, 1), np.float32), True)]
    wanted = [http.InferRequestedOutput("y", binary_data=binary), http.InferRequestedOutput("z", binary_data=True)]
    request = oip.decode_infer(*http.InferenceServerClient.generate_request_body(inputs, wanted))
    empty = Tensor("z", "FP32", np.empty((1, 0), np.float32))
    response = InferResponse("m", "1", (empty, Tensor("y", datatype, ARRAYS[datatype])), id="i")
    body, length = flatten(oip.encode_infer(response, request))
    result = http.InferenceServerClient.parse_response_body(body, header_length=length)
    read = result.as_numpy("y")
    expected = ARRAYS[datatype].tolist()
    if datatype == "BYTES" and not binary:  # tritonclient leaves JSON strings as they are
        expected = [[element.decode() for element in row] for row in expected]
    assert read.tolist() == expected
    assert result.as_numpy("z").shape == (1, 0)
    assert result.get_response()["id"] == "i"


def test_bf16_answers_read_by_tritonclient():
    request = oip.decode_infer(*http.InferenceServerClient.generate_request_body(
        [triton_input("x", "FP32", np.ones((1, 1), np.float32), True)]
    ))  # fmt: skip
    response = InferResponse("m", "1", (Tensor("y", "BF16", np.array([[0x3F80, 0x4000]], np.uint16)),))
    body, length = flatten(oip.encode_infer(response, request))
    (output,) = http.InferenceServerClient.parse_response_body(body, header_length=length).get_response()["outputs"]
    assert (output["datatype"], output["parameters"]) == ("BF16", {"binary_data_size": 4})
