"""`hybrid batch` that does not get to its end: killed, interrupted, its input changed; and its memory on the way."""

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from batch_runs import batch, children_of, command, errors, is_alive, results, simulated, summary, x_lines

pytestmark = pytest.mark.slow

ROWS = 4000
BAD = {0, 77, 1500, 1501, 3999}


def until(condition, timeout_s: float = 20.0) -> None:
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "never happened"
        time.sleep(0.01)


def begin(model: str, source: Path, output: Path, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(model, source, output, *options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def many(tmp_path: Path) -> tuple[str, Path]:
    """A device on which 4,000 rows take about a second and a half, and these rows, some of them bad."""
    lines = x_lines(range(ROWS)).splitlines()
    for index in BAD:
        lines[index] = "{"
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    return simulated(tmp_path, batching="max_batch = 16", fixed_ms=5), tmp_path / "in.jsonl"


def check_whole(output: Path) -> None:
    assert [row["index"] for row in results(output)] == [index for index in range(ROWS) if index not in BAD]
    assert all(row["outputs"]["y"] == [float(row["index"])] for row in results(output))
    assert [error["index"] for error in errors(output)] == sorted(BAD)


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_again_and_again_it_ends_complete(tmp_path, seed):
    model, source = many(tmp_path)
    output = tmp_path / "out.jsonl"
    chance = random.Random(seed)
    kills = 0
    while kills < 3:
        process = begin(model, source, output, "--quiet")
        before = output.stat().st_size if output.exists() else 0
        until(lambda before=before: output.exists() and output.stat().st_size > before)
        time.sleep(chance.random() * 0.4)
        orphans = children_of(process.pid)
        process.kill()
        process.communicate()
        kills += 1
        until(lambda orphans=orphans: not any(map(is_alive, orphans)))
        # The kernel writes a page at a time: what a machine leaves that dies may end anywhere.
        os.truncate(output, output.stat().st_size - chance.randrange(120))
    said = summary(model, source, output, "--quiet")
    assert 0 < said["resumed_at"] < ROWS
    assert said["rows"] == ROWS - said["resumed_at"]
    assert said["rows_total"] == ROWS
    check_whole(output)
    again = batch(model, source, output)
    assert (again.returncode, again.stdout) == (0, "")
    assert f"complete already, {ROWS} rows" in again.stderr
    check_whole(output)


def test_a_worker_that_is_killed_costs_no_row(tmp_path):
    model, source = many(tmp_path)
    output = tmp_path / "out.jsonl"
    process = begin(model, source, output, "--json")
    for size in (2000, 50_000):
        until(lambda size=size: output.exists() and output.stat().st_size > size)
        (worker,) = children_of(process.pid)
        os.kill(worker, signal.SIGKILL)
        until(lambda worker=worker: not is_alive(worker))
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["errors"] == len(BAD)
    check_whole(output)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_it_cleanly_and_says_how_to_go_on(tmp_path, number, code):
    model, source = many(tmp_path)
    output = tmp_path / "out.npy"
    process = begin(model, source, output, "--json")
    until(lambda: output.exists() and output.stat().st_size > 2000)
    orphans = children_of(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == code
    assert "run the same command again to continue" in err
    said = json.loads(out)
    assert not said["complete"]
    assert 0 < said["rows"] < ROWS
    assert not any(map(is_alive, orphans))
    assert summary(model, source, output)["resumed_at"] == said["rows"]


def test_a_signal_while_the_model_loads(tmp_path):
    model = simulated(tmp_path, start_s=30.0)
    (tmp_path / "in.jsonl").write_text(x_lines(range(5)))
    process = begin(model, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    until(lambda: (tmp_path / "out.jsonl.state.json").exists() and children_of(process.pid))
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert out.startswith("0 rows in 0 s")


def test_another_input_is_refused_and_fresh_takes_it(tmp_path):
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(x_lines(range(20)))
    summary("simulated:null", source, output)
    with open(source, "a") as file:
        file.write(x_lines([99]))
    done = batch("simulated:null", source, output, "--quiet")
    assert done.returncode == 2
    assert "belongs to another job: the input had" in done.stderr
    assert len(results(output)) == 20
    done = batch("simulated:echo", source, output, "--quiet")
    assert done.returncode == 2
    assert summary("simulated:null", source, output, "--fresh")["rows"] == 21
    assert len(results(output)) == 21


def test_standard_input_that_stays_open_is_worked_on_and_can_be_interrupted(tmp_path):
    output = tmp_path / "out.jsonl"
    process = subprocess.Popen(
        command("simulated:null", "-", output, "--quiet"), stdin=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(x_lines(range(3)).encode())
    process.stdin.flush()
    until(lambda: output.exists() and output.read_bytes().count(b"\n") == 3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert b"standard input cannot be resumed" in err


def test_memory_does_not_grow_with_the_input(tmp_path):
    count = 100_000
    (tmp_path / "in.jsonl").write_text(x_lines(range(count), 16))
    process = begin("simulated:null", tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--quiet", "--json")
    watched = psutil.Process(process.pid)
    output, seen = tmp_path / "out.jsonl", []
    total = (tmp_path / "in.jsonl").stat().st_size
    while process.poll() is None:
        size = output.stat().st_size if output.exists() else 0
        try:
            seen.append((size / total, watched.memory_info().rss))
        except psutil.NoSuchProcess:
            break
        time.sleep(0.02)
    out, err = process.communicate()
    assert json.loads(out)["rows"] == count, err
    last = seen[-1][0]
    early = max(rss for share, rss in seen if share < 0.3 * last)
    late = max(rss for share, rss in seen if share > 0.6 * last)
    assert late - early < 8 << 20
