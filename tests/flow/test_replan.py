"""The plan changes while the server answers: nothing is lost, every answer is right, and what fails changes nothing."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys

import psutil
import pytest
from repositories import Load, ask, folder
from server import Server

pytestmark = pytest.mark.slow

PLAN = "/hybrid/v1/plan"


@pytest.fixture
def server(tmp_path):
    folder(tmp_path, "m", 1.0, "[batching]\nmax_batch = 2")
    folder(tmp_path, "other", 100.0)
    with Server(options=["--repository", str(tmp_path)]) as running:
        yield running


def replan(server, model=None, *, profile=None, headers=None, **plan):
    body = {"plan": plan} | ({"model": model} if model else {}) | ({"profile": profile} if profile else {})
    return server.post(PLAN, body, headers)


def plan_of(server, model):
    return next(plan for plan in server.get(PLAN)[1] if plan["model"] == model)


def replans_of(server):
    return {entry["outcome"]: entry["n"] for entry in server.snapshot()["replans"]}


def pids_of(server, model):
    return {worker["pid"] for worker in server.workers() if worker["model"] == model}


def test_5_re_plans_under_load_lose_nothing_and_every_answer_is_right(server):
    steps = [
        ({"instances": 2}, True),
        ({"max_batch": 8, "max_wait_ms": 1.0}, False),
        ({"engine": "openvino"}, True),
        ({"instances": 1, "threads_per_instance": 2, "max_batch": 16}, True),
        (
            {"engine": None, "instances": None, "threads_per_instance": None, "max_batch": None, "max_wait_ms": None},
            True,
        ),
    ]
    other = pids_of(server, "other")
    with Load(server, "m", clients=4) as clients:
        for step, restarted in steps:
            status, (plan,) = replan(server, "m", **step)
            assert status == 200
            assert plan["restarted"] is restarted
            fixed = {key: value for key, value in step.items() if value is not None}
            assert set(fixed) <= set(plan["changed"])
            assert {key: plan[key] for key in fixed} == fixed
            assert len(pids_of(server, "m")) == plan["instances"]
    assert len(clients.answers) > 50
    assert set(clients.answers) == {(1.0, "1")}
    counted = next(m for m in server.snapshot()["models"] if m["name"] == "m")["outcomes"]
    assert counted["ok_n"] == sum(counted.values()) == len(clients.answers)
    assert replans_of(server) == {"workers": 4, "batcher": 1}
    assert server.snapshot()["config_rev"] == 5
    assert pids_of(server, "other") == other
    assert len(server.children()) == 2
    text = server.get("/metrics")[1]
    assert 'hybrid_replans_total{outcome="workers"} 4.0' in text


def test_what_is_the_same_is_left_alone_and_the_plan_says_since_when_and_why(server):
    assert plan_of(server, "m")["why"] == "planned at start"
    pids = pids_of(server, "m")
    status, plans = replan(server)
    assert status == 200
    assert [(p["model"], p["changed"], p["restarted"]) for p in plans] == [("m", [], False), ("other", [], False)]
    assert plan_of(server, "m")["why"] == "planned at start"
    replan(server, max_wait_ms=3.0)
    found = plan_of(server, "m")
    assert found["why"] == "re-planned at run time: max_wait_ms = 3.0"
    assert found["reasons"]["max_wait_ms"].startswith("Set by a re-plan at run time")
    assert 0.0 <= found["in_force_s"] < 10.0
    assert plan_of(server, "other")["max_wait_ms"] == 3.0
    in_force = next(m for m in server.snapshot()["models"] if m["name"] == "m")["in_force"]
    assert (in_force["max_wait_s"], in_force["source"]) == (0.003, "re-planned at run time: max_wait_ms = 3.0")
    assert pids_of(server, "m") == pids


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"plan": {"max_btch": 4}}, 400, "unknown key `plan.max_btch`; did you mean `plan.max_batch`?"),
        ({"plan": {"max_batch": 0}}, 400, "`plan.max_batch`: expected an integer >= 1"),
        ({"plan": {"early_trigger": 99}}, 400, "`early_trigger` 99 (a re-plan at run time) must not be above"),
        ({"plan": {"engine": "torch"}, "model": "m"}, 400, "`engine` torch"),
        ({"plan": []}, 400, "Expected `object`, got `array` - at `$.plan`"),
        ({"plans": {}}, 400, "unknown field `plans`"),
        ({"model": "nobody"}, 404, "no model named 'nobody' is served"),
        ({"profile": "nonsense"}, 400, "unknown profile `nonsense`"),
        ({"profile": "none", "model": "m"}, 400, "profile: is for all models"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(shared, body, status, said):
    before = [shared.get(PLAN)[1], pids_of(shared, "m")]
    got, answer = shared.post(PLAN, body)
    assert got == status
    assert said in answer["error"]
    after = [shared.get(PLAN)[1], pids_of(shared, "m")]
    for plan in (*before[0], *after[0]):
        del plan["in_force_s"]
    assert after == before


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    root = tmp_path_factory.mktemp("repository")
    folder(root, "m", 1.0)
    with Server(options=["--repository", str(root)]) as running:
        yield running


def test_workers_that_cannot_start_change_nothing(server, tmp_path):
    pids = pids_of(server, "m")
    (tmp_path / "m" / "m.onnx").unlink()
    with Load(server, "m", clients=2) as clients:
        status, answer = replan(server, instances=2, max_wait_ms=1.0)
    assert status == 500
    assert answer["code"] == "load_failed"
    assert "m.onnx" in answer["error"]
    assert answer["error"].endswith("; the plan before stays in force")
    assert set(clients.answers) == {(1.0, "1")}
    for model in ("m", "other"):
        assert (plan_of(server, model)["instances"], plan_of(server, model)["max_wait_ms"]) == (1, 0.0)
    assert pids_of(server, "m") == pids
    assert len(server.children()) == 2
    assert ask(server, "m") == 1.0
    assert replans_of(server) == {"failed": 1}
    assert server.err.count("nothing changed: ") == 1


def test_requests_on_the_way_are_answered_by_the_old_worker_whatever_the_drain_time(tmp_path):
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "model.toml").write_text("[simulated]\nfixed_ms = 100\n[workers]\ninstances = 1\n")
    options = ["--repository", str(tmp_path)]
    with (
        Server(options=options, config="[server]\ndrain_timeout_s = 0\n") as server,
        Load(server, "slow", clients=2) as clients,
    ):
        for instances in (2, 1):
            status, (plan,) = replan(server, instances=instances)
            assert (status, plan["restarted"]) == (200, True)
    assert len(clients.answers) >= 4
    assert [answer for answer in clients.answers if answer != (0.0, "1")] == []


def test_it_takes_the_admin_token_and_a_get_does_not():
    config = '[server]\nadmin_token = "secret"\napi_keys = ["key"]\n'
    with Server("simulated:null", config=config) as server:
        assert replan(server, max_batch=3, headers={"X-API-Key": "key"})[0] == 401
        assert replan(server, max_batch=3, headers={"X-Admin-Token": "wrong"})[0] == 401
        status, (plan,) = replan(server, max_batch=3, headers={"X-Admin-Token": "secret"})
        assert (status, plan["max_batch"]) == (200, 3)
        assert server.get(PLAN)[0] == 401


def test_texts_go_on_through_the_same_preprocess_process():
    text = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["A man plays the guitar. " * 40]}]}

    def embedding(server):
        return server.post("/v2/models/minilm/infer", text)[1]["outputs"][0]["data"]

    def preprocess(server):
        return {child.pid for child in server.children()} - pids_of(server, "minilm")

    with Server("minilm", options=["--workers", "1", "--threads", "1"]) as server:
        before, process = embedding(server), preprocess(server)
        assert len(process) == 1
        for instances in (2, 1):
            status, (plan,) = replan(server, "minilm", instances=instances)
            assert (status, plan["restarted"]) == (200, True)
            assert embedding(server) == pytest.approx(before, abs=1e-5)
            assert preprocess(server) == process


@pytest.mark.parametrize(
    "prefix", [(), ("nice", "-n", "3"), ("setpriv", "--bounding-set=-sys_nice")], ids=["plain", "nice", "unprivileged"]
)
def test_workers_that_started_gently_have_the_priority_of_the_server_in_all_their_threads(tmp_path, prefix):
    if prefix[:1] == ("setpriv",) and (os.getuid() or not shutil.which("setpriv")):
        pytest.skip("needs root and setpriv, to do without the privilege")
    folder(tmp_path, "m", 1.0)
    with Server(options=["--repository", str(tmp_path)], prefix=prefix) as server:
        assert server.process is not None
        usual = psutil.Process(server.process.pid).nice()
        assert replan(server, threads_per_instance=2)[0] == 200
        (pid,) = pids_of(server, "m")
        threads = os.listdir(f"/proc/{pid}/task")
        assert len(threads) >= 3  # main, beat, and one of the engine's own
        assert {os.getpriority(os.PRIO_PROCESS, int(thread)) for thread in threads} == {usual}
        assert ask(server, "m") == 1.0


# SIGHUP -------------------------------------------------------------------------------------------------------------


def test_sighup_reads_settings_and_profile_again(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("[plan]\nmax_batch = 4\n")
    with Server("simulated:null", config=f'profile = "{path}"\n', options=["--log-level", "info"]) as server:
        settings = server.settings_path
        assert plan_of(server, "simulated:null")["max_batch"] == 64

        path.write_text('[model."simulated:null"]\nmax_batch = 5\ninstances = 2\n')
        server.signal(signal.SIGHUP)
        server.until(lambda: plan_of(server, "simulated:null")["max_batch"] == 5, what="the new plan")
        assert plan_of(server, "simulated:null")["why"] == f"re-planned at run time: SIGHUP, profile {path}"
        assert len(pids_of(server, "simulated:null")) == 2
        server.until(lambda: "max_batch" in server.err and "other workers" in server.err, what="a line in the log")

        path.write_text("[plan]\nmax_batch = 'many'\n")
        server.signal(signal.SIGHUP)
        server.until(lambda: "SIGHUP: nothing changed: " in server.err, what="the broken profile in the log")
        assert server.err.count("nothing changed") == 1
        settings.write_text("profile = 7\n")
        server.signal(signal.SIGHUP)
        server.until(lambda: "`profile`: expected a string" in server.err, what="the broken settings in the log")
        assert plan_of(server, "simulated:null")["max_batch"] == 5

        settings.write_text('profile = "none"\n[server]\ndefault_timeout_s = 7\napi_keys = ["secret"]\n')
        server.signal(signal.SIGHUP)
        server.until(lambda: plan_of(server, "simulated:null")["max_batch"] == 64, what="the plan without a profile")
        server.until(lambda: "`server.default_timeout_s` has changed" in server.err, what="what waits for a start")
        assert "`server.api_keys` has changed; it takes effect at the next start" in server.err
        assert "secret" not in server.err
        assert server.infer_x("simulated:null", 1.0)[0] == 200


def test_a_terminal_that_is_closed_ends_the_server():
    ours, theirs = pty.openpty()
    code = (
        "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, '-m', 'hybrid', 'serve', 'simulated:null', '--port', '0'])"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    try:
        shown = b""
        while not re.search(rb"curl .*\n", shown):  # the last line: what is printed to a closed terminal is an error
            shown += os.read(ours, 4096)
        children = psutil.Process(process.pid).children(recursive=True)
        os.close(ours)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 0
        assert b"SIGHUP: draining" in said
        assert not psutil.wait_procs(children, timeout=3.0)[1]
    finally:
        process.kill()
        process.wait()
