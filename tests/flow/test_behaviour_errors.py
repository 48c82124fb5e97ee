"""Whatever is wrong with a request, the answer is JSON that says what; rows of `field-reports.md` are named."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest
from clients import Client, folder, fp32, post
from onnx_models import graphs
from server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    for name, make in (("pair", graphs.add), ("fixed", graphs.identity)):
        folder(root, name)
        make(root / name / "model.onnx")
    with Server(str(root / "pair"), str(root / "fixed"), "simulated:null") as running:
        yield running


@pytest.fixture(autouse=True)
def the_server_lives_and_serves(server: Server):
    yield
    assert server.get("/v2/health/ready")[0] == 200
    assert server.infer_x("null", 1.0)[0] == 200


def x(**changes: Any) -> dict[str, Any]:
    """A request to `fixed`, FP32 [n, 4], with some fields of its input changed."""
    tensor = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0], **changes}
    return {"inputs": [{name: value for name, value in tensor.items() if value is not ...}]}


PAIR = [{"name": name, "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]} for name in "ab"]

#: model, body, what the error must name
BAD: list[tuple[str, Any, str]] = [
    # VAL-01
    ("fixed", x(shape="-1"), "input 'x': shape"),
    ("fixed", x(shape=None), "input 'x': shape"),
    ("fixed", x(shape={}), "input 'x': shape"),
    ("fixed", x(shape=[-1, 4]), "input 'x': shape"),
    ("fixed", x(shape=[1, 4.5]), "input 'x': shape"),
    ("fixed", x(shape=[1 << 62, 4]), "input 'x'"),
    ("fixed", x(shape=[2**32, 2**32]), "input 'x'"),
    ("fixed", x(shape=...), "shape"),
    ("fixed", x(data={"a": 1}), "input 'x': data must be a list"),
    ("fixed", x(data=[[1.0, 2.0], [3.0]]), "input 'x'"),
    ("fixed", x(data=[1.0, 2.0, 3.0]), "input 'x': data has 3 elements, shape [1, 4] holds 4"),
    ("fixed", x(data="AAAA"), "input 'x'"),
    ("fixed", x(data=...), "neither data nor parameters.binary_data_size"),
    ("fixed", x(datatype="FLOAT"), "unknown datatype 'FLOAT'"),
    ("fixed", x(datatype="BF16"), "BF16 has no JSON form"),
    ("fixed", x(name=5), "name"),
    ("fixed", {"inputs": []}, "inputs: expected 1 to"),
    ("fixed", {"inputs": {}}, "inputs"),
    ("fixed", {}, "inputs"),
    ("fixed", [1], "body"),
    ("fixed", b"", "body"),
    ("fixed", b"{", "body"),
    ("fixed", b'{"inputs": NaN}', "body"),
    ("fixed", b"[" * 100_000, "body"),
    ("fixed", b'{"inputs":' + b"[" * 100_000, "input number 0"),
    ("fixed", b'{"other":' + b"[" * 100_000, "nested too deeply"),
    ("fixed", b"\xff\xfe{}", "body"),
    ("fixed", x(data=[1.0, 2.0, 3.0, 1e400]), "input 'x'"),
    # DTY-04
    ("fixed", x(datatype="INT32", data=[1, 2, 3, 1.5]), "data[3] is 1.5, INT32 takes a whole number"),
    ("fixed", x(datatype="UINT8", data=[1, 2, 3, 256]), "data[3] is 256, UINT8 takes a whole number from 0 to 255"),
    ("fixed", x(datatype="INT8", data=[200, 2, 3, 4]), "data[0] is 200, INT8 takes"),
    ("fixed", x(datatype="UINT32", data=[-1, 2, 3, 4]), "data[0] is -1, UINT32 takes"),
    ("fixed", x(datatype="INT64", data=[1, 2, 3, 2**63]), "data[3] is 9223372036854775808, INT64 takes"),
    ("fixed", x(datatype="BOOL", data=[True, False, 2, True]), "data[2] is 2, BOOL takes true or false"),
    ("fixed", x(datatype="FP16", data=[1e6, 0, 0, 0]), "data[0] is 1000000.0, FP16 takes"),
    # VAL-06 to VAL-08
    ("pair", {"inputs": PAIR[:1]}, "missing input 'b'; the model takes 'a' FP32 [-1, -1], 'b' FP32 [-1, -1]"),
    ("pair", {"inputs": [*PAIR, {**PAIR[0], "name": "c"}]}, "unknown input 'c'"),
    ("pair", {"inputs": [PAIR[0], PAIR[0]]}, "input 'a' is given more than once; missing input 'b'"),
    ("pair", {"inputs": PAIR, "outputs": [{"name": "Y"}]}, "unknown output 'Y'; the model gives 'y'"),
    ("pair", {"inputs": PAIR, "outputs": [{"name": "y"}, {"name": "y"}]}, "output 'y' is asked for more than once"),
    ("pair", {"inputs": [PAIR[0], {**PAIR[1], "shape": [2, 1]}]}, "inputs disagree on dimension 0"),
    ("fixed", x(name="X"), "missing input 'x'; unknown input 'X'"),
    ("fixed", x(shape=[4]), "send one row as [1, 4]"),
    ("fixed", x(shape=[1, 1, 4]), "one dimension too many"),
    ("fixed", x(shape=[4, 1]), "expected shape [-1, 4] (-1 takes any size), got [4, 1]"),
    ("fixed", x(shape=[], data=[1.0]), "scalar"),
    ("fixed", x(shape=[0, 4], data=[]), "dimension 0 is 0"),
    ("fixed", x(datatype="FP64"), "input 'x': expected datatype FP32, got 'FP64'"),
    # parameters
    ("fixed", x() | {"parameters": []}, "parameters"),
    ("fixed", x() | {"parameters": {"binary_data_output": 1}}, "parameters.binary_data_output"),
    ("fixed", x() | {"id": 7}, "id"),
    ("fixed", x() | {"outputs": "y"}, "outputs"),
]


@pytest.mark.parametrize(("model", "body", "named"), BAD, ids=[str(k) for k in range(len(BAD))])
async def test_bad_bodies(server: Server, model: str, body: Any, named: str):
    """VAL-11: never an empty body."""
    answer = await post(server.port, f"/v2/models/{model}/infer", body)
    assert answer.status == 400, answer
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.body) == {"error", "code"}
    assert answer.body["code"] == "bad_request"
    assert named in answer.body["error"]


def binary(size: int | None, payload: bytes, header: Any = "right", **tensor: Any) -> tuple[bytes, dict[str, str]]:
    """A request to `fixed` with a binary part that may not fit what it says."""
    parameters = {} if size is None else {"parameters": {"binary_data_size": size}}
    whole = {"name": "x", "shape": [1, 4], "datatype": "FP32", **parameters, **tensor}
    head = json.dumps({"inputs": [whole], "id": "ä"}, ensure_ascii=False)
    length = {"right": len(head.encode()), "characters": len(head)}.get(header, header)
    return head.encode() + payload, {} if length is None else {"Inference-Header-Content-Length": str(length)}


FLOATS = b"\0" * 16


@pytest.mark.parametrize(
    ("request_parts", "named"),
    [
        (binary(15, FLOATS[:15]), "15 bytes of binary data, expected 16 for FP32 of shape [1, 4]"),
        (binary(17, FLOATS + b"\0"), "17 bytes of binary data, expected 16"),
        (binary(16, FLOATS[:15]), "binary_data_size is 16, but only 15 bytes"),
        (binary(16, FLOATS + b"\0"), "add up to 16 bytes, but 17 bytes are left"),
        (binary(16, b""), "binary_data_size is 16, but only 0 bytes"),
        (binary(-1, FLOATS), "binary_data_size"),
        (binary(1 << 70, FLOATS), "binary_data_size"),
        (binary(16, FLOATS, data=[1, 2, 3, 4]), "both data and parameters.binary_data_size"),
        (binary(16, FLOATS, header=None), "Inference-Header-Content-Length"),  # VAL-03
        (binary(16, FLOATS, header="characters"), "Inference-Header-Content-Length"),  # VAL-03
        (binary(16, FLOATS, header=10**9), "Inference-Header-Content-Length is 1000000000, the body has"),
        (binary(16, FLOATS, header=-5), "expected a number of bytes, got '-5'"),
        (binary(16, FLOATS, header="12a"), "expected a number of bytes, got '12a'"),
        (binary(16, FLOATS, header=0), "body"),
        # DTY-08
        (binary(3, b"\5\0\0", datatype="BYTES", shape=[1, 1]), "element 0 lacks its 4-byte length prefix"),
        (binary(8, b"\xff\xff\xff\xffabcd", datatype="BYTES", shape=[1, 1]), "element 0 claims 4294967295 bytes"),
        (binary(8, b"\1\0\0\0abcd", datatype="BYTES", shape=[1, 1]), "3 bytes left over"),
        (binary(8, b"\4\0\0\0abcd", datatype="BYTES", shape=[2, 1]), "element"),
        (binary(4, b"\2\0\1\1", datatype="BOOL", shape=[1, 4]), "element 0 is 2, a BOOL byte must be 0 or 1"),
        (binary(8, b"\0" * 8, datatype="BF16"), "expected datatype FP32, got 'BF16'"),  # DTY-03
    ],
)
async def test_bad_binary_parts(server: Server, request_parts: tuple[bytes, dict[str, str]], named: str):
    """VAL-03, VAL-05, DTY-08."""
    body, headers = request_parts
    answer = await post(server.port, "/v2/models/fixed/infer", body, headers)
    assert answer.status == 400, answer
    assert named in answer.body["error"]


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("/v2/models/Fixed/infer", "no model named 'Fixed'; served here: fixed, pair, simulated:null"),
        ("/v2/models/nope/infer", "no model named 'nope'"),
        ("/v2/models/fixed/versions/2/infer", "model fixed has no version '2'; versions: 1"),
        ("/v2/models/fixed/versions//infer", "version"),
        ("/v2/models/fixed/generate", "no such path"),
        ("/v2/models/%2e%2e%2fetc/infer", "no model named"),
        ("/v2/models/fixed%00/infer", "no model named"),
        ("/v3", "no such path: /v3"),
        ("/", "no such path"),
        ("/metrics/x", "no such path"),
    ],
)
async def test_what_is_not_there(server: Server, path: str, named: str):
    """VAL-13."""
    answer = await post(server.port, path, x())
    assert answer.status == 404, answer
    assert named in answer.body["error"]


def test_what_is_not_there_below_a_path_of_get(server: Server):
    assert server.post("/v2/health/nope", {})[0] == 405
    status, body = server.get("/v2/health/nope")
    assert (status, body["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v2/models/fixed/infer", "POST"),
        ("DELETE", "/v2/models/fixed/infer", "POST"),
        ("GET", "/v2/repository/index", "POST"),
        ("POST", "/v2", "GET"),
        ("POST", "/v2/health/live", "GET"),
        ("PUT", "/v2/models/fixed", "GET"),
        ("POST", "/v2/models/fixed/stats", "GET"),
        ("POST", "/metrics", "GET"),
        ("PATCH", "/hybrid/v1/snapshot", "GET"),
    ],
)
def test_the_wrong_method_is_told_the_right_one(server: Server, method: str, path: str, allow: str):
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request(method, path, body=b"{}" if method != "GET" else None)
    answer = connection.getresponse()
    assert answer.status == 405
    assert answer.getheader("Allow") == allow
    assert json.loads(answer.read())["code"] == "method_not_allowed"
    connection.close()


async def test_a_shape_that_only_the_engine_can_refuse_is_the_clients_fault(server: Server):
    body = {"inputs": [PAIR[0], {**PAIR[1], "shape": [1, 3], "data": [1.0, 2.0, 3.0]}]}
    answer = await post(server.port, "/v2/models/pair/infer", body)
    assert answer.status == 400
    assert "model pair" in answer.body["error"]


async def test_one_connection_outlives_many_errors(server: Server):
    async with Client(server.port) as client:
        for model, body, _ in BAD:
            assert (await client.post(f"/v2/models/{model}/infer", body)).status == 400
        assert (await client.post("/v2/models/simulated:null/infer", fp32([3.0], (1, 1)))).data == [3.0]


def test_health_answers_have_their_forms(server: Server):
    """RDY-08: a body that strict clients can read, with its content type."""
    expected = {
        "/v2/health/live": {"live": True},
        "/v2/health/ready": {"ready": True},
        "/v2/models/fixed/ready": {"name": "fixed", "ready": True},
        "/v2/models/fixed/versions/1/ready": {"name": "fixed", "ready": True},
    }
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    for path, body in expected.items():
        for method in ("GET", "HEAD"):
            connection.request(method, path)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("Content-Type")) == (200, "application/json")
            data = answer.read()
            assert data == b"" if method == "HEAD" else json.loads(data) == body
    connection.close()
