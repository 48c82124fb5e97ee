"""Unmodified clients over gRPC: tritonclient here, KServe's SDK in a process of its own because their stubs collide."""

import importlib.util
import json
import queue
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from clients import folder
from server import Server
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

pytestmark = pytest.mark.slow

TEXT = "A man is playing the guitar."
LIMIT = 16_000_000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    faulty = folder(tmp_path_factory.mktemp("models"), "faulty", simulated="faults = true")
    with Server("minilm", "simulated:null", faulty, config=f"[server.http]\nmax_body_bytes = {LIMIT}\n") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    with triton.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as made:
        yield made


def tensor(name: str, array: np.ndarray, datatype: str = "BYTES") -> triton.InferInput:
    made = triton.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text(*rows: str) -> list[triton.InferInput]:
    return [tensor("text", np.array(rows, object))]


def fp32(*shape: int) -> list[triton.InferInput]:
    return [tensor("x", np.arange(np.prod(shape), dtype=np.float32).reshape(shape), "FP32")]


def test_what_the_server_says_of_itself(server: Server, client: triton.InferenceServerClient):
    assert client.is_server_live()
    assert client.is_server_ready()
    metadata = client.get_server_metadata(as_json=True)
    assert (metadata["name"], metadata["version"]) == ("hybrid", server.get("/v2")[1]["version"])
    assert client.is_model_ready("minilm")
    assert client.is_model_ready("minilm", "1")
    index = client.get_model_repository_index(as_json=True)["models"]
    over_http = server.post("/v2/repository/index", {})[1]
    assert index == [{key: value for key, value in entry.items() if value} for entry in over_http]
    assert {entry["state"] for entry in index} == {"READY"}


@pytest.mark.parametrize("name", ["minilm", "null"])
def test_metadata_is_that_of_http(server: Server, client: triton.InferenceServerClient, name: str):
    over_grpc = client.get_model_metadata(name, as_json=True)
    over_http = server.get(f"/v2/models/{name}")[1]
    for spec in (*over_http["inputs"], *over_http["outputs"]):
        spec["shape"] = [str(size) for size in spec["shape"]]  # JSON of protobuf writes int64 so
    assert over_grpc == over_http


def test_text(server: Server, client: triton.InferenceServerClient):
    result = client.infer("minilm", text(TEXT, "Stocks fell sharply."), request_id="mine")
    vectors = result.as_numpy("embedding")
    assert (vectors.shape, vectors.dtype) == ((2, 384), np.float32)
    response = result.get_response()
    assert (response.id, response.model_name, response.model_version) == ("mine", "minilm", "1")
    assert response.parameters["timings_us.compute"].int64_param > 0
    assert response.parameters["batch_rows"].int64_param in (1, 2)  # one on each of two idle workers, or both on one
    body = {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [TEXT]}]}
    over_http = np.array(server.post("/v2/models/minilm/infer", body)[1]["outputs"][0]["data"], np.float32)
    assert vectors[0] @ over_http > 0.9999


def test_raw_tensors_skip_the_preprocess_step(client: triton.InferenceServerClient):
    ids = np.array([[101, 1037, 2158, 2003, 2652, 1996, 2858, 1012, 102]], np.int64)
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    vector = client.infer("minilm", [tensor(name, a, "INT64") for name, a in arrays.items()]).as_numpy("embedding")
    assert vector[0] @ client.infer("minilm", text(TEXT)).as_numpy("embedding")[0] > 0.9999


def test_versions_and_outputs_can_be_named(client: triton.InferenceServerClient):
    outputs = [triton.InferRequestedOutput("y")]
    result = client.infer("null", fp32(2, 3), model_version="1", outputs=outputs, priority=2, timeout=5_000_000)
    np.testing.assert_array_equal(result.as_numpy("y"), np.arange(6, dtype=np.float32).reshape(2, 3))


def test_async_calls_keep_their_rows(client: triton.InferenceServerClient):
    answers: queue.Queue[tuple[int, list]] = queue.Queue()

    def keep(number: int, result: triton.InferResult | None, error: Exception | None) -> None:
        answers.put((number, [] if result is None else result.as_numpy("y").tolist()))

    for number in range(200):
        given = [tensor("x", np.full((1, 2), number, np.float32), "FP32")]
        client.async_infer("null", given, partial(keep, number))
    found = dict(answers.get(timeout=20) for _ in range(200))
    assert found == {number: [[number, number]] for number in range(200)}


def test_typed_contents(server: Server):
    request = pb.ModelInferRequest(model_name="minilm")
    item = request.inputs.add(name="text", datatype="BYTES", shape=[1])
    item.contents.bytes_contents.append(TEXT.encode())
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        response = call(request)
        assert list(response.outputs[0].shape) == [1, 384]
        assert len(response.raw_output_contents[0]) == 4 * 384
        request.raw_input_contents.append(b"")
        with pytest.raises(grpc.RpcError, match="both contents and raw_input_contents"):
            call(request)


@pytest.mark.parametrize(
    ("model", "inputs", "more", "status", "message"),
    [
        ("MiniLM", text(TEXT), {}, "NOT_FOUND", "no model named 'MiniLM'; served here: "),
        ("minilm", text(TEXT), {"model_version": "7"}, "NOT_FOUND", "no version '7'"),
        ("minilm", [tensor("t", np.array([TEXT], object))], {}, "INVALID_ARGUMENT", "missing input 'text'"),
        ("minilm", [tensor("text", np.ones(1, np.float32), "FP32")], {}, "INVALID_ARGUMENT", "datatype BYTES, got"),
        ("null", fp32(3), {}, "INVALID_ARGUMENT", "send one row as [1, 3]"),
        ("null", fp32(1, 1), {"priority": 11}, "INVALID_ARGUMENT", "parameters.priority: expected"),
        ("faulty", [tensor("x", np.full((1, 1), -6009, np.float32), "FP32")], {}, "INTERNAL", "model faulty: "),
    ],
)
def test_errors_carry_status_text_and_code(
    client: triton.InferenceServerClient, model: str, inputs: list, more: dict, status: str, message: str
):
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs, **more)
    assert caught.value.status() == f"StatusCode.{status}"
    assert message in caught.value.message()


def test_the_code_stands_in_a_trailer(server: Server):
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as caught:
            call(pb.ModelInferRequest(model_name="null").SerializeToString())
        assert dict(caught.value.trailing_metadata())["hybrid-code"] == "bad_request"
        with pytest.raises(grpc.RpcError) as caught:
            call(b"\xff\xff")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary("/inference.GRPCInferenceService/ModelStreamInfer")(b"")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_large_messages(client: triton.InferenceServerClient):
    """BIG-01: 11 MB is no problem, and one setting names the limit of both directions."""
    rows = fp32(11, 250_000)
    result = client.infer("null", rows)
    np.testing.assert_array_equal(result.as_numpy("y")[-1, -1], 2_749_999)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("null", fp32(17, 250_000))
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert f" vs. {LIMIT})" in caught.value.message()
    # The answer has stage times, so that it is a little longer than what came in.
    with pytest.raises(InferenceServerException) as caught:
        client.infer("null", fp32(1, (LIMIT - 60) // 4))
    assert caught.value.status() == "StatusCode.RESOURCE_EXHAUSTED"
    assert f"the limit is {LIMIT} (server.http.max_body_bytes)" in caught.value.message()


@pytest.mark.skipif(importlib.util.find_spec("kserve") is None, reason="kserve is not installed: `make test` does")
@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_the_sdk_of_kserve(server: Server, protocol: str):
    port = server.grpc_port if protocol == "grpc" else server.port
    script = Path(__file__).with_name("kserve_client.py")
    done = subprocess.run(
        [sys.executable, script, protocol, str(port), TEXT], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["ready"] == [True, True, True]
    assert said["outputs"] == [["embedding", "FP32", [2, 384]]]
    assert said["norms"] == pytest.approx([1, 1], abs=1e-5)
    assert said["cosine"] == pytest.approx(1, abs=1e-4)
    assert said["values"] == [[1.5, 2.5]]
