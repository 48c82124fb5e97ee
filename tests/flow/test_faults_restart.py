"""Workers that cannot be replaced, and workers that are replaced on purpose because they have grown."""

import os
import re
import shutil
import signal
import time

import pytest
from abuse import Load, assert_all_well, model_folder, pids, restarts, seats_ready
from server import Server

from hybrid.engines import simulated_engine as sim
from hybrid.models.catalog import resolve

pytestmark = pytest.mark.slow

MIB = 1 << 20
LEAKY = """
[simulated]
fixed_ms = 5
leak_bytes_per_run = {leak}
[workers]
instances = 1
rss_limit_bytes = {limit}
"""


@pytest.fixture
def minilm(tmp_path):
    """A server for a copy of minilm whose file the test may damage."""
    original = resolve("minilm")
    model_folder(tmp_path / "m", 'file = "model.onnx"\n[preprocess.text]\n[workers]\ninstances = 1\n')
    shutil.copy(original.file, tmp_path / "m" / "model.onnx")
    shutil.copy(original.preprocess.text.tokenizer, tmp_path / "m" / "tokenizer.json")
    with Server(str(tmp_path / "m")) as server:
        yield server, tmp_path / "m" / "model.onnx"


def embed(server):
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a text"]}]}
    return server.post("/v2/models/m/infer", body)


def starts(server):
    return re.findall(r"next start in ([0-9.]+) s", server.err)


def test_a_model_whose_file_was_damaged_while_it_ran(minilm):
    server, file = minilm
    good = file.read_bytes()
    assert embed(server)[0] == 200
    file.write_bytes(b"garbage" * 1000)
    assert embed(server)[0] == 200  # the running worker does not need it
    os.kill(pids(server)["w0"], signal.SIGKILL)
    server.until(lambda: embed(server)[0] == 503, 30, "requests are refused")

    status, answer = embed(server)
    assert (status, answer["code"]) == (503, "not_ready")
    assert "cannot be loaded" in answer["error"]
    assert str(file) in answer["error"]
    assert server.get("/v2/models/m/ready")[0] == 503
    assert server.get("/v2/health/ready")[0] == 503
    assert server.get("/v2/health/live")[0] == 200
    model = server.snapshot()["models"][0]
    assert model["state"] == "unavailable"
    assert {"cause": "start failed", "n": len(starts(server)) - 1} in model["worker_ends"]
    metrics = server.get("/metrics")[1]
    assert re.search(r"hybrid_worker_restarts_total\{[^}]*m[^}]*\} [1-9]", metrics)

    pauses = [float(pause) for pause in starts(server)]
    assert pauses[0] == 0.0  # after the kill
    assert pauses[1:] == [0.25 * 2**n for n in range(len(pauses) - 1)]  # twice as long each time
    file.write_bytes(good)
    server.until(lambda: embed(server)[0] == 200, 30, "served again")
    assert server.get("/v2/health/ready")[0] == 200


def test_requests_that_wait_while_restarts_fail_end_at_their_deadline(minilm):
    server, file = minilm
    file.write_bytes(b"garbage")
    os.kill(pids(server)["w0"], signal.SIGKILL)
    began = time.monotonic()
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a text"]}]}
    status, answer = server.post("/v2/models/m/infer", body, {"X-Request-Timeout-Ms": "800"})
    assert (status, answer["code"]) == (504, "deadline_exceeded")
    assert 0.7 < time.monotonic() - began < 3.0


def test_a_worker_that_has_grown_is_replaced_without_a_failed_request(tmp_path):
    folder = model_folder(tmp_path / "m", LEAKY.format(leak=MIB // 4, limit=110 * MIB))
    with Server(folder) as server:
        first = pids(server)["w0"]
        with Load(server, "m", clients=4) as load:
            server.until(lambda: server.err.count("recycling") >= 2, 40, "recycled twice")
        print(dict(load.seen), f"slowest {load.slowest_s:.2f} s")
        assert set(load.seen) == {"ok"}
        assert load.slowest_s < 1.0
        server.until(lambda: len(server.children()) == 1, what="the old worker left")
        assert pids(server)["w0"] != first
        assert restarts(server) == 0  # it was no failure
        assert any(end["cause"] == "recycled" for end in server.snapshot()["models"][0]["worker_ends"])
        assert_all_well(server, "m")


def test_leak_markers_recycle_too(tmp_path):
    text = LEAKY.format(leak=0, limit=150 * MIB)
    with Server(model_folder(tmp_path / "m", text.replace("fixed_ms = 5", "fixed_ms = 5\nfaults = true"))) as server:
        first = pids(server)["w0"]
        for _ in range(16):
            assert server.infer_x("m", sim.LEAK)[0] == 200
        server.until(lambda: pids(server)["w0"] != first, 15, "recycled")
        assert_all_well(server, "m")


def test_a_limit_below_the_size_of_a_fresh_worker_does_not_recycle_for_ever(tmp_path):
    with Server(model_folder(tmp_path / "m", LEAKY.format(leak=0, limit=10 * MIB))) as server:
        before = pids(server)
        assert "when fresh: rss_limit_bytes (10 MiB) takes effect at" in server.err
        with Load(server, "m", clients=2):
            time.sleep(1.5)
        assert pids(server) == before
        assert_all_well(server, "m")


def test_a_successor_that_cannot_start_does_not_take_the_old_worker_along(tmp_path):
    """Whatever is started beside the first worker dies: the old one goes on, and the next try is not at once."""
    with Server(model_folder(tmp_path / "m", LEAKY.format(leak=2 * MIB, limit=100 * MIB))) as server:
        first = pids(server)["w0"]
        ends = time.monotonic() + 4.0
        with Load(server, "m", clients=1) as load:
            while time.monotonic() < ends:
                for child in server.children():
                    if child.pid != first:
                        child.kill()
                time.sleep(0.02)
        assert set(load.seen) == {"ok"}
        assert server.err.count("recycling") == 1
        assert seats_ready(server, 1)
        assert pids(server)["w0"] == first
