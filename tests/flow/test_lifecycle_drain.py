"""SIGTERM and SIGINT: what was accepted is answered, what comes later is told so, and the process ends."""

import base64
import io
import json
import os
import re
import signal
import socket
import ssl
import threading
import time

import pytest
import trustme
from abuse import Load, body_of, model_folder, pids, together
from PIL import Image
from server import Server

from hybrid.engines import simulated_engine as sim

pytestmark = pytest.mark.slow

MODEL = """
[simulated]
fixed_ms = {ms}
faults = true
[batching]
max_batch = {rows}
"""


def serve(tmp_path, ms=5, rows=8, **server_settings):
    """A server for a model `m` whose batches take `ms`."""
    config = "[server]\n" + "".join(f"{key} = {value}\n" for key, value in server_settings.items())
    folder = model_folder(tmp_path / "m", MODEL.format(ms=ms, rows=rows))
    return Server(folder, config=config).start().wait_ready()


def in_background(call):
    """Run a call in a thread; returns the thread and the list that gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    return thread, results


def send(server, values):
    """Send requests and wait until the server has all of them: those after the first when that one is in."""
    first_in = threading.Event()

    def call(value):
        if value != values[0]:
            assert first_in.wait(30)
        return server.infer_x("m", value)

    def in_flight(number):
        server.until(lambda: server.snapshot()["front"]["inflight"] == number + 1, what=f"{number} are in flight")

    thread, results = in_background(lambda: together([lambda value=value: call(value) for value in values]))
    in_flight(1)
    first_in.set()
    in_flight(len(values))
    return thread, results


def until_closed(server):
    """Wait until it takes no new connections."""

    def closed():
        try:
            socket.create_connection(("127.0.0.1", server.port)).close()
        except ConnectionRefusedError:
            return True
        return False

    server.until(closed, what="the port is closed")


def ended(server, within_s, code=0):
    """Wait for the end, which must come in time and with this code."""
    began = time.monotonic()
    got = server.wait(30)
    took = time.monotonic() - began
    assert got == code, server.err
    assert took < within_s, f"took {took:.2f} s\n{server.err}"
    assert "Traceback" not in server.err
    return took


@pytest.mark.parametrize("new_each", [False, True], ids=["keep-alive", "a connection per request"])
def test_under_load_every_accepted_request_is_answered(tmp_path, new_each):
    server = serve(tmp_path)
    load = Load(server, "m", clients=32, new_each=new_each)
    with load:
        server.until(lambda: load.seen["ok"] > 100, what="the load runs")
        server.signal(signal.SIGTERM)
        load.until_over()
    ended(server, 5.0)
    print(dict(load.seen))
    # "closed": an idle keep-alive connection ended just when the client wrote into it, as HTTP allows. "reset": the
    # kernel was amid a handshake when the socket ended.
    assert set(load.seen) <= {"ok", "refused", "503 not_ready", "closed", "reset"}
    assert load.seen["reset"] <= 2
    server.stop()


def test_requests_in_flight_and_in_the_queue_finish(tmp_path):
    server = serve(tmp_path, ms=500, rows=1)
    thread, results = send(server, [float(n) for n in range(1, 7)])
    server.signal(signal.SIGTERM)
    thread.join(30)
    assert [status for status, _ in results[0]] == [200] * 6
    assert [answer["outputs"][0]["data"] for _, answer in results[0]] == [[float(n)] for n in range(1, 7)]
    ended(server, 3.0)
    server.stop()


def test_a_5_s_request_finishes(tmp_path):
    server = serve(tmp_path)
    thread, results = send(server, [sim.SLOW])
    server.signal(signal.SIGTERM)
    until_closed(server)
    assert not results
    thread.join(30)
    assert results[0][0][0] == 200
    ended(server, 3.0)
    server.stop()


def test_a_signal_to_the_process_and_its_group_is_one_wish(tmp_path):
    """As GNU timeout sends it: twice within a millisecond."""
    server = serve(tmp_path, ms=700, rows=1)
    thread, results = send(server, [1.0])
    server.signal(signal.SIGTERM)
    time.sleep(0.002)  # or the kernel merges the two
    server.signal(signal.SIGTERM)
    thread.join(10)
    assert results[0][0][0] == 200
    ended(server, 3.0)
    server.stop()


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path, second):
    server = serve(tmp_path)
    thread, results = in_background(lambda: _status_or_reset(server))
    server.until(lambda: server.snapshot()["front"]["inflight"] == 2, what="the request is in flight")
    server.signal(signal.SIGTERM)
    time.sleep(0.3)  # or the two are one wish, see above
    server.signal(second)
    ended(server, 3.0, code=1)
    thread.join(10)
    assert results != [200]
    assert server.err.splitlines()[-1].startswith(f"hybrid: error: {second.name} received while draining")
    server.stop()


def test_the_drain_limit_answers_503_and_ends(tmp_path):
    server = serve(tmp_path, rows=1, drain_timeout_s=0.5, default_timeout_s=20)
    assert "longer than drain_timeout_s" in server.err
    thread, results = send(server, [sim.SLOW, 2.0, 3.0])  # one runs, two wait
    server.signal(signal.SIGTERM)
    took = ended(server, 3.0, code=1)
    thread.join(10)
    print(f"ended after {took:.1f} s")
    assert [(status, answer["code"]) for status, answer in results[0]] == [(503, "not_ready")] * 3
    assert "drain" in server.err.splitlines()[-1]
    server.stop()


def test_the_drain_delay_serves_on_and_says_not_ready(tmp_path):
    server = serve(tmp_path, drain_delay_s=1.5)
    with Load(server, "m", clients=4, new_each=True) as load:
        server.until(lambda: load.seen["ok"] > 0, what="the load runs")
        server.signal(signal.SIGTERM)
        server.until(lambda: server.get("/v2/health/ready")[0] == 503, 0.5, "not ready")
        told = time.monotonic()
        assert server.get("/v2/models/m/ready")[0] == 503
        assert server.get("/v2/health/live")[0] == 200
        before = load.seen["ok"]
        while time.monotonic() < told + 1.0:
            assert server.infer_x("m", 1.0)[0] == 200
        assert load.seen["ok"] > before
        assert set(load.seen) == {"ok"}
        load.until_over()
    ended(server, 3.0)
    print(dict(load.seen))
    assert set(load.seen) <= {"ok", "refused", "503 not_ready"}
    server.stop()


def test_idle_connections_do_not_hold_it(tmp_path):
    server = serve(tmp_path)
    sockets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(20)]
    body = json.dumps(body_of([[1.0]])).encode()
    head = f"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    for sock in sockets[:10]:  # half of them were used before
        sock.sendall(head + body)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")
    server.signal(signal.SIGTERM)
    ended(server, 3.0)
    for sock in sockets:
        assert sock.recv(1) == b""  # closed properly, not reset
        sock.close()
    server.stop()


def test_half_a_request_does_not_hold_it(tmp_path):
    server = serve(tmp_path)
    with (
        socket.create_connection(("127.0.0.1", server.port)) as head,
        socket.create_connection(("127.0.0.1", server.port)) as body,
    ):
        head.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost:")
        body.sendall(b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        server.until(lambda: server.snapshot()["front"]["conns"] == 3, what="both have come, and who asks")
        server.signal(signal.SIGTERM)
        ended(server, 5.0)
    server.stop()


def test_an_open_stream_ends_properly(tmp_path):
    server = serve(tmp_path)
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"GET /hybrid/v1/stream HTTP/1.1\r\nHost: x\r\n\r\n")
        data = sock.recv(65536)
        server.signal(signal.SIGTERM)
        ended(server, 1.0)
        while piece := sock.recv(65536):
            data += piece
    assert data.startswith(b"HTTP/1.1 200")
    assert data.endswith(b"0\r\n\r\n")
    server.stop()


def _status_or_reset(server):
    try:
        return server.infer_x("m", sim.SLOW)[0]
    except OSError:
        return "reset"


def test_requests_that_wait_for_a_worker_being_replaced_are_answered(tmp_path):
    server = serve(tmp_path)
    os.kill(pids(server)["w0"], signal.SIGKILL)
    thread, results = send(server, [1.0, 2.0, 3.0])
    server.signal(signal.SIGTERM)
    thread.join(30)
    assert [status for status, _ in results[0]] == [200] * 3
    ended(server, 3.0)
    server.stop()


def test_requests_in_preprocessing_are_answered():
    """They were accepted, but are not in the queue yet when the drain begins."""
    server = Server("nsfw").start().wait_ready()
    jpeg = io.BytesIO()
    Image.new("RGB", (5000, 4000), (200, 90, 40)).save(jpeg, "JPEG")
    image = base64.b64encode(jpeg.getvalue()).decode()
    body = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}]}
    thread, results = in_background(lambda: together([lambda: server.post("/v2/models/nsfw/infer", body)] * 8))
    server.until(lambda: server.snapshot()["front"]["inflight"] == 9, what="the requests are in flight")
    assert server.snapshot()["front"]["pre_queue"] > 0  # images wait to be decoded
    server.signal(signal.SIGTERM)
    thread.join(60)
    assert [status for status, _ in results[0]] == [200] * 8
    ended(server, 3.0)
    server.stop()


def slow_reader(server, size, context=None):
    """Ask for a row of `size` bytes and read only the first bytes of the answer; the socket, and what is to come."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, size // 4], "parameters": {"binary_data_size": size}}
    binary = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    head = json.dumps({"inputs": [tensor], **binary}).encode()
    sock = socket.create_connection(("127.0.0.1", server.port))
    if context is not None:
        sock = context.wrap_socket(sock, server_hostname="localhost")
    sock.sendall(
        b"POST /v2/models/simulated:null/infer HTTP/1.1\r\nHost: x\r\n"
        b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(head) + size)
    )
    sock.sendall(head + bytes(size))
    first = sock.recv(1000)
    assert first.startswith(b"HTTP/1.1 200")
    start = first.index(b"\r\n\r\n") + 4
    length = int(re.search(rb"(?i)content-length: (\d+)", first)[1])
    return sock, start + length - len(first)


@pytest.fixture(params=["plain", "tls"])
def secured(request, tmp_path):
    """Settings of a server, and what its clients need to know of it: nothing without TLS."""
    if request.param == "plain":
        return "", None
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    certificate.private_key_pem.write_to_path(tmp_path / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = f'[server.tls]\ncertificate = "{tmp_path}/cert.pem"\nkey = "{tmp_path}/key.pem"\n'
    return tls, context


def test_an_answer_that_is_read_slowly_is_not_cut(secured):
    tls, context = secured
    server = Server("simulated:null", config=tls).start().wait_ready()
    sock, missing = slow_reader(server, 30_000_000, context)
    with sock:
        server.signal(signal.SIGTERM)
        time.sleep(1.5)  # more than the half second that was its time once
        while piece := sock.recv(1 << 20):
            missing -= len(piece)
    assert missing == 0
    ended(server, 3.0)
    assert "drained in" in server.err
    server.stop()


def test_an_answer_that_nobody_reads_is_told(secured):
    tls, context = secured
    server = Server("simulated:null", config=f"[server]\ndrain_timeout_s = 0.5\n{tls}").start().wait_ready()
    sock, _ = slow_reader(server, 30_000_000, context)
    with sock:
        server.signal(signal.SIGTERM)
        ended(server, 3.0, code=1)
    assert "1 answers were not read when" in server.err.splitlines()[-1]
    server.stop()
