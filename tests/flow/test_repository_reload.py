"""Models are loaded again under load: no request fails, and each answer is from one model."""

import json
import os
import re
import signal
import threading
import time

import psutil
import pytest
from repositories import Load, ask, folder, graphs, index, load, plus, truncate
from server import Server

pytestmark = pytest.mark.slow

LONG = bool(os.environ.get("HYBRID_LONG"))


@pytest.fixture
def server(tmp_path):
    folder(tmp_path, "m", 1.0, "[batching]\nmax_batch = 2")
    folder(tmp_path, "other", 100.0)
    with Server(options=["--repository", str(tmp_path)]) as running:
        yield running


def test_20_reloads_under_load_fail_no_request_and_mix_no_answer(server, tmp_path):
    path = tmp_path / "m" / "m.onnx"
    with Load(server, "m") as clients:
        for number in range(20):
            plus(path, 2.0 if number % 2 == 0 else 1.0)
            status, answer = load(server, "m")
            assert (status, answer) == (200, {})
            # The call has returned: from here on every new answer is of the new model.
            assert ask(server, "m") == (2.0 if number % 2 == 0 else 1.0)
    assert len(clients.answers) > 200
    assert set(clients.answers) == {(1.0, "1"), (2.0, "1")}
    changes = sum(a != b for a, b in zip(clients.answers, clients.answers[1:], strict=False))
    assert changes >= 20
    counted = next(m for m in server.snapshot()["models"] if m["name"] == "m")["outcomes"]
    assert counted["ok_n"] == len(clients.answers) + 20
    assert sum(counted.values()) == counted["ok_n"]
    assert len(server.children()) == 2


def test_a_failed_reload_keeps_the_old_one_until_the_file_is_whole(server, tmp_path):
    path = tmp_path / "m" / "m.onnx"
    with Load(server, "m", clients=2) as clients:
        plus(path, 2.0)
        truncate(path)
        status, answer = load(server, "m")
        assert status == 500
        assert answer["code"] == "load_failed"
        assert "m.onnx" in answer["error"]
        assert answer["error"].endswith("; the one before serves on")
        state, reason = index(server)["m", "1"]
        assert state == "READY"
        assert reason.startswith("the last load failed: ")
        assert server.get("/v2/health/ready")[0] == 200
        assert len(server.children()) == 2
        plus(path, 3.0)
        assert load(server, "m") == (200, {})
    assert set(clients.answers) <= {(1.0, "1"), (3.0, "1")}
    assert ask(server, "m") == 3.0
    assert index(server)["m", "1"] == ("READY", "")


def test_there_and_back_again_gives_the_bits_of_a_fresh_start(server, tmp_path):
    values = (0.3, 1e-7, 12345.678)
    fresh = [ask(server, "m", value) for value in values]
    found = []
    for k in (7.7, 1.0):
        plus(tmp_path / "m" / "m.onnx", k)
        assert load(server, "m")[0] == 200
        found.append([ask(server, "m", value) for value in values])
    assert found[0] != fresh
    assert found[1] == fresh


def test_changed_settings_are_in_force_and_shown(server, tmp_path):
    def shown():
        plan = next(plan for plan in server.get("/hybrid/v1/plan")[1] if plan["model"] == "m")
        in_force = next(m for m in server.snapshot()["models"] if m["name"] == "m")["in_force"]
        return plan["max_batch"], plan["max_wait_ms"], in_force["max_batch"], in_force["max_wait_s"]

    assert shown() == (2, 0.0, 2, 0.0)
    folder(
        tmp_path,
        "m",
        1.0,
        '[batching]\nmax_batch = 5\nmax_wait_s = 0.2\n[preprocess.image]\ninput = "photo"\nwidth = 2\nheight = 2',
    )
    assert load(server, "m")[0] == 500  # the model takes no image, and says so
    assert shown() == (2, 0.0, 2, 0.0)
    folder(tmp_path, "m", 1.0, "[batching]\nmax_batch = 5\nmax_wait_s = 0.2")
    assert load(server, "m")[0] == 200
    assert shown() == (5, 200.0, 5, 0.2)
    began = time.monotonic()
    assert ask(server, "m") == 1.0
    assert time.monotonic() - began > 0.2  # one row waits for company


def test_an_input_is_called_otherwise_after_a_reload(tmp_path):
    path = folder(tmp_path, "picture", 0.0)
    graphs.identity(path / "m.onnx", shape=("n", 3, 2, 2))
    toml = '[workers]\ninstances = 1\n[preprocess.image]\nwidth = 2\nheight = 2\ninput = "{}"\n'
    (path / "model.toml").write_text(toml.format("picture"))
    with Server(options=["--repository", str(tmp_path)]) as server:
        assert server.get("/v2/models/picture")[1]["inputs"][0]["name"] == "picture"
        before = server.snapshot()["front"]["pre_threads"]
        (path / "model.toml").write_text(toml.format("photo"))
        assert load(server, "picture") == (200, {})
        assert server.get("/v2/models/picture")[1]["inputs"][0]["name"] == "photo"
        assert server.snapshot()["front"]["pre_threads"] == before
        assert len(server.children()) == 1 + before


def counters(server):
    """Every series of /metrics that may only rise."""
    _, text = server.get("/metrics")
    names = set(re.findall(r"^# TYPE (\S+) (?:counter|histogram)$", text, re.MULTILINE))
    found = {}
    for line in text.splitlines():
        name, _, value = line.rpartition(" ")
        family = re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0])
        if not line.startswith("#") and (family in names or name.partition("{")[0] in names):
            found[name] = float(value)
    return found


def test_counters_never_fall(server, tmp_path):
    for _ in range(5):
        ask(server, "m")
    seen = counters(server)
    assert seen['hybrid_requests_total{model="m",outcome="ok",version="1"}'] == 5.0
    for step in ("load", "load", "unload", "load"):
        assert load(server, "m", step)[0] == 200
        after = counters(server)
        if step == "unload":  # worker slots of a model without workers are not there, and go on where they were later
            after |= {name: value for name, value in seen.items() if name.startswith("hybrid_worker_busy")}
        assert not [name for name, value in seen.items() if after.get(name, -1.0) < value]
        seen = after
        if step == "load":
            ask(server, "m")
    # Another version takes over: what is counted without a version goes on, too.
    (tmp_path / "m" / "m.onnx").unlink()
    folder(tmp_path, "m", 2.0, version="2")
    assert load(server, "m")[0] == 200
    assert ask(server, "m") == 2.0
    after = counters(server)
    assert not [name for name, value in seen.items() if after.get(name, -1.0) < value]
    assert after['hybrid_requests_total{model="m",outcome="ok",version="1"}'] == 8.0
    assert after['hybrid_requests_total{model="m",outcome="ok",version="2"}'] == 1.0


def test_a_signal_during_a_reload_ends_it_cleanly(tmp_path):
    path = tmp_path / "m"
    path.mkdir()
    (path / "model.toml").write_text("[workers]\ninstances = 1\n[simulated]\nstart_s = 0\n")
    server = Server(options=["--repository", str(tmp_path)]).start().wait_ready()
    (path / "model.toml").write_text("[workers]\ninstances = 1\n[simulated]\nstart_s = 20\n")
    results = []
    thread = threading.Thread(target=lambda: results.append(load(server, "m")))
    thread.start()
    server.until(lambda: len(server.children()) == 2, what="the new one starts")
    began = time.monotonic()
    server.signal(signal.SIGTERM)
    assert server.wait() == 0
    assert time.monotonic() - began < 5.0
    thread.join()
    assert results[0][0] == 503
    assert "stopping" in results[0][1]["error"]
    assert "Traceback" not in server.err
    server.stop()


def test_many_reloads_leave_nothing(server, tmp_path):
    """Growth in the first rounds is the allocator's; the report has all figures, the verdict those after them."""
    process = psutil.Process(server.process.pid)
    rounds = 30 if LONG else 10
    figures = []
    for number in range(2 * rounds):
        if number < rounds:  # over each other, then each after the other is gone
            assert load(server, "m")[0] == 200
        else:
            assert load(server, "m", "unload")[0] == 200
            assert load(server, "m")[0] == 200
        assert ask(server, "m") == 1.0
        figures.append((process.memory_info().rss, process.num_fds(), process.num_threads()))
    report = json.dumps({"rss_mib": [round(f[0] / 2**20, 1) for f in figures], "fds": [f[1] for f in figures]})
    print(report)
    half = rounds // 2
    for first in (half, rounds + half):  # the second half of each way
        last = first + rounds - half - 1
        assert figures[last][0] - figures[first][0] < 2 * 2**20, report
        # A connection that the client has just closed may still be there.
        assert max(f[1] for f in figures[first : last + 1]) <= 1 + max(f[1] for f in figures[: half + 1]), report
        assert figures[last][2] == figures[first][2]
    assert len(server.children()) == 2
