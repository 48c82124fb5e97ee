"""`hybrid batch`: every kind of input and output, bad rows, and what is refused before anything starts."""

import base64
import contextlib
import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
from batch_runs import batch, command, errors, results, simulated, summary, x_lines
from pictures import picture

pytestmark = pytest.mark.slow

ECHO = "simulated:echo"
SMALL = ("--workers", "1", "--max-batch", "2")


def test_tensors_in_jsonl_come_back_in_order_with_their_ids(tmp_path):
    values = [float(value) for value in range(300)]
    (tmp_path / "in.jsonl").write_text(x_lines(values, 2))
    said = summary(ECHO, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert [(r["index"], r["id"], r["outputs"]) for r in results(tmp_path / "out.jsonl")] == [
        (index, str(value), {"y": [value, value]}) for index, value in enumerate(values)
    ]
    assert (said["rows"], said["errors"], said["complete"], said["errors_file"]) == (300, 0, True, None)
    assert said["rows_per_s"] == pytest.approx(300 / said["seconds"], rel=0.1)  # seconds are rounded
    assert sum(said["released"].values()) == said["batches"] == 5  # of 64, the most that this device takes


def test_text_lines_unicode_and_blank_ones(tmp_path):
    texts = ["a cat", "", "zwei Hunde 🐕", "日本語のテキスト", "word " * 400]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    assert summary("minilm", tmp_path / "in.txt", tmp_path / "a.npy")["rows"] == len(texts)
    said = summary("minilm", tmp_path / "in.jsonl", tmp_path / "b.jsonl", *SMALL)
    assert (said["rows"], said["batches"], said["mean_batch"]) == (5, 3, 1.67)
    vectors = np.load(tmp_path / "a.npy")
    assert (vectors.shape, vectors.dtype) == ((5, 384), np.float32)
    found = results(tmp_path / "b.jsonl")
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(vectors, [row["outputs"]["embedding"] for row in found], atol=1e-5)


def test_a_folder_of_images_and_images_in_jsonl_agree(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for name, seed in (("b.png", 2), ("a.png", 1)):
        (folder / name).write_bytes(picture("PNG", seed))
    (folder / "c.jpg").write_bytes(b"no image")
    (folder / "notes.md").write_text("not one of them")
    said = summary("nsfw", folder, tmp_path / "a.jsonl", *SMALL)
    assert (said["rows"], said["errors"]) == (3, 1)
    found = results(tmp_path / "a.jsonl")
    assert [(r["index"], r["id"]) for r in found] == [(0, "a.png"), (1, "b.png")]
    ((bad,),) = [errors(tmp_path / "a.jsonl")]
    assert (bad["index"], bad["id"], bad["code"]) == (2, "c.jpg", "bad_request")
    lines = [
        {"id": "path", "image": "pictures/a.png"},
        {"id": "base64", "image": base64.b64encode((folder / "b.png").read_bytes()).decode()},
        {"id": "gone", "image": "pictures/gone.png"},
    ]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    summary("nsfw", tmp_path / "in.jsonl", tmp_path / "b.jsonl", *SMALL)
    again = {row["id"]: row["outputs"] for row in results(tmp_path / "b.jsonl")}
    for line, row in (("path", found[0]), ("base64", found[1])):
        (name,) = row["outputs"]
        np.testing.assert_allclose(again[line][name], row["outputs"][name], atol=1e-5)
    assert "no such file" in errors(tmp_path / "b.jsonl")[0]["error"]


def test_arrays_in_and_out(tmp_path):
    array = np.random.default_rng(1).random((500, 3))
    np.save(tmp_path / "in.npy", array)
    summary(ECHO, tmp_path / "in.npy", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), array.astype(np.float32))


def test_standard_input(tmp_path):
    said = summary(ECHO, "-", tmp_path / "out.jsonl", given=x_lines(range(70)).encode())
    assert said["rows"] == 70
    assert [row["outputs"]["y"] for row in results(tmp_path / "out.jsonl")] == [[float(v)] for v in range(70)]
    assert not (tmp_path / "out.jsonl.state.json").exists()
    again = batch(ECHO, "-", tmp_path / "out.jsonl", given=b"")
    assert (again.returncode, again.stderr) == (
        2,
        f"hybrid: error: {tmp_path}/out.jsonl: is there already, and not by this job; --fresh overwrites it\n",
    )


def test_bad_rows_are_listed_and_end_nothing(tmp_path):
    good = x_lines(range(100)).splitlines()
    wrong = {
        3: "{",
        50: '{"id": "s", "inputs": [{"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]}]}',
        51: '{"id": "d", "inputs": [{"name": "x", "datatype": "INT32", "shape": [1, 1], "data": [1]}]}',
        80: '{"text": "hello"}',
        99: '{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [-6007]}]}',
    }
    model = simulated(tmp_path, faults=True)
    lines = [wrong.get(index, line) for index, line in enumerate(good)]
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    said = summary(model, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert (said["rows"], said["errors"]) == (100, 5)
    assert said["errors_file"] == f"{tmp_path}/out.jsonl.errors.jsonl"
    found = errors(tmp_path / "out.jsonl")
    assert [(e["index"], e.get("id"), e["code"]) for e in found] == [
        (3, None, "bad_request"),
        (50, "s", "bad_request"),
        (51, "d", "bad_request"),
        (80, None, "bad_request"),
        (99, None, "output_invalid"),
    ]
    for error, words in zip(
        found, ("not JSON", "got 2 rows", "expected datatype FP32", "takes no text", "NaN"), strict=True
    ):
        assert words in error["error"]
    assert [row["index"] for row in results(tmp_path / "out.jsonl")] == [i for i in range(100) if i not in wrong]


def test_rows_that_break_the_engine_or_its_worker_fail_alone(tmp_path):
    model = simulated(tmp_path, batching="max_batch = 16", faults=True)
    values = [float(value) for value in range(60)]
    values[7], values[30], values[31] = -6001.0, -6002.0, -6008.0  # POISON, CRASH, MEMORY
    (tmp_path / "in.jsonl").write_text(x_lines(values))
    said = summary(model, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert said["errors"] == 3
    codes = [(e["index"], e["code"]) for e in errors(tmp_path / "out.jsonl")]
    assert codes == [(7, "bad_request"), (30, "worker_lost"), (31, "out_of_memory")]
    assert [row["index"] for row in results(tmp_path / "out.jsonl")] == [i for i in range(60) if i not in (7, 30, 31)]


def test_too_many_bad_rows_fail_it(tmp_path):
    (tmp_path / "in.jsonl").write_text("{\n" * 5 + x_lines(range(5)))
    done = batch(ECHO, tmp_path / "in.jsonl", tmp_path / "a.jsonl", "--max-errors", "4", "--quiet")
    assert (done.returncode, done.stdout) == (1, "")
    assert "5 rows failed, more than --max-errors 4 allows" in done.stderr
    assert batch(ECHO, tmp_path / "in.jsonl", tmp_path / "b.jsonl", "--max-errors", "5").returncode == 0
    (tmp_path / "bad.jsonl").write_text("{\n" * 5)
    done = batch(ECHO, tmp_path / "bad.jsonl", tmp_path / "c.jsonl", "--quiet")
    assert done.returncode == 1
    assert "every row failed" in done.stderr


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy"])
def test_nothing_in_nothing_out(tmp_path, name):
    (tmp_path / "in.jsonl").write_bytes(b"")
    assert summary(ECHO, tmp_path / "in.jsonl", tmp_path / name)["rows"] == 0
    if name.endswith("npy"):
        assert len(np.load(tmp_path / name)) == 0
    else:
        assert (tmp_path / name).read_bytes() == b""


def test_progress_goes_to_standard_error_as_plain_lines(tmp_path):
    (tmp_path / "in.jsonl").write_text(x_lines(range(50)))
    done = batch(ECHO, tmp_path / "in.jsonl", tmp_path / "out.jsonl")
    assert done.stdout.startswith("50 rows in ")
    assert f"to {tmp_path}/out.jsonl; 1 batches of 50.0 rows" in done.stdout
    assert "of 50 rows (" in done.stderr
    assert "\x1b" not in done.stderr
    quiet = batch(ECHO, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--fresh", "--quiet")
    assert (quiet.returncode, quiet.stderr) == (0, "")


def test_a_terminal_gets_a_bar(tmp_path):
    (tmp_path / "in.jsonl").write_text(x_lines(range(500)))
    model = simulated(tmp_path, batching="max_batch = 10", fixed_ms=20)
    ours, theirs = pty.openpty()
    try:
        done = subprocess.run(
            command(model, tmp_path / "in.jsonl", tmp_path / "out.jsonl"), stderr=theirs, timeout=60, check=False
        )
        os.set_blocking(ours, False)
        shown = ""
        with contextlib.suppress(BlockingIOError):
            while True:
                shown += os.read(ours, 1 << 16).decode(errors="replace")
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == 0
    assert "loading the model" in shown
    assert "500 of 500 rows (100 %)" in shown
    assert shown.rstrip().endswith("\x1b[?25h")  # the cursor is back


def test_refusals_are_one_line_and_leave_the_input_alone(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(x_lines(range(3)))
    np.save(tmp_path / "wide.npy", np.zeros((3, 3, 3)))
    wrong = {
        ("no.jsonl", "out.jsonl"): "no such file",
        ("in.jsonl", "out.csv"): "expected a file name that ends with .jsonl or .npy",
        ("in.jsonl", "in.jsonl"): "is the input",
        ("in.jsonl", "no/out.jsonl"): "cannot be written",
        ("wide.npy", "out.jsonl"): "does not fit model",
        ("empty", "out.jsonl"): "no images in this folder",
    }
    (tmp_path / "empty").mkdir()
    for (given, wanted), words in wrong.items():
        done = batch(ECHO, tmp_path / given, tmp_path / wanted, "--quiet")
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.splitlines()
        assert words in line
    assert source.read_text() == x_lines(range(3))


def test_a_model_that_cannot_start_is_told_in_its_own_words(tmp_path):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    (tmp_path / "in.jsonl").write_text(x_lines(range(3)))
    done = batch(str(tmp_path / "broken.onnx"), tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--quiet")
    assert done.returncode == 1
    assert "cannot start" in done.stderr


def test_a_full_disk_ends_it_with_one_line(tmp_path):
    (tmp_path / "in.jsonl").write_text(x_lines(range(3000), 50))
    code = (
        "import sys, resource; from hybrid.cli.main import main; import signal;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (200000, 200000));"
        "sys.argv[0] = 'hybrid'; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "batch", ECHO, str(tmp_path / "in.jsonl"), "--output", str(tmp_path / "o.jsonl"),
         "--quiet"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot be written: File too large" in done.stderr
    said = summary(ECHO, tmp_path / "in.jsonl", tmp_path / "o.jsonl")
    assert 0 < said["resumed_at"] < 3000
    assert [row["index"] for row in results(tmp_path / "o.jsonl")] == list(range(3000))
