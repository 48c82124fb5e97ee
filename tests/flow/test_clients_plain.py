"""Clients without a library: urllib, http.client, bare sockets; JSON and binary, kept alive, pipelined, packed."""

import gzip
import http.client
import json
import socket
import threading
import urllib.request
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
from clients import Client, fp32, post_all, request_bytes
from server import Server

from hybrid.messages import Tensor, WantedOutput
from hybrid.protocol.oip import decode_response, encode_request

pytestmark = pytest.mark.slow

PATH = "/v2/models/simulated:null/infer"
QUOTED = "/v2/models/simulated%3Anull/versions/1/infer"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("simulated:null", "simulated:echo") as running:
        yield running


@pytest.fixture
def connection(server: Server) -> Iterator[http.client.HTTPConnection]:
    made = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    yield made
    made.close()


def ask(connection: http.client.HTTPConnection, body: object, **headers: str) -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", PATH, data, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_urllib_with_its_own_content_type(server: Server):
    """curl -d and urllib say x-www-form-urlencoded; nobody means it."""
    for name in (PATH, QUOTED, "/v2/models/null/infer", "/v2/models/null/versions/1/infer"):
        request = urllib.request.Request(server.base + name, json.dumps(fp32([1.5], (1, 1))).encode())
        with urllib.request.urlopen(request) as answer:
            assert answer.headers["Content-Type"] == "application/json"
            body = json.load(answer)
        assert body["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [1.5]}]
        assert (body["model_name"], body["model_version"]) == ("simulated:null", "1")


def test_one_connection_for_a_thousand_requests(connection: http.client.HTTPConnection):
    ask(connection, fp32([0.0], (1, 1)))
    sock = connection.sock
    for number in range(1000):
        status, body = ask(connection, fp32([float(number)], (1, 1)))
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [float(number)])
        assert connection.sock is sock, "the connection was not kept alive"


def test_nested_and_flat_data_mean_the_same(connection: http.client.HTTPConnection):
    for data in ([[1.0, 2.0], [3.0, 4.0]], [1, 2, 3, 4]):
        status, body = ask(connection, fp32(data, (2, 2)))
        assert (status, json.loads(body)["outputs"][0]["data"]) == (200, [1.0, 2.0, 3.0, 4.0])


@pytest.mark.parametrize("binary_out", [True, False])
@pytest.mark.parametrize("binary_in", [True, False])
def test_every_combination_of_forms(connection: http.client.HTTPConnection, binary_in: bool, binary_out: bool):
    mine = np.random.default_rng(1).standard_normal((5, 7)).astype(np.float32)
    outputs = [WantedOutput("y", binary=binary_out)]
    body, length = encode_request([Tensor("x", "FP32", mine)], binary=binary_in, outputs=outputs)
    headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
    connection.request("POST", PATH, body, headers)
    answer = connection.getresponse()
    given = answer.getheader("Inference-Header-Content-Length")
    assert (given is not None) == binary_out
    assert answer.getheader("Content-Type") == ("application/octet-stream" if binary_out else "application/json")
    response = decode_response(answer.read(), None if given is None else int(given))
    np.testing.assert_array_equal(response.outputs[0].array, mine)


def test_packed_bodies(connection: http.client.HTTPConnection):
    plain = json.dumps(fp32([2.5] * 1000, (1, 1000))).encode()
    raw = zlib.compressobj(wbits=-15)
    packed = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain), "identity": plain}
    for coding, body in [*packed.items(), ("deflate", raw.compress(plain) + raw.flush())]:
        status, answer = ask(connection, body, Content_Encoding=coding, Accept_Encoding="gzip, deflate, br")
        assert (status, json.loads(answer)["outputs"][0]["data"]) == (200, [2.5] * 1000)
    assert ask(connection, plain, Content_Encoding="gzip")[0] == 400
    assert ask(connection, plain, Content_Encoding="br")[0] == 415


@pytest.mark.parametrize("size", [1, 7, 4096])
def test_chunked_bodies(connection: http.client.HTTPConnection, size: int):
    """HTT-04: JSON and binary, in tiny chunks too."""
    mine = np.arange(6, dtype=np.float32).reshape(2, 3)
    for binary in (True, False):
        body, length = encode_request([Tensor("x", "FP32", mine)], binary=binary)
        headers = {} if length is None else {"Inference-Header-Content-Length": str(length)}
        pieces = [bytes(body[at : at + size]) for at in range(0, len(body), size)]
        connection.request("POST", PATH, iter(pieces), headers, encode_chunked=True)
        answer = connection.getresponse()
        given = answer.getheader("Inference-Header-Content-Length")
        response = decode_response(answer.read(), None if given is None else int(given))
        np.testing.assert_array_equal(response.outputs[0].array, mine)


async def test_pipelined_requests_are_answered_in_order(server: Server):
    """Fast and slow models, errors and probes between them, all sent before the first answer is read."""
    wire: list[bytes] = []
    expected: list[object] = []
    for number in range(150):
        kind = number % 5
        if kind == 3:
            wire.append(request_bytes(PATH, b"{"))
            expected.append(400)
        elif kind == 4:
            wire.append(b"GET /v2/health/ready HTTP/1.1\r\nHost: t\r\n\r\n")
            expected.append("ready")
        else:
            model = "echo" if kind == 1 else "null"
            wire.append(request_bytes(f"/v2/models/{model}/infer", fp32([float(number)], (1, 1))))
            expected.append([float(number)])
    async with Client(server.port) as client:
        client.writer.write(b"".join(wire))
        for wanted in expected:
            answer = await client.read()
            if wanted == 400:
                assert answer.status == 400
            elif wanted == "ready":
                assert answer.body == {"ready": True}
            else:
                assert answer.data == wanted


def test_an_http_1_0_client(server: Server):
    body = json.dumps(fp32([1.0], (1, 1))).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        sock.sendall(f"POST {PATH} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
        received = b""
        while piece := sock.recv(65536):  # the server closes
            received += piece
    assert received.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"data":[1.0]' in received


def test_expect_100_continue(server: Server):
    body = json.dumps(fp32([1.0], (1, 1))).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as sock:
        head = f"POST {PATH} HTTP/1.1\r\nHost: t\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode())
        assert sock.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(body)
        assert b"200 OK" in sock.recv(65536)


async def test_many_connections_at_once(server: Server):
    answers = await post_all(server.port, PATH, [fp32([float(k)], (1, 1)) for k in range(500)])
    assert [answer.data for answer in answers] == [[float(k)] for k in range(500)]
    server.until(lambda: server.snapshot()["front"]["conns"] == 1, 3, "closed connections are forgotten")


def test_threads_with_a_connection_each(server: Server):
    wrong: list[object] = []

    def work(number: int) -> None:
        mine = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        for turn in range(100):
            sent = [float(number * 1000 + turn)]
            status, body = ask(mine, fp32(sent, (1, 1)))
            if status != 200 or json.loads(body)["outputs"][0]["data"] != sent:
                wrong.append((number, turn, status))
        mine.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
