"""Starts and ends that nobody planned: signals while loading, kill -9 of the server, many starts in a row."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from abuse import LONG, Load, model_folder
from server import Server

pytestmark = pytest.mark.slow

SLOW_START = "[simulated]\nstart_s = 30\n"
TWO_WORKERS = "[simulated]\nfixed_ms = 20\n[workers]\ninstances = 2\n"

SERVE = [sys.executable, "-m", "hybrid", "serve", "simulated:null", "--port", "0"]


def gone(processes, within_s):
    """Whether all of them end in time (a zombie without a parent that reaps is as good as gone)."""
    began = time.monotonic()
    while any(_runs(process) for process in processes):
        if time.monotonic() - began > within_s:
            return False
        time.sleep(0.01)
    print(f"{len(processes)} processes gone after {time.monotonic() - began:.2f} s")
    return True


def _runs(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("numbers", [(signal.SIGTERM,), (signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_signals_while_the_model_loads(tmp_path, numbers):
    server = Server(model_folder(tmp_path / "m", SLOW_START)).start()
    server.until(server.children, what="the worker was started")
    time.sleep(0.5)
    children = server.children()
    began = time.monotonic()
    for number in numbers:
        server.signal(number)
    code = server.wait(20)
    assert time.monotonic() - began < 5.0
    assert code == 0 if len(numbers) == 1 else code in (0, 1)
    assert gone(children, 0.5)
    assert "ready on" not in server.out
    assert "Traceback" not in server.err
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5])
def test_a_signal_at_any_moment_of_the_start(delay_s, number):
    """Also before there is a handler: then the signal itself ends it, and there is nothing to leave behind."""
    server = Server("simulated:null").start()
    time.sleep(delay_s)
    server.signal(number)
    assert server.wait(10) in (0, -number)
    if number == signal.SIGINT:  # Python's own first steps answer it with a traceback, and none of ours
        assert not any(name in server.err for name in ("cli/main.py", "cli/serve.py", "app.py"))
    else:
        assert "Traceback" not in server.err
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.1, 0.2])
def test_a_signal_to_the_group_while_its_processes_start(tmp_path, number, delay_s):
    """As from a terminal or a service manager: the server decides what its processes do, from their first moment on."""
    server = Server(model_folder(tmp_path / "m", TWO_WORKERS), prefix=("setsid",)).start()
    server.until(server.children, what="the first worker was started")
    time.sleep(delay_s)
    children = server.children()
    os.killpg(server.process.pid, number)
    assert server.wait(10) == 0
    assert "Traceback" not in server.err
    assert gone(children, 0.5)
    server.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_after_the_drain_does_not_change_how_it_ended(number):
    server = Server("simulated:null").start().wait_ready()
    server.signal(signal.SIGTERM)
    server.until(lambda: "drained in" in server.err, 10, "drained")
    while server.process.poll() is None:
        server.signal(number)
        time.sleep(0.002)
    assert server.wait() == 0
    server.stop()


@pytest.mark.parametrize("load", [False, True], ids=["idle", "under load"])
def test_kill_9_of_the_server_takes_its_workers_along(tmp_path, load):
    server = Server(model_folder(tmp_path / "m", TWO_WORKERS)).start().wait_ready()
    children = server.children()
    assert len(children) == 2
    if load:
        with Load(server, "m", clients=8) as clients:
            server.until(lambda: clients.seen["ok"] > 20, what="the load runs")
            server.process.kill()
            assert gone(children, 5.0)
            clients.until_over()
        assert "timeout" not in clients.seen
    else:
        server.process.kill()
        assert gone(children, 5.0)
    server.stop()


def test_kill_9_of_the_server_while_workers_start_and_compute(tmp_path):
    server = Server(model_folder(tmp_path / "m", SLOW_START)).start()
    server.until(server.children, what="the worker was started")
    children = server.children()
    server.process.kill()
    assert gone(children, 5.0)
    server.stop()


def test_kill_9_of_a_server_with_preprocess_processes():
    server = Server("minilm").start().wait_ready()
    children = server.children()
    assert len(children) >= 2
    server.process.kill()
    assert gone(children, 5.0)
    server.stop()


@pytest.mark.timeout(240)
def test_starts_and_stops_in_a_row():
    """Nothing is written to stderr but why it ends and that it has, warnings being errors (ZOM-04)."""
    for number in range(20 if LONG else 3):
        with Server("simulated:null", env={"PYTHONWARNINGS": "error"}) as server:
            assert server.infer_x("simulated:null", float(number))[0] == 200
            children = server.children()
        assert server.process.returncode == 0
        assert gone(children, 0.5)
        lines = server.err.splitlines()
        assert len(lines) == 2, server.err
        assert "SIGTERM: draining" in lines[0]
        assert "drained in" in lines[1]


def test_many_servers_at_once_get_ports_of_their_own():
    servers = [Server("simulated:null").start() for _ in range(12 if LONG else 4)]
    ports = {server.wait_ready(90).port for server in servers}
    assert len(ports) == len(servers)
    assert all(server.infer_x("simulated:null", 1.0)[0] == 200 for server in servers)
    assert [server.stop() for server in servers] == [0] * len(servers)


def test_a_script_without_a_main_guard_is_not_run_again_in_each_worker(tmp_path):
    """Workers are programs of their own and no copies of whoever started the server (FRK-05)."""
    script = tmp_path / "script.py"
    script.write_text(
        "print('top level', flush=True)\n"
        "from hybrid.cli.main import run\n"
        "raise SystemExit(run(['serve', 'simulated:null', '--workers', '2', '--port', '0']))\n"
    )
    process = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    out = ""
    while "ready on" not in out:
        out += (line := process.stdout.readline())
        assert line
    assert len(psutil.Process(process.pid).children(recursive=True)) == 2
    process.terminate()
    out += process.communicate(timeout=10)[0]
    assert process.returncode == 0
    assert out.count("top level") == 1
