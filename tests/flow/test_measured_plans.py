"""The plan is made from measurements: at the first start, from the cache at later ones, and never when told so."""

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from onnx_models import graphs
from server import Server

pytestmark = pytest.mark.slow

CONFIG = "[planner]\nprobe_budget_s = {budget}\ncache_folder = '{folder}'\n"


@pytest.fixture
def model(tmp_path):
    graphs.identity(tmp_path / "echo.onnx", shape=("n", 4))
    return str(tmp_path / "echo.onnx")


def plan(*arguments, cache, measure="auto"):
    """Run `hybrid plan --json`; returns the plan and what stood on stderr."""
    env = os.environ | {"HYBRID_MEASURE": measure, "XDG_CACHE_HOME": str(cache)}
    command = [sys.executable, "-m", "hybrid", "plan", "--json", "--profile", "none", *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def was_measured(found):
    return "batch times were taken" in found["reasons"]["device"]


def test_a_server_measures_once_and_plan_shows_what_it_serves(model, tmp_path):
    cache = tmp_path / "cache" / "hybrid" / "probes"
    config = CONFIG.format(budget=4, folder=cache)
    options = ("--profile", "none")
    with Server(model, config=config, env={"HYBRID_MEASURE": "auto"}, options=options) as server:
        assert "measured echo in" in server.err
        busy = "while other processes had" in server.err
        served = server.get("/hybrid/v1/plan")[1]
    kept = sorted(path.name for path in cache.iterdir() if path.name != "files.json")
    assert len(kept) == 1
    assert was_measured(served[0])
    if busy:
        pytest.skip("other processes use the CPUs, so that measuring again is right")
    began = time.monotonic()
    with Server(model, config=config, env={"HYBRID_MEASURE": "auto"}, options=options) as server:
        assert time.monotonic() - began < 4.0
        assert server.err == ""
        again = server.get("/hybrid/v1/plan")[1]
    shown, errors = plan(model, cache=tmp_path / "cache", measure="cached")
    assert errors == ""
    for found in (served, again, [shown]):
        assert was_measured(found[0])
        for key in ("engine", "instances", "threads_per_instance", "max_batch"):
            assert found[0][key] == served[0][key]


def test_without_leave_to_measure_nothing_is_started_or_kept(model, tmp_path):
    for measure in ("never", "cached"):
        found, errors = plan(model, cache=tmp_path / "cache", measure=measure)
        assert not was_measured(found)
        assert errors == ""
    assert not [path for path in (tmp_path / "cache").rglob("*.json") if path.name != "files.json"]


@pytest.mark.parametrize("name", ["gpu-8g", "gpu-24g", "gpu-80g", "gpu-141g", "gpu-mig-10g", "cpu-small"])
def test_simulated_devices_are_planned_by_their_declaration(tmp_path, name):
    found, errors = plan(f"simulated:{name}", cache=tmp_path)
    assert was_measured(found)
    assert (found["device"], found["instances"], errors) == ("simulated", 1, "")
    limits = {"gpu-8g": 30, "gpu-24g": 36, "gpu-80g": 264, "gpu-141g": 471, "gpu-mig-10g": 26}
    assert 1 <= found["max_batch"] <= limits.get(name, 512)
    assert list(tmp_path.rglob("*")) == []


def test_what_could_not_be_kept_is_known_when_a_server_plans_anew(model, tmp_path):
    (tmp_path / "file").write_text("")
    config = CONFIG.format(budget=2, folder=tmp_path / "file" / "probes")
    with Server(model, config=config, env={"HYBRID_MEASURE": "auto"}, options=("--profile", "none")) as server:
        assert "cannot be written, so the next start measures again" in server.err
        status, _ = server.post("/hybrid/v1/plan", {"plan": {"max_wait_ms": 1.0}})
        assert status == 200
        (found,) = server.get("/hybrid/v1/plan")[1]
    assert found["max_wait_ms"] == 1.0
    assert was_measured(found)


def test_ctrl_c_while_measuring_leaves_nothing(model, tmp_path):
    env = os.environ | {"HYBRID_MEASURE": "auto", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "hybrid", "plan", "--profile", "none", model]
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        ends = time.monotonic() + 20.0
        while not (children := psutil.Process(process.pid).children()):
            assert time.monotonic() < ends
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=10.0)
        assert (process.returncode, out) == (130, "")
        assert "Traceback" not in errors
        assert not psutil.wait_procs(children, timeout=3.0)[1]
        assert not [path for path in (tmp_path / "cache").rglob("*.json") if path.name != "files.json"]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_model_that_no_engine_can_load_is_an_error_as_it_is_for_a_server(tmp_path, form):
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    command = [sys.executable, "-m", "hybrid", "plan", *form, str(broken), "--measure"]
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([*command, "auto"], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("hybrid: error: "))
    assert line.startswith(f"hybrid: error: model broken cannot start: {broken} cannot be loaded: ")
    assert "Protobuf parsing failed" in line
    done = subprocess.run([*command, "never"], env=env, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0  # nobody has looked into it
