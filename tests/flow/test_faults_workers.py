"""Workers that are killed or stopped from outside, idle, busy and under load: nobody hangs, hardly anybody notices."""

import os
import signal
import threading
import time

import psutil
import pytest
from abuse import LONG, Load, assert_all_well, infer_together, model_folder, pids, restarts, seats_ready
from server import Server

pytestmark = pytest.mark.slow

MODEL = """
[simulated]
fixed_ms = 5
faults = true
[batching]
max_batch = 8
[workers]
instances = {workers}
heartbeat_timeout_s = 1.2
"""


@pytest.fixture
def serve(tmp_path):
    """Start a server for a model `m` with this many workers."""
    running = []

    def start(workers, text=MODEL):
        running.append(Server(model_folder(tmp_path / "m", text.format(workers=workers))))
        return running[0].start().wait_ready()

    yield start
    assert running[0].stop() == 0
    assert "Traceback" not in running[0].err


@pytest.mark.timeout(180)
@pytest.mark.parametrize("workers", [1, 2])
def test_killing_a_worker_every_two_seconds_under_load(serve, workers):
    server = serve(workers)
    seconds, kills = (60.0 if LONG else 6.0), 0
    with Load(server, "m", clients=16) as load:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            victim = sorted(pids(server).values())[kills % workers]
            os.kill(victim, signal.SIGKILL)
            kills += 1
            killed = time.monotonic()
            server.until(lambda gone=victim: gone not in pids(server).values(), 10, "the dead worker left its seat")
            server.until(lambda: seats_ready(server, workers), 10, "ready again")
            time.sleep(max(0.0, 2.0 - (time.monotonic() - killed)))
    print(f"{kills} kills of {workers} workers: {dict(load.seen)}, slowest {load.slowest_s:.2f} s")
    assert load.seen["ok"] > 100 * kills
    assert set(load.seen) == {"ok"}  # not one request was on a worker that died twice under it
    assert load.slowest_s < 5.0
    assert restarts(server) == kills
    assert server.err.count("killed by SIGKILL") == kills
    assert_all_well(server, "m", workers)


@pytest.mark.timeout(300)
def test_random_kills_in_quick_succession(serve):
    """No moment to die is a bad one: also while starting, and while writing its answer (WRK-06)."""
    server = serve(2)
    kills = 200 if LONG else 20
    with Load(server, "m", clients=8) as load:
        for number in range(kills):
            living = [child for child in server.children() if child.status() != psutil.STATUS_ZOMBIE]
            if living:
                os.kill(living[number % len(living)].pid, signal.SIGKILL)
            time.sleep(0.02 * (number % 17))
    print(f"{kills} kills: {dict(load.seen)}, slowest {load.slowest_s:.2f} s")
    assert not {"timeout", "mixed up", "reset", "closed", "refused"} & set(load.seen)
    assert_all_well(server, "m", 2)


def test_requests_wait_while_the_only_worker_is_replaced(serve):
    server = serve(1)
    os.kill(pids(server)["w0"], signal.SIGKILL)
    server.until(lambda: not pids(server) or not seats_ready(server, 1), what="the death is seen")
    assert server.get("/v2/models/m/ready")[0] == 503
    assert server.get("/v2/health/ready")[0] == 503
    assert server.get("/v2/health/live")[0] == 200
    answers = infer_together(server, "m", [1.0, 2.0, 3.0])
    assert [status for status, _ in answers] == [200] * 3
    assert_all_well(server, "m")


def test_ready_tells_the_truth_all_the_time_when_an_idle_worker_dies(serve):
    server = serve(1)
    polls = []
    stop = threading.Event()

    def poll():
        while not stop.is_set():
            polls.append((time.monotonic(), server.get("/v2/health/ready")[0]))
            time.sleep(0.02)

    thread = threading.Thread(target=poll)
    thread.start()
    server.until(lambda: polls, what="somebody asks")
    killed = time.monotonic()
    os.kill(pids(server)["w0"], signal.SIGKILL)
    server.until(lambda: polls[-1][1] == 503, what="not ready")
    server.until(lambda: polls[-1][1] == 200, what="ready again")
    stop.set()
    thread.join()
    down = [when - killed for when, status in polls if status == 503]
    print(f"seen after {down[0] * 1000:.0f} ms, ready again after {down[-1]:.2f} s")
    assert down[0] < 0.5
    assert down[-1] < 5.0
    assert_all_well(server, "m")


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGTERM, signal.SIGINT])
def test_signals_to_an_idle_worker(serve, number):
    """A stopped one is replaced within seconds. Polite signals are the server's to give: the worker ignores them."""
    server = serve(1)
    worker, began = pids(server)["w0"], time.monotonic()
    os.kill(worker, number)
    if number == signal.SIGSTOP:
        server.until(lambda: pids(server).get("w0", worker) != worker, 10, "it was replaced")
        print(f"replaced after {time.monotonic() - began:.1f} s")
        assert "silent for" in server.err
    else:
        time.sleep(0.3)
        assert pids(server)["w0"] == worker
    assert_all_well(server, "m")


def test_a_worker_that_is_stopped_with_a_batch(serve):
    server = serve(1, MODEL.replace("fixed_ms = 5", "fixed_ms = 60"))
    assert server.infer_x("m", 1.0)[0] == 200
    worker, answers = pids(server)["w0"], []
    thread = threading.Thread(target=lambda: answers.extend(infer_together(server, "m", [1.0, 2.0, 3.0])))
    thread.start()
    server.until(lambda: server.snapshot()["workers"][0]["state"] == "busy", what="the batch runs")
    os.kill(worker, signal.SIGSTOP)
    began = time.monotonic()
    thread.join(30)
    print(f"answered after {time.monotonic() - began:.1f} s")
    assert [status for status, _ in answers] == [200] * 3
    assert pids(server)["w0"] != worker
    assert_all_well(server, "m")


@pytest.mark.parametrize("everybody", [False, True], ids=["server", "server and workers"])
def test_a_frozen_server_does_not_kill_its_workers_when_it_wakes(serve, everybody):
    """Suspended laptops, paused containers, debuggers: silence that is our own says nothing about a worker."""
    text = MODEL.replace("fixed_ms = 5", "fixed_ms = 200\nbusy = true").replace("max_batch = 8", "max_batch = 1")
    text += "hang_min_s = 1.2\nhang_factor = 1.5\n"
    server = serve(2, text)
    assert server.infer_x("m", 1.0)[0] == 200
    before, answers = pids(server), []
    thread = threading.Thread(target=lambda: answers.extend(infer_together(server, "m", [1.0, 2.0])))
    thread.start()
    server.until(lambda: any(w["state"] == "busy" for w in server.snapshot()["workers"]), what="a batch runs")
    frozen = [server.process.pid, *(before.values() if everybody else ())]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(2.2)
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    thread.join(30)
    time.sleep(1.0)
    assert [status for status, _ in answers] == [200] * 2
    assert pids(server) == before
    assert restarts(server) == 0
    assert_all_well(server, "m", 2)
