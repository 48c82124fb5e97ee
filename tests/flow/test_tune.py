"""`hybrid tune` from outside: what it prints and writes, being interrupted, a server that runs already, its errors."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from server import Server

from hybrid.load.target import Target
from hybrid.models.catalog import resolve
from hybrid.tune.run import bounds_of, own_lab

pytestmark = pytest.mark.slow

SETTINGS = ("--seconds-per-trial", "0.1", "--settings", "2")
#: Ends in the middle, which is enough where the result does not matter.
SHORT = (*SETTINGS, "--slo-p99-ms", "80", "--budget-s", "8")
#: Enough for the whole search: what is left of a budget decides where a search ends, and replaying takes none of it.
WHOLE = (*SHORT[:-1], "200")


@pytest.fixture
def folders(tmp_path):
    """An environment whose cache and profiles are this test's, and a model: 5 ms for any batch, 1 ms for each row."""
    return made_in(tmp_path)


def made_in(folder):
    """Its device holds few rows, so that no trial waits for crowds."""
    model = folder / "rows"
    model.mkdir()
    (model / "model.toml").write_text(
        'name = "rows"\nengine = "simulated"\n[simulated]\nfixed_ms = 5.0\nper_row_ms = 1.0\n'
        "memory_total_bytes = 1_000_000\nmemory_weights_bytes = 200_000\nmemory_per_row_bytes = 32_000\n"
        "[batching]\nmax_batch = 16\n"
    )
    env = {"XDG_CACHE_HOME": str(folder / "cache"), "XDG_CONFIG_HOME": str(folder / "config")}
    return model, os.environ | env


def hybrid(env, *arguments, timeout_s=110):
    command = [sys.executable, "-m", "hybrid", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s, env=env)


def journal_lines(env):
    found = list(Path(env["XDG_CACHE_HOME"]).glob("hybrid/tune/*.jsonl"))
    return found[0].read_bytes().splitlines() if found else []


class Page(HTMLParser):
    """Which tags a file has, and what it would fetch from elsewhere."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched, self.open = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.fetched += [value for name, value in attrs if name in ("src", "href")]


def stopped(env, numbers, *arguments):
    """Begin a search, send it signals when a few trials are in its journal, and return (exit code, stderr)."""
    command = [sys.executable, "-m", "hybrid", "tune", *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as process:
        ends = time.monotonic() + 60
        while len(journal_lines(env)) < 4:
            assert time.monotonic() < ends
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.05)
        _, said = process.communicate(timeout=60)
    return process.returncode, said


@pytest.fixture(scope="module")
def search(tmp_path_factory):
    """A search that was interrupted, its journal then, and how the same command went on and ended."""
    model, env = made_in(tmp_path_factory.mktemp("search"))
    code, said = stopped(env, [signal.SIGINT], model, *WHOLE)
    kept = journal_lines(env)
    page = model / "tune.html"
    done = hybrid(env, "tune", model, *WHOLE, "--resume", "--json", "--save", "mine", "--report", page)
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(
        model=model, env=env, code=code, said=said, kept=kept, page=page.read_text(), found=json.loads(done.stdout)
    )


def test_an_interrupted_search_goes_on_where_it_was(search):
    assert search.code == 130
    assert re.search(r"kept in .*\.jsonl; add --resume", search.said)
    assert "Traceback" not in search.said
    assert search.found["resumed_trials"] == len(search.kept) - 1
    assert journal_lines(search.env)[: len(search.kept)] == search.kept
    again = hybrid(search.env, "tune", search.model, *WHOLE, "--resume")  # all is there: the same result, at once
    assert again.returncode == 0, again.stderr
    assert f"{search.found['best']['rps']:.4g} requests/s" in again.stdout


def test_the_result_as_json_and_as_a_profile(search):
    found, best = search.found, search.found["best"]
    assert found.keys() >= {"best", "trials", "knee", "space", "measured"}
    assert best.keys() >= {"model", "device", "engine", "instances", "threads_per_instance", "max_batch", "max_wait_ms"}
    assert best.keys() >= {"early_trigger", "batching", "queue_rows", "reasons", "rps", "p99_ms"}
    assert best["p99_ms"] <= 80
    assert 167 < best["rps"] < 1000  # a row alone takes 6 ms, and 1 ms in a batch without end
    assert best["max_batch"] > 1
    assert found["measured"] == 2 < found["space"]
    assert {trial["stage"] for trial in found["trials"]} >= {"probe", "round", "rate", "confirm"}
    assert len(journal_lines(search.env)) == len(found["trials"]) + 1
    shown = hybrid(search.env, "plan", search.model, "--profile", "mine", "--json")
    assert json.loads(shown.stdout)["max_batch"] == best["max_batch"]


def test_the_result_as_a_page(search):
    assert {"svg", "polyline", "table"} <= Page(search.page).tags
    assert not Page(search.page).fetched
    assert not Page(search.page).tags & {"script", "link", "img"}


def test_a_running_server_gets_its_plan_back(folders, tmp_path):
    model, env = folders
    page = tmp_path / "tune.html"
    config = '[server]\nadmin_token = "s3cret"\napi_keys = ["k3y"]\n'
    with Server(str(model), config=config, options=("--max-batch", "3")) as server:
        before = plan_of(server)
        unknown = hybrid(env, "tune", "rows", "--url", server.base, *SHORT)
        assert (unknown.returncode, "401" in unknown.stderr) == (1, True)
        at = ("--url", server.base, "--api-key", "k3y")
        refused = hybrid(env, "tune", "rows", *at, *SHORT)
        assert refused.returncode == 1
        assert "admin token" in refused.stderr
        env["HYBRID_ADMIN_TOKEN"] = "s3cret"
        # As a closed terminal does: one signal ends the search, the other comes while the plan is put back.
        code, said = stopped(env, [signal.SIGHUP, signal.SIGTERM], "rows", *at, *SHORT)
        assert (code, "add --resume" in said) == (128 + signal.SIGHUP, True), said
        assert plan_of(server) == before
        del env["HYBRID_ADMIN_TOKEN"]
        more = ("--resume", "--json", "--report", page, "--admin-token", "s3cret")
        done = hybrid(env, "tune", "rows", *at, *SHORT, *more)
        assert done.returncode == 0, done.stderr
        assert plan_of(server) == before
    assert before["max_batch"] == 3
    found = json.loads(done.stdout)
    assert found["best"]["model"] == "rows"
    assert found["resumed_trials"] >= 3
    assert "--admin-token" in page.read_text()
    assert "s3cret" not in page.read_text()
    assert "--api-key" in page.read_text()
    assert "k3y" not in page.read_text()


def plan_of(server):
    plans = json.loads(Target(server.base, api_key="k3y").call("/hybrid/v1/plan"))
    return {key: value for key, value in plans[0].items() if key in ("instances", "max_batch", "max_wait_ms")}


@pytest.mark.parametrize(("memory", "largest"), [(0, 256), (1_000_000, 40)])
def test_the_largest_batch_of_a_device_is_what_it_holds_and_not_what_its_plan_has(tmp_path, memory, largest):
    model = tmp_path / "device"
    model.mkdir()
    (model / "model.toml").write_text(
        f'name = "device"\nengine = "simulated"\n[simulated]\nfixed_ms = 5.0\nper_row_ms = 0.1\n'
        f"memory_total_bytes = {memory}\nmemory_weights_bytes = 200_000\nmemory_per_row_bytes = 16_000\n"
    )
    with own_lab(str(model), resolve(str(model)), "") as lab:
        assert lab.served.plan["max_batch"] < 256
        assert bounds_of(lab, ("simulated",), 2, 32).largest == largest


def test_an_objective_that_no_request_can_hold_is_told_the_figure(folders):
    model, env = folders
    done = hybrid(env, "tune", model, *SETTINGS, "--slo-p99-ms", "2")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert re.search(r"--slo-p99-ms 2: a single request takes \d", done.stderr)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("simulated:nothing",), 2, "expected one of"),
        (("simulated:echo", "--slo-p99-ms", "0"), 2, "--slo-p99-ms"),
        (("simulated:echo", "--slo-p99-ms", "5", "--objective", "throughput"), 2, "looks at no latency"),
        (("simulated:echo", "--api-key", "k3y"), 2, "for the server at --url"),
        (("simulated:echo", "--save", "../mine"), 2, "cannot be the name of a profile"),
        (("simulated:echo", "--report", "/nowhere/tune.html"), 2, "does not exist"),
        (("echo", "--url", "http://127.0.0.1:1"), 1, "refused"),
        (("echo", "--url", "localhost:1"), 2, "expected http://HOST"),
    ],
)
def test_a_wrong_argument_is_one_line(folders, arguments, code, words):
    done = hybrid(folders[1], "tune", *arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1), done.stderr
    assert words in done.stderr
