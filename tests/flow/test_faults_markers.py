"""Requests that break the engine, one by one and inside batches: only the guilty ones pay."""

import json
import math
import re
import struct
import urllib.request

import pytest
from abuse import assert_all_well, body_of, executions, infer_together, model_folder, pids, restarts
from server import Server

from hybrid.engines import simulated_engine as sim

pytestmark = pytest.mark.slow

#: Requests that come within 100 ms share a batch; a batch that runs for 10 x its prediction and 0.5 s is hung.
MODEL = """
[simulated]
fixed_ms = 2
faults = true
[batching]
max_batch = 32
early_trigger = 32
max_wait_s = 0.1
[workers]
hang_min_s = 0.3
heartbeat_timeout_s = 1.5
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Server(model_folder(tmp_path_factory.mktemp("models") / "m", MODEL)) as running:
        yield running


@pytest.fixture(autouse=True)
def all_well_after(server):
    yield
    assert_all_well(server, "m")


_columns = iter(range(2, 1000))


def fresh(server, marker, **more):
    """A request with the marker whose content was never seen before, so that nothing is refused as poison."""
    return server.infer_x("m", marker, columns=next(_columns), **more)


@pytest.mark.parametrize(
    ("marker", "status", "code", "says"),
    [
        (sim.POISON, 400, "bad_request", "poison marker"),
        (sim.WRONG_ROWS, 500, "output_invalid", "output `y` has 0 rows, expected 1"),
        (sim.MISSING, 500, "output_invalid", "output `y` is missing"),
        (sim.MEMORY, 500, "out_of_memory", "allocation failed"),
        (sim.RAISE, 500, "inference_failed", "RuntimeError: simulated device: unexpected exception"),
        (sim.NAN, 500, "output_invalid", "not finite"),
    ],
)
def test_a_fault_that_the_worker_survives(server, marker, status, code, says):
    before, batches = pids(server), executions(server, "m")
    got, answer = fresh(server, marker)
    assert (got, answer["code"]) == (status, code)
    assert says in answer["error"]
    assert pids(server) == before
    assert executions(server, "m") - batches == 1  # tried once: trying again cannot help


@pytest.mark.parametrize(
    ("marker", "says"), [(sim.CRASH, "exit code 3"), (sim.ABORT, "killed by SIGABRT"), (sim.HANG, "hung")]
)
def test_a_fault_that_ends_the_worker(server, marker, says):
    before, ends = pids(server), restarts(server)
    status, answer = fresh(server, marker)
    assert (status, answer["code"]) == (500, "worker_lost")
    assert says in answer["error"]
    for _ in range(5):
        assert server.infer_x("m", 1.0)[0] == 200
    assert pids(server) != before
    assert restarts(server) - ends == 2  # once in its batch, once alone, and never again
    assert any(says.split()[-1] in end["cause"] for end in server.snapshot()["models"][0]["worker_ends"])


def test_content_that_ended_two_workers_is_refused_before_it_ends_a_third(server):
    columns = next(_columns)
    assert server.infer_x("m", sim.CRASH, columns=columns)[0] == 500
    before, batches = restarts(server), executions(server, "m")
    for _ in range(4):
        status, answer = server.infer_x("m", sim.CRASH, columns=columns)
        assert (status, answer["code"]) == (400, "poison_refused")
    assert server.infer_x("m", 1.0, columns=columns)[0] == 200  # the same shape, other content
    assert restarts(server) == before
    assert executions(server, "m") - batches == 1


def test_one_poison_among_32(server):
    batches = executions(server, "m")
    values = [float(n) for n in range(1, 33)]
    values[20] = sim.POISON
    answers = infer_together(server, "m", values)
    assert [status for status, _ in answers] == [400 if value == sim.POISON else 200 for value in values]
    assert all(a["outputs"][0]["data"] == [v] for (s, a), v in zip(answers, values, strict=True) if s == 200)
    assert executions(server, "m") - batches <= 1 + 10


@pytest.mark.parametrize("marker", [sim.CRASH, sim.HANG])
def test_one_that_ends_the_worker_among_8(server, marker):
    ends, columns = restarts(server), next(_columns)
    values = [1.0, 2.0, 3.0, marker, 5.0, 6.0, 7.0, 8.0]
    answers = infer_together(server, "m", values, columns=columns)
    assert [status for status, _ in answers] == [500 if value == marker else 200 for value in values]
    assert restarts(server) - ends == 2


def test_two_poisons_of_different_kinds_in_one_batch(server):
    values = [1.0, sim.POISON, 3.0, 4.0, sim.RAISE, 6.0]
    answers = infer_together(server, "m", values, columns=next(_columns))
    assert [status for status, _ in answers] == [200, 400, 200, 200, 500, 200]


def test_wrong_row_counts_fail_their_batch_and_nobody_else(server):
    values = [1.0, 2.0, sim.WRONG_ROWS, 4.0]
    answers = infer_together(server, "m", values, columns=next(_columns))
    assert {status for status, _ in answers} <= {200, 500}  # rows cannot be told apart, so the whole batch fails
    assert answers[2][1]["code"] == "output_invalid"
    assert answers[2][1]["error"].split("output `y` has ")[1] in ("3 rows, expected 4", "0 rows, expected 1")


def test_a_row_of_nan_does_not_spoil_the_json_of_its_neighbours(server):
    values = [1.0, sim.NAN, 3.0]
    answers = infer_together(server, "m", values, columns=3)
    assert [status for status, _ in answers] == [200, 500, 200]
    assert "binary_data" in answers[1][1]["error"]


def test_binary_carries_nan_and_infinity(server):
    body = body_of([[sim.NAN, 1.0]]) | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    request = urllib.request.Request(f"{server.base}/v2/models/m/infer", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=10) as answer:
        data = answer.read()
        y = struct.unpack("<2f", data[int(answer.headers["Inference-Header-Content-Length"]) :])
    assert math.isnan(y[0])
    assert y[1] == math.inf


def test_a_large_request_with_one_bad_row_fails_alone(server):
    rows = [[float(n)] for n in range(40)]
    rows[35] = [sim.POISON]
    status, answer = server.post("/v2/models/m/infer", body_of(rows))
    assert status == 400
    assert "poison" in json.dumps(answer)
    rows[35] = [35.0]
    status, answer = server.post("/v2/models/m/infer", body_of(rows))
    assert status == 200
    assert answer["outputs"][0]["data"] == [float(n) for n in range(40)]


def test_the_log_names_how_each_worker_ended(server):
    ended = [line for line in server.err.splitlines() if " ended: " in line]
    assert any("exit code 3" in line for line in ended)
    assert any("killed by SIGABRT" in line for line in ended)
    assert any("hung" in line for line in ended)
    assert all("pid" in line for line in ended)
    assert all(re.search(r"batches in flight: no\. \d+ \(rows: \d+\)$", line) for line in ended)
