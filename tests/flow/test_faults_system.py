"""Machines that are short of something: CPUs, files, places to write, a reader of the log, shared memory."""

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from abuse import Load, assert_all_well, body_of, model_folder, pids
from server import Server

from hybrid.engines import simulated_engine as sim
from hybrid.models.catalog import resolve

pytestmark = pytest.mark.slow

CPUS = sorted(os.sched_getaffinity(0))
TWO_CPUS = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
#: Main, heartbeat, and one that onnxruntime starts when it is imported.
OWN_THREADS = 3


def in_namespace(mounts):
    """A prefix that runs a command with other mounts, seen by nobody else; skips where that is not allowed."""
    command = ["unshare", "-m", "sh", "-c", f'{mounts} && exec "$0" "$@"']
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("mount namespaces are not allowed here")
    return command


def threads(pid):
    return psutil.Process(pid).num_threads()


def embed(server, texts):
    body = {"inputs": [{"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}]}
    return server.post("/v2/models/minilm/infer", body)


@TWO_CPUS
@pytest.mark.parametrize("cpu", [CPUS[0], CPUS[-1]])
def test_one_cpu_of_several(cpu):
    with Server("minilm", prefix=["taskset", "-c", str(cpu)]) as server:
        assert f"1 usable of {cpu}" in server.out
        workers = server.workers()
        assert len(workers) == 1
        assert workers[0]["cores"] == [cpu]
        assert psutil.Process(workers[0]["pid"]).cpu_affinity() == [cpu]
        assert threads(workers[0]["pid"]) <= OWN_THREADS
        assert embed(server, ["a text"])[0] == 200
        assert server.err == ""  # no complaint of an engine about affinity


@TWO_CPUS
def test_two_workers_share_no_cpu():
    with Server("minilm", options=["--workers", "2"]) as server:
        affinities = [psutil.Process(pid).cpu_affinity() for pid in pids(server).values()]
        assert len(affinities) == 2
        assert not set(affinities[0]) & set(affinities[1])
        assert all(threads(pid) <= OWN_THREADS for pid in pids(server).values())
        assert len({worker["cores"][0] for worker in server.workers()}) == 2


def test_engine_threads_are_what_the_plan_says():
    """Two threads: one more of the engine and one more of numpy's BLAS, which only calls that use it wake."""
    with Server("minilm", options=["--workers", "1", "--threads", "2"]) as server:
        assert threads(pids(server)["w0"]) <= OWN_THREADS + 2


def test_more_workers_than_cpus_are_not_pinned(tmp_path):
    count = len(CPUS) + 2
    with Server("minilm", options=["--workers", str(count)]) as server:
        assert "would overlap" in " ".join(server.out.split())
        assert len(pids(server)) == count
        assert all(psutil.Process(pid).cpu_affinity() == CPUS for pid in pids(server).values())


def test_read_only_model_folder(tmp_path):
    original = resolve("minilm")
    folder = tmp_path / "m"
    model_folder(folder, 'name = "minilm"\nfile = "model.onnx"\npostprocess = "mean_pool_l2"\n[preprocess.text]\n')
    shutil.copy(original.file, folder / "model.onnx")
    shutil.copy(original.preprocess.text.tokenizer, folder / "tokenizer.json")
    mounts = (
        f"mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}' && ! touch '{folder}/x' 2>/dev/null"
    )
    with Server(str(folder), prefix=in_namespace(mounts)) as server:
        assert embed(server, ["a text"])[0] == 200
        assert server.err == ""


@pytest.mark.parametrize("kind", ["missing", "read-only"])
def test_no_place_for_temporary_files(tmp_path, kind):
    place = tmp_path / "tmp"
    prefix = []
    if kind == "read-only":
        place.mkdir()
        prefix = in_namespace(f"mount -t tmpfs -o ro,size=4k none '{place}'")
    with Server("minilm", env={"TMPDIR": str(place), "HOME": str(place)}, prefix=prefix) as server:
        assert embed(server, ["a text"])[0] == 200
        assert server.err == ""


@pytest.mark.parametrize(
    "mounts",
    [
        "mount -t tmpfs -o ro,size=4k none /dev/shm",
        "mount -t tmpfs -o size=64k none /dev/shm",
        "mount --bind /proc/1/fdinfo /dev/shm",
    ],
    ids=["read-only", "tiny", "useless"],
)
def test_dev_shm_is_not_needed(tmp_path, mounts):
    """Large tensors go through memfd: no bus error, and no lock that wants a semaphore in /dev/shm."""
    prefix = in_namespace(mounts)
    with Server("minilm", model_folder(tmp_path / "m", "[simulated]\n"), prefix=prefix) as server:
        assert embed(server, ["a text"])[0] == 200
        rows = 64
        status, answer = server.post(
            "/v2/models/m/infer",
            {"inputs": [{"name": "x", "shape": [rows, 20_000], "datatype": "FP32", "data": [1.0] * rows * 20_000}]},
        )
        assert status == 200
        assert len(answer["outputs"][0]["data"]) == rows * 20_000
        assert server.err == ""


def test_few_open_files_and_many_connections():
    """300 connections where 256 files are allowed: refused with an answer, never a crash, and served again after."""
    prefix = ["sh", "-c", 'ulimit -n 256 && exec "$0" "$@"']
    with Server("simulated:null", prefix=prefix) as server:
        sockets = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(300)]
        assert select.select(sockets, [], [], 10)[0], "nobody was told anything"
        refused = 0
        for sock in sockets:
            sock.setblocking(False)
            try:
                refused += b"503" in sock.recv(1000)
            except OSError:
                pass
        print(f"{refused} of 300 were told 503")
        assert refused > 0
        worker = pids_or_none(server)
        assert worker is None  # too many are open for one more
        os.kill(server.children()[0].pid, signal.SIGKILL)  # its successor needs descriptors, and finds some
        for sock in sockets:
            sock.close()
        server.until(lambda: pids_or_none(server) is not None, what="connections are taken again")
        assert_all_well(server, "simulated:null")
        told = [line for line in server.err.splitlines() if "max_connections" in line or "refused" in line]
        assert 1 <= len(told) <= 3


def pids_or_none(server):
    try:
        return pids(server)
    except (OSError, TypeError, KeyError):
        return None


@pytest.fixture
def full_pipe():
    """The end to write to of a pipe that nobody reads, and a function that fills it."""
    read, write = os.pipe()

    def fill():
        os.set_blocking(write, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(write, b"." * 4096)
        os.set_blocking(write, True)  # the flag is shared with the server

    yield write, fill
    os.close(read)
    os.close(write)


def test_a_log_that_nobody_reads(tmp_path, full_pipe):
    """stderr is a full pipe: serving goes on, faults and restarts included, and SIGTERM still ends it (LOG-03)."""
    write, fill = full_pipe
    folder = model_folder(tmp_path / "m", "[simulated]\nfixed_ms = 2\nfaults = true\n")
    server = Server(folder, options=["--log-level", "debug"], stderr=write).start().wait_ready()
    fill()
    for number in range(300):
        assert server.infer_x("m", [sim.RAISE, sim.MEMORY][number % 2], columns=2 + number)[0] == 500
    assert server.infer_x("m", sim.CRASH)[0] == 500
    with Load(server, "m", clients=8) as load:
        time.sleep(1.0)
    assert set(load.seen) == {"ok"}
    assert_all_well(server, "m")
    began = time.monotonic()
    assert server.stop() == 0
    assert time.monotonic() - began < 5.0


@pytest.mark.parametrize("numbers", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM,)], ids=["forced", "too slow"])
def test_a_full_log_does_not_hold_an_end_with_an_error(tmp_path, full_pipe, numbers):
    write, fill = full_pipe
    config = "[server]\ndrain_timeout_s = 0.5\ndefault_timeout_s = 0.4\n"
    server = Server("simulated:faulty", config=config, stderr=write).start().wait_ready()
    fill()
    body = json.dumps(body_of([[sim.SLOW]]) | {"parameters": {"timeout": 20_000_000}}).encode()
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        head = f"POST /v2/models/simulated:faulty/infer HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        sock.sendall(head.encode() + body)
        server.until(lambda: server.snapshot()["front"]["inflight"] == 2, what="the request is in flight")
        for number in numbers:
            server.signal(number)
            time.sleep(0.1)
        assert server.wait(6) == 1
    server.stop()


def test_the_log_can_be_a_file_on_a_full_disk():
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    with open("/dev/full", "w") as full:
        server = Server("simulated:faulty", stderr=full.fileno()).start().wait_ready()
    for number in range(5):
        assert server.infer_x("simulated:faulty", sim.RAISE, columns=2 + number)[0] == 500
    assert_all_well(server, "simulated:faulty")
    assert server.stop() == 0
