"""What the tests of faults and of life and death share: model folders, load, and the question "is all well again?"."""

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from server import Server

LONG = os.environ.get("HYBRID_LONG") == "1"


def model_folder(path: Path, text: str) -> str:
    """Make a model folder `path` with this model.toml; the model is named like the folder."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.toml").write_text(text)
    return str(path)


def body_of(rows, name="x"):
    """The JSON body for some rows of a simulated model."""
    flat = [value for row in rows for value in row]
    return {"inputs": [{"name": name, "shape": [len(rows), len(rows[0])], "datatype": "FP32", "data": flat}]}


def together(calls):
    """Run all calls at once, each in a thread; their results in order."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def infer_together(server, model, values, **more):
    """One request per value, all at once: [(status, answer)]."""
    return together([lambda value=value: server.infer_x(model, value, **more) for value in values])


def executions(server, model):
    """How many batches the workers of the model were given so far."""
    return server.get(f"/v2/models/{model}/stats")[1]["model_stats"][0]["execution_count"]


def pids(server):
    """Pid of the process on each seat, by worker id."""
    return {worker["id"]: worker["pid"] for worker in server.workers()}


def restarts(server):
    """How often a worker was replaced after it had ended."""
    return sum(model["restarts_n"] for model in server.snapshot()["models"])


def seats_ready(server, wanted):
    """Whether this many workers are ready or busy."""
    return sum(worker["state"] in ("ready", "busy") for worker in server.snapshot()["workers"]) == wanted


def assert_all_well(server, model, workers=1, others=0):
    """It answers, nothing waits or is in flight, each seat has one living process, and there are no zombies."""
    server.until(lambda: seats_ready(server, workers), what=f"{workers} workers are ready")
    assert server.infer_x(model, 0.5)[0] == 200
    assert server.get("/v2/health/ready")[0] == 200
    server.until(lambda: idle(server), what="queue and in-flight table are empty")
    server.until(lambda: len(server.children()) == workers + others, what="one process per seat")
    states = [child.status() for child in server.children()]
    assert psutil.STATUS_ZOMBIE not in states


def idle(server):
    """Whether nothing waits and nothing runs but the request that asks."""
    seen = server.snapshot()
    depth = sum(lane["depth"] for model in seen["models"] for lane in model["classes"])
    batches = [worker["batch_id"] for worker in seen["workers"] if worker["batch_id"] is not None]
    return depth == 0 and seen["front"]["inflight"] == 1 and seen["front"]["bytes_queued"] == 0 and not batches


def cannot_start(*arguments, timeout_s=30.0, **more):
    """Run a `hybrid serve` that must fail by itself: (exit code, stdout, stderr, seconds)."""
    began = time.monotonic()
    command = [sys.executable, "-m", "hybrid", "serve", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **more)
    return done.returncode, done.stdout, done.stderr, time.monotonic() - began


def the_error_line(stderr):
    """The one line that says why; there must be exactly one, at the end, and no traceback."""
    lines = [line for line in stderr.splitlines() if line.startswith("hybrid: error: ")]
    assert len(lines) == 1, stderr
    assert stderr.splitlines()[-1] == lines[0]
    assert "Traceback" not in stderr
    return lines[0]


class Load:
    """Clients that each send one request after the other, with values of their own, until stopped.

    Counts in `seen`: "ok", a status such as "503", "mixed up", "timeout", "refused", "reset" (a new connection was
    dropped without an answer), "closed" (so was a used one: the client cannot know whether it was too late).
    """

    def __init__(self, server: Server, model: str, clients: int = 8, timeout_s: float = 10.0, new_each: bool = False):
        self._port, self._model, self._timeout_s, self._new_each = server.port, model, timeout_s, new_each
        self._stopping = threading.Event()
        self.seen: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._threads = [threading.Thread(target=self._client, args=(i,), daemon=True) for i in range(clients)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a client hangs"

    def until_over(self):
        """Wait until every client has met a closed port."""
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a client hangs"

    def _client(self, number):
        connection, used = None, False
        for count in itertools.count():
            if self._stopping.is_set():
                break
            if connection is None or self._new_each:
                connection, used = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s), False
            began = time.monotonic()
            result = self._one(connection, float(number * 100_000 + count), used)
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
            self.seen[result] += 1
            used = True
            if result == "refused":
                break
            if result in ("reset", "closed", "timeout") or self._new_each or connection.sock is None:
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    def _one(self, connection, value, used):
        try:
            connection.request("POST", f"/v2/models/{self._model}/infer", json.dumps(body_of([[value]])))
            with connection.getresponse() as answer:
                data = json.loads(answer.read())
        except ConnectionRefusedError:
            return "refused"
        except TimeoutError:
            return "timeout"
        except (OSError, http.client.HTTPException):
            return "closed" if used else "reset"
        if answer.status != 200:
            return f"{answer.status} {data['code']}"
        return "ok" if data["outputs"][0]["data"] == [value] else "mixed up"
