"""The load generator against real servers: it is on time, hides no stall, and ends by itself."""

import asyncio
import gc
import os
import signal
import socket
import threading
import time

import psutil
import pytest
from server import Server

from hybrid.errors import StartupError
from hybrid.load.arrivals import Closed, Constant, Poisson, Sending, Trace
from hybrid.load.driver import drive
from hybrid.load.many import drive_many, processes_for, run
from hybrid.load.payloads import Payload
from hybrid.load.punctual import first_in_line
from hybrid.load.spec import LoadSpec

pytestmark = pytest.mark.slow

BODY = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1.0]}]}'
STALL_S = 1.0


@pytest.fixture(scope="module")
def server():
    with Server("simulated:null") as running:
        yield running


def spec(server, arrivals, seconds, model="null", **more):
    url = f"{server.base}/v2/models/{model}/infer"
    return LoadSpec(url=url, payloads=(Payload(BODY),), arrivals=arrivals, seconds=seconds, **more)


def stalled(server, at_s, load):
    """Run a load while the server's own process is stopped for a second; the result, and how long it really was."""
    taken = []

    def stop():
        time.sleep(at_s)
        server.signal(signal.SIGSTOP)
        began = time.monotonic()
        time.sleep(STALL_S)
        taken.append(time.monotonic() - began)
        server.signal(signal.SIGCONT)

    thread = threading.Thread(target=stop)
    thread.start()
    try:
        return run(load, 1), taken
    finally:
        thread.join()


def test_a_thousand_a_second_are_sent_in_time(server):
    result = run(spec(server, Poisson(1000.0, seed=1), 2.0, warmup_s=0.3))
    print(f"send lag at 1,000/s: p99 {1e3 * result.lag_p99_s:.2f} ms, max {1e3 * result.lag_max_s:.2f} ms")
    assert result.offered_n == pytest.approx(2000, rel=0.1)
    assert result.ok_n == result.offered_n
    assert result.lag_p99_s < 0.5  # loose: other work may take this machine's cores; alone it is far below 2 ms


@pytest.mark.parametrize(
    ("arrivals", "first"), [(Constant(50.0), True), (Constant(500_000.0), False), (Closed(2), False)]
)
def test_only_what_takes_little_of_the_cpus_goes_before_the_server(server, arrivals, first):
    seen = set()

    async def watched():
        load = asyncio.create_task(drive(spec(server, arrivals, 0.2, max_requests=500)))
        while not load.done():
            await asyncio.sleep(0.01)
            seen.add(os.sched_getscheduler(0) != ordinary)
        return await load

    ordinary = os.sched_getscheduler(0)
    with first_in_line():
        may = os.sched_getscheduler(0) != ordinary
    assert asyncio.run(watched()).ok_n > 0
    assert (True in seen) == (first and may)
    assert os.sched_getscheduler(0) == ordinary


def test_the_collector_does_not_look_at_what_there_was_before_a_run(server):
    frozen = []
    before = gc.get_freeze_count()
    look = threading.Timer(0.3, lambda: frozen.append(gc.get_freeze_count()))
    look.start()
    assert run(spec(server, Constant(50.0), 0.6)).ok_n == 30
    look.join()
    assert frozen[0] > before + 1000
    assert gc.get_freeze_count() == before


def test_a_stall_of_the_server_is_seen_at_its_full_length(server):
    result, taken = stalled(server, 0.7, spec(server, Constant(250.0), 3.0))
    print(f"stall {taken[0]:.3f} s: p99.9 {result.latency_at(0.999):.3f} s, max {result.latency_max_s:.3f} s")
    assert result.offered_n == result.ok_n == 750
    assert result.latency_at(0.999) == pytest.approx(taken[0], rel=0.1)
    assert result.latency_max_s == pytest.approx(taken[0], rel=0.1)
    # A request every 4 ms found the stall, each a little shorter: a quarter of all waited longer than this.
    assert result.latency_at(0.75) > 0.1 * STALL_S


def test_an_open_loop_does_not_slow_down_with_the_server_and_a_closed_one_does(server):
    opened, _ = stalled(server, 0.5, spec(server, Constant(100.0), 2.0))
    closed, _ = stalled(server, 0.5, spec(server, Closed(1, think_s=0.01), 2.0))
    assert opened.offered_n == 200
    assert closed.offered_n < 120
    # The same stall: half of all that came from outside met it, and one request of the client that waits.
    assert opened.latency_at(0.9) > 0.5 * STALL_S
    assert closed.latency_at(0.9) < 0.5 * STALL_S


def test_a_generator_that_is_late_says_so():
    with Server("simulated:null") as other:
        late = spec(other, Constant(500.0), 1.0, lag_limit_s=0.05)

        async def hog():
            task = asyncio.create_task(drive(late))
            await asyncio.sleep(0.4)
            time.sleep(0.3)  # noqa: ASYNC251  # on purpose: the generator's own loop is held up
            return await task

        result = asyncio.run(hog())
    assert result.void
    assert result.lag_max_s > 0.25
    assert result.latency_max_s >= result.lag_max_s - 0.01  # the delay is in the latency as well, not lost


def test_several_processes_are_one_load(server):
    result = run(spec(server, Poisson(400.0, seed=4), 1.5, slo_s=5.0), 2)
    alone = spec(server, Poisson(400.0, seed=4), 1.5)
    assert result.processes_n == 2
    assert result.ok_n == result.offered_n == result.latency.count == result.good_n
    assert result.offered_n == pytest.approx(600, rel=0.15)
    assert processes_for(alone) == 1
    assert processes_for(spec(server, Poisson(900_000.0), 1.0)) >= 1


def test_a_cancelled_load_leaves_nothing(server):
    async def cancelled(processes):
        task = asyncio.create_task(drive_many(spec(server, Poisson(50.0), 60.0), processes))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = len(psutil.Process().children())
    for processes in (1, 2):
        asyncio.run(cancelled(processes))
    assert len(psutil.Process().children()) == before
    server.until(lambda: server.snapshot()["front"]["conns"] <= 1, 5, "connections closed")


def test_a_slow_model_has_throughput_though_no_request_fits_into_the_window(tmp_path):
    (tmp_path / "model.toml").write_text(
        'name = "slow"\nengine = "simulated"\n[simulated]\nper_row_ms = 25.0\n[batching]\nmax_batch = 8\n'
    )
    with Server(str(tmp_path)) as slow:
        result = run(spec(slow, Closed(64), 1.4, "slow", warmup_s=0.3))
    assert result.latency_at(0.1) > 1.4
    assert result.rps == pytest.approx(40.0, rel=0.3)


def test_requests_wait_for_a_free_connection_within_their_latency():
    with Server("simulated:echo", options=["--max-batch", "1"]) as slow:
        result = run(spec(slow, Trace(tuple(Sending(0.0) for _ in range(100))), 1.0, "echo", max_connections=2))
    assert result.connections_n == 2
    assert result.ok_n == 100
    assert result.latency_max_s > 0.05  # 1 ms each, two at a time
    assert result.latency_at(0.9) > 2 * result.latency_at(0.1)


def test_refusals_are_counted_by_status(server):
    result = run(spec(server, Constant(50.0), 0.4, "nobody"))
    assert [(entry.status, entry.n) for entry in result.statuses] == [(404, 20)]
    assert result.errors_n == 20
    assert "nobody" in result.first_error


@pytest.fixture
def mute():
    """A port that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/"


def silent(url, arrivals, **more):
    return LoadSpec(url=url, payloads=(Payload(b"{}"),), arrivals=arrivals, seconds=0.3, **more)


def test_requests_without_an_answer_time_out(mute):
    result = run(silent(mute, Constant(20.0), timeout_s=0.2))
    assert result.timeouts_n == result.offered_n == 6
    assert result.latency_at(0.5) == pytest.approx(0.2, rel=0.03)


def test_a_run_ends_when_its_time_to_drain_is_over(mute):
    began = time.monotonic()
    result = run(silent(mute, Closed(3), drain_s=0.2))
    assert time.monotonic() - began < 5.0
    assert (result.unfinished_n, result.offered_n, result.errors_n) == (3, 3, 0)


def test_a_server_that_dies_breaks_requests_and_ends_no_run():
    with Server("simulated:null") as dying:
        threading.Timer(0.4, dying.process.kill).start()
        result = run(spec(dying, Constant(100.0), 1.0))
    assert result.offered_n == 100
    assert result.broken_n > 20
    assert result.broken_n + result.ok_n == 100
    assert result.first_error


def test_nobody_listening_is_one_line():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for processes in (1, 2):
        with pytest.raises(StartupError, match=f"cannot connect to http://127.0.0.1:{port}"):
            run(silent(f"http://127.0.0.1:{port}/", Constant(1.0)), processes)
