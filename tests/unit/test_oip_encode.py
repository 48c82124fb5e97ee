"""`encode_infer` and the bodies without tensors."""

import json
import re

import numpy as np
import pytest

from hybrid.errors import BadRequest, HybridError, OutputInvalid, QueueFull
from hybrid.messages import InferRequest, InferResponse, Signature, Tensor, TensorSpec, Timings, WantedOutput
from hybrid.protocol import oip


def fp32(name: str, values) -> Tensor:
    return Tensor(name, "FP32", np.array(values, np.float32))


def response_of(*outputs: Tensor, **fields) -> InferResponse:
    return InferResponse("m", "7", outputs, **fields)


def request_of(outputs=None, binary=False) -> InferRequest:
    return InferRequest((), outputs=outputs, binary=binary)


def strict_json(text: bytes):
    def refuse(literal):
        raise AssertionError(f"{literal} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_json_answer():
    timings = Timings(parse=1e-6, preprocess=2e-6, queue=3e-3, copy=4e-6, compute=5e-3, post=6e-6)
    response = response_of(fp32("y", [[1.0, -2.5]]), id='a"ž', timings=timings, batch_rows=8)
    encoded = oip.encode_infer(response, request_of())
    assert encoded.content_type == b"application/json"
    body = strict_json(encoded.body)
    assert body["parameters"].pop("timings_us").keys() == set(Timings.__struct_fields__)
    assert body == {
        "model_name": "m",
        "model_version": "7",
        "id": 'a"ž',
        "parameters": {"batch_rows": 8},
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [1.0, -2.5]}],
    }


def test_rows_that_were_preprocessed_more_coarsely_are_told():
    body = strict_json(oip.encode_infer(response_of(fp32("y", [1.0]), batch_rows=8, downgraded=3), request_of()).body)
    assert (body["parameters"]["downgraded"], body["parameters"]["batch_rows"]) == (3, 8)


def test_stage_times_in_body_and_header():
    stages = dict(zip(Timings.__struct_fields__, (1e-6, 2e-6, 3e-3, 4e-6, 5e-3, 6e-6, 7.0), strict=True))
    encoded = oip.encode_infer(response_of(fp32("y", [1])), request_of())
    assert 0 < strict_json(encoded.body)["parameters"]["timings_us"]["serialise"] < 1e6
    encoded = oip.encode_infer(response_of(fp32("y", [1]), timings=Timings(**stages)), request_of())
    times = strict_json(encoded.body)["parameters"]["timings_us"]
    assert times.pop("serialise") >= 7e6
    assert times == {stage: pytest.approx(1e6 * s) for stage, s in stages.items() if stage != "serialise"}
    assert encoded.extra.startswith(b"Server-Timing: ")
    assert encoded.extra.endswith(b"\r\n")
    shown = {name: float(ms) for name, ms in re.findall(r"(\w+);dur=([\d.]+)", encoded.extra.decode())}
    assert list(shown) == list(Timings.__struct_fields__)
    assert shown["queue"] == 3.0
    assert shown["serialise"] >= 7000


def test_id_is_left_out_when_not_given():
    assert "id" not in strict_json(oip.encode_infer(response_of(fp32("y", [1])), request_of()).body)


@pytest.mark.parametrize("outputs", [["a"], ["b"], ["b", "a"], ["a", "b"]])
def test_only_wanted_outputs_in_the_order_asked(outputs):
    response = response_of(fp32("a", [1]), fp32("b", [2]))
    encoded = oip.encode_infer(response, request_of(tuple(map(WantedOutput, outputs))))
    body = strict_json(encoded.body)
    assert [output["name"] for output in body["outputs"]] == outputs
    assert [output["data"] for output in body["outputs"]] == [[1.0 if name == "a" else 2.0] for name in outputs]


def test_two_requests_keep_their_own_outputs():
    response = response_of(fp32("one", [1]), fp32("two", [2]))
    for name in ("one", "two"):
        body = strict_json(oip.encode_infer(response, request_of((WantedOutput(name),))).body)
        assert [output["name"] for output in body["outputs"]] == [name]


def test_an_output_that_the_model_did_not_return():
    with pytest.raises(OutputInvalid, match="'b'"):
        oip.encode_infer(response_of(fp32("a", [1])), request_of((WantedOutput("b"),)))


def test_binary_answer_is_views_and_says_its_lengths():
    a, b = fp32("a", [[1, 2], [3, 4]]), Tensor("b", "INT8", np.array([5, 6], np.int8))
    encoded = oip.encode_infer(response_of(a, b), request_of(binary=True))
    text, *payloads = encoded.body
    assert [bytes(payload) for payload in payloads] == [a.array.tobytes(), b"\5\6"]
    assert np.shares_memory(np.frombuffer(payloads[0], np.uint8), a.array)
    assert encoded.content_type == b"application/octet-stream"
    assert b"\r\nInference-Header-Content-Length: %d\r\n" % len(text) in b"\r\n" + encoded.extra
    sizes = [output["parameters"]["binary_data_size"] for output in strict_json(text)["outputs"]]
    assert sizes == [16, 2]
    assert all("data" not in output for output in strict_json(text)["outputs"])


def test_json_and_binary_outputs_in_one_answer():
    response = response_of(fp32("a", [1]), fp32("b", [2]))
    encoded = oip.encode_infer(response, request_of((WantedOutput("b", True), WantedOutput("a"))))
    text, payload = encoded.body
    b, a = strict_json(text)["outputs"]
    assert (b["parameters"], a["data"], bytes(payload)) == ({"binary_data_size": 4}, [1.0], np.float32(2).tobytes())


def test_no_header_length_without_binary():
    assert b"Inference-Header" not in oip.encode_infer(response_of(fp32("y", [1])), request_of()).extra


def test_arrays_that_are_not_contiguous():
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    expected = [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]
    response = response_of(Tensor("y", "FP32", array))
    assert strict_json(oip.encode_infer(response, request_of()).body)["outputs"][0]["data"] == expected
    _, payload = oip.encode_infer(response, request_of(binary=True)).body
    assert np.frombuffer(payload, np.float32).tolist() == expected


@pytest.mark.parametrize("datatype", ["FP16", "FP32", "FP64"])
def test_floats_read_back_exactly(datatype):
    dtype = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}[datatype]
    limits = np.finfo(dtype)
    array = np.array([6e-7, -0.0, 0.1, limits.max, limits.min, limits.smallest_subnormal, 1 / 3], dtype)
    body = strict_json(oip.encode_infer(response_of(Tensor("y", datatype, array)), request_of()).body)
    assert np.array(body["outputs"][0]["data"], dtype).tobytes() == array.tobytes()


def test_extreme_floats_of_the_field_reports():
    array = np.array([6e-7, 1e-45, 3.4e38, -0.0], np.float32)
    data = strict_json(oip.encode_infer(response_of(Tensor("y", "FP32", array)), request_of()).body)["outputs"][0][
        "data"
    ]
    assert np.array(data, np.float32).tobytes() == array.tobytes()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_outputs(bad):
    response = response_of(fp32("fine", [1]), fp32("y", [[1, 2], [3, bad]]), finite=False)
    with pytest.raises(OutputInvalid) as caught:
        oip.encode_infer(response, request_of())
    for word in ("'y'", "[1, 1]", str(bad), "binary"):
        assert word in str(caught.value)
    body = strict_json(oip.encode_infer(response, request_of(), nonfinite="null").body)
    assert body["outputs"][1]["data"] == [1.0, 2.0, 3.0, None]
    assert strict_json(oip.encode_infer(response, request_of((WantedOutput("fine"),))).body)["outputs"][0]["data"] == [
        1.0
    ]
    _, _, payload = oip.encode_infer(response, request_of(binary=True)).body
    assert bytes(payload) == response.outputs[1].array.tobytes()


def test_a_wrong_finite_flag_still_gives_valid_json():
    assert strict_json(oip.encode_infer(response_of(fp32("y", [np.nan])), request_of()).body)["outputs"][0]["data"] == [
        None
    ]


def test_bytes_outputs():
    texts = Tensor("t", "BYTES", np.array([b"", "ž".encode()], object))
    assert strict_json(oip.encode_infer(response_of(texts), request_of()).body)["outputs"][0]["data"] == ["", "ž"]
    raw = Tensor("t", "BYTES", np.array([b"ok", b"\xff\0"], object))
    with pytest.raises(OutputInvalid, match=r"'t'.*element 1.*binary"):
        oip.encode_infer(response_of(raw), request_of())
    _, payload = oip.encode_infer(response_of(raw), request_of(binary=True)).body
    assert payload == b"\2\0\0\0ok\2\0\0\0\xff\0"


def test_bf16_outputs_have_only_the_binary_form():
    bits = Tensor("h", "BF16", np.array([0x3F80], np.uint16))
    with pytest.raises(OutputInvalid, match=r"'h'.*BF16.*binary"):
        oip.encode_infer(response_of(bits), request_of())
    assert bytes(oip.encode_infer(response_of(bits), request_of(binary=True)).body[1]) == b"\x80\x3f"


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
@pytest.mark.parametrize("datatype", ["FP32", "BYTES", "BOOL"])
def test_outputs_without_elements(shape, datatype):
    dtype = {"FP32": np.float32, "BYTES": object, "BOOL": bool}[datatype]
    response = response_of(Tensor("y", datatype, np.empty(shape, dtype)), finite=False)
    (output,) = strict_json(oip.encode_infer(response, request_of()).body)["outputs"]
    assert (output["shape"], output["data"]) == (list(shape), [])
    assert bytes(oip.encode_infer(response, request_of(binary=True)).body[1]) == b""


def test_no_outputs_at_all():
    assert strict_json(oip.encode_infer(response_of(), request_of()).body)["outputs"] == []


def test_names_are_escaped_and_percent_signs_are_text():
    response = InferResponse('m"%d', "%s", (fp32('y"%d\n', [1]),), id="%d")
    body = strict_json(oip.encode_infer(response, request_of()).body)
    assert (body["model_name"], body["model_version"], body["id"]) == ('m"%d', "%s", "%d")
    assert body["outputs"][0]["name"] == 'y"%d\n'
    text, _ = oip.encode_infer(response, request_of(binary=True)).body
    assert strict_json(text)["outputs"][0]["name"] == 'y"%d\n'


def test_encode_error():
    assert strict_json(oip.encode_error(BadRequest("input 'x'"))) == {"error": "input 'x'", "code": "bad_request"}
    assert strict_json(oip.encode_error(QueueFull("full"))) == {"error": "full", "code": "queue_full"}
    assert strict_json(oip.encode_error(HybridError()))["error"] == "hybrid_error"
    assert "udcff" in strict_json(oip.encode_error(BadRequest("file \udcff")))["error"]


def test_metadata():
    inputs = (TensorSpec("x", "FP32", (-1, 3)),)
    signature = Signature(inputs, (TensorSpec("y", "BYTES", (-1,)),), "onnxruntime_onnx")
    assert strict_json(oip.encode_metadata("m", ("1", "2"), signature)) == {
        "name": "m",
        "versions": ["1", "2"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}],
        "outputs": [{"name": "y", "datatype": "BYTES", "shape": [-1]}],
    }


def test_server_metadata_index_and_health():
    server = strict_json(oip.encode_server_metadata("hybrid", "0.1.0", ("binary_tensor_data",)))
    assert server == {"name": "hybrid", "version": "0.1.0", "extensions": ["binary_tensor_data"]}
    entry = {"name": "m", "version": "1", "state": "READY", "reason": ""}
    assert strict_json(oip.encode_index([oip.IndexEntry("m", "1", "READY")])) == [entry]
    assert strict_json(oip.encode_live(True)) == {"live": True}
    assert strict_json(oip.encode_ready(False)) == {"ready": False}
    assert strict_json(oip.encode_model_ready("m", True)) == {"name": "m", "ready": True}
