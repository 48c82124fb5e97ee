"""`hybrid baseline` from outside: its JSON, its verdicts on devices whose bottleneck is known, its errors."""

import json
import subprocess
import sys
import time

import psutil
import pytest
from server import Server

pytestmark = pytest.mark.slow


def baseline(*arguments):
    command = [sys.executable, "-m", "hybrid", "baseline", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def found(*arguments):
    done = baseline("--json", "--seconds", "0.4", *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where nobody looks
    return json.loads(done.stdout)


def test_a_device_on_which_batches_pay():
    result = found("simulated:gpu-80g")
    assert set(result["single"]) >= {"p50_ms", "p95_ms"}
    assert result["single"]["runs"] >= 24
    assert [level["concurrency"] for level in result["concurrency"]] == [1, 2, 4, 8, 16]
    for level in result["concurrency"]:
        assert level.keys() >= {"concurrency", "rps", "p50_ms", "p95_ms", "p99_ms"}
        assert level["errors"] == 0
        assert level["memory_bytes"] > 1_000_000
    rates = [level["rps"] for level in result["concurrency"]]
    assert rates[-1] > 2 * rates[0]
    assert result["single"]["p50_ms"] >= 4.1  # what the device takes
    assert result["bottleneck"] == "model"
    assert result["batching_helps"] is True
    assert result["advice"].endswith(".")


def test_a_device_on_which_they_do_not(tmp_path):
    (tmp_path / "model.toml").write_text('name = "rowwise"\nengine = "simulated"\n[simulated]\nper_row_ms = 12.0\n')
    result = found(str(tmp_path))
    assert result["bottleneck"] == "model"
    assert result["batching_helps"] is False
    assert result["batching_gain"] == pytest.approx(1.0, abs=0.1)


def test_a_running_server_and_a_table():
    with Server("simulated:echo", config='[server]\napi_keys = ["k3y"]\n') as server:
        refused = baseline("echo", "--url", server.base, "--seconds", "0.3")
        assert (refused.returncode, "401" in refused.stderr) == (1, True)
        done = baseline("echo", "--url", server.base, "--seconds", "0.3", "--api-key", "k3y")
        assert done.returncode == 0, done.stderr
        assert server.get("/v2/health/live")[0] == 200
    assert "bottleneck: model" in done.stdout
    assert done.stdout.count("\n") > 8


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("simulated:nothing",), 2, "expected one of"),
        (("simulated:echo", "--api-key", "k3y"), 2, "for the server at --url"),
        (("echo", "--url", "http://127.0.0.1:1", "--api-key", "kl\u00fc"), 2, "printable ASCII"),
        (("echo", "--url", "localhost:1"), 2, "expected http://HOST"),
        (("echo", "--url", "http://127.0.0.1:1"), 1, "refused"),
    ],
)
def test_a_wrong_argument_is_one_line(arguments, code, words):
    done = baseline(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_model_that_the_server_does_not_have_is_one_line():
    with Server("simulated:echo") as server:
        done = baseline("nobody", "--url", server.base)
    assert done.returncode == 1
    assert "404" in done.stderr


def test_a_killed_baseline_leaves_no_server():
    command = [sys.executable, "-m", "hybrid", "baseline", "simulated:null"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        ends = time.monotonic() + 20
        while len(family := psutil.Process(process.pid).children(recursive=True)) < 2:  # the server and its worker
            assert time.monotonic() < ends
            time.sleep(0.05)
        process.kill()
        gone, alive = psutil.wait_procs(family, timeout=20)
    assert (len(gone), alive) == (len(family), [])
