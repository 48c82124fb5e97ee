"""Results and faults on disk: written in order, cut anywhere, continued so that nothing is missing or there twice."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from hybrid.config import ModelSettings, PreprocessSettings, TextSettings, WorkerSettings
from hybrid.errors import ConfigError
from hybrid.messages import Signature, Tensor, TensorSpec
from hybrid.offline.append import AppendFile
from hybrid.offline.fingerprint import InputFacts
from hybrid.offline.identity import Identity, difference, identity_of, load, save
from hybrid.offline.results import Results, open_results
from hybrid.offline.rows import Fault, Line, Outcome, ReadyRow

FACTS = InputFacts("jsonl", 100, 5, "aa")
SETTINGS = ModelSettings(name="m")
SIGNATURE = Signature((), (TensorSpec("y", "FP32", (-1, 2)),))
ROWS = 24
BAD = {0, 1, 5, 6, 7, 13, 22, 23}


def job(output: str) -> Identity:
    return identity_of(FACTS, output, SETTINGS)


def begun(path: Path, fresh: bool = False, **other: Any) -> Results:
    results = open_results(path)
    try:
        results.begin(replace(job(results.output.format), **other), fresh)
        results.fit(SIGNATURE)
    except ConfigError:
        results.close()
        raise
    return results


def outcomes(results: Results, first: int, count: int) -> list[Outcome]:
    rows = [ReadyRow(index, f"i{index}") for index in range(first, first + count)]
    values = np.array([[row.index, row.index / 3] for row in rows], np.float32)
    encoded = results.output.encode(rows, (Tensor("y", "FP32", values),), True)
    return [
        Outcome(row.index, row.id, Fault(f"bad {row.index}") if row.index in BAD else result)
        for row, result in zip(rows, encoded, strict=True)
    ]


def fill(results: Results, step: int) -> None:
    for first in range(results.start, ROWS, step):
        results.append(outcomes(results, first, min(step, ROWS - first)))


def check(path: Path) -> None:
    """Every row once, in order, in the right file."""
    errors = [json.loads(line) for line in Path(f"{path}.errors.jsonl").read_text().splitlines()]
    assert [(e["index"], e["id"], e["error"]) for e in errors] == [(i, f"i{i}", f"bad {i}") for i in sorted(BAD)]
    if path.suffix == ".npy":
        array = np.load(path)
        assert array.shape == (ROWS, 2)
        assert set(np.flatnonzero(np.isnan(array[:, 0]))) == BAD
        good = sorted(set(range(ROWS)) - BAD)
        assert array[good].tolist() == np.array([[i, i / 3] for i in good], np.float32).tolist()
        return
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["index"] for line in lines] == sorted(set(range(ROWS)) - BAD)
    assert all(np.float32(line["outputs"]["y"][1]) == np.float32(line["index"] / 3) for line in lines)
    assert all(list(line) == ["index", "id", "outputs"] for line in lines)


@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
def test_a_job_in_one_go(tmp_path, name):
    results = begun(tmp_path / name)
    fill(results, 5)
    results.finish(ROWS)
    results.close()
    check(tmp_path / name)
    assert sorted(p.name for p in tmp_path.iterdir()) == [name, f"{name}.errors.jsonl", f"{name}.state.json"]


@pytest.mark.parametrize("name", ["o.jsonl", "o.npy"])
def test_killed_at_any_byte_it_is_continued_without_gap_or_twin(tmp_path, monkeypatch, name):
    """Every prefix of what the job hands to the kernel is a state that `kill -9` may leave behind."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what a power cut leaves is not the question here
    log: list[tuple[Path, bytes]] = []
    append = AppendFile.append
    with monkeypatch.context() as patched:
        patched.setattr(AppendFile, "append", lambda self, data: (log.append((self.path, data)), append(self, data))[1])
        results = begun(tmp_path / name)
        fill(results, 4)
        results.close()
    state = (tmp_path / f"{name}.state.json").read_bytes()
    total = sum(len(data) for _, data in log)
    for cut in range(0, total + 1, 3):
        folder = tmp_path / f"cut{cut}"
        folder.mkdir()
        (folder / f"{name}.state.json").write_bytes(state)
        left = cut
        for path, data in log:
            with open(folder / path.name, "ab") as file:
                file.write(data[:left])
            left -= min(left, len(data))
            if not left:
                break
        if (folder / name).exists() and name.endswith("npy") and 0 < (folder / name).stat().st_size < 128:
            continue  # the header is one write of 128 bytes, which the kernel does not tear
        results = begun(folder / name)
        faults = results.faults_n
        fill(results, 7)
        assert results.faults_n == len(BAD) >= faults
        results.finish(ROWS)
        results.close()
        check(folder / name)


def test_a_complete_job_stays_complete(tmp_path):
    results = begun(tmp_path / "o.jsonl")
    fill(results, 9)
    results.finish(ROWS)
    results.close()
    again = begun(tmp_path / "o.jsonl")
    assert (again.complete, again.start, again.faults_n) == (True, ROWS, len(BAD))
    again.close()
    check(tmp_path / "o.jsonl")


def test_fresh_forgets_everything(tmp_path):
    results = begun(tmp_path / "o.jsonl")
    fill(results, 9)
    results.finish(ROWS)
    results.close()
    again = begun(tmp_path / "o.jsonl", fresh=True)
    assert (again.complete, again.start, again.faults_n) == (False, 0, 0)
    assert not (tmp_path / "o.jsonl.errors.jsonl").exists()
    fill(again, 9)
    again.finish(ROWS)
    again.close()
    check(tmp_path / "o.jsonl")


def test_what_is_not_ours_is_not_overwritten(tmp_path):
    (tmp_path / "o.jsonl").write_text("precious\n")
    with pytest.raises(ConfigError, match="not by this job; --fresh overwrites it"):
        begun(tmp_path / "o.jsonl")
    assert (tmp_path / "o.jsonl").read_text() == "precious\n"
    begun(tmp_path / "o.jsonl", fresh=True).close()
    assert (tmp_path / "o.jsonl").read_text() == ""


def test_another_job_is_refused(tmp_path):
    begun(tmp_path / "o.jsonl").close()
    with pytest.raises(ConfigError, match="belongs to another job: the input had 100 bytes, now it has 101"):
        begun(tmp_path / "o.jsonl", input=replace(FACTS, size=101))


def test_damaged_files_are_named(tmp_path):
    begun(tmp_path / "o.jsonl").close()
    (tmp_path / "o.jsonl").write_text("no result\n")
    with pytest.raises(ConfigError, match="its last line is no result"):
        begun(tmp_path / "o.jsonl")
    (tmp_path / "o.jsonl.state.json").write_text("{")
    with pytest.raises(ConfigError, match=r"state\.json: cannot be used"):
        begun(tmp_path / "o.jsonl")
    begun(tmp_path / "p.npy").close()
    np.save(tmp_path / "p.npy", np.zeros((50, 3), np.float32))
    with pytest.raises(ConfigError, match="the model gives float32"):
        begun(tmp_path / "p.npy")


def test_only_one_job_writes_a_file(tmp_path):
    first = begun(tmp_path / "o.jsonl")
    with pytest.raises(ConfigError, match="another process is writing it"):
        open_results(tmp_path / "o.jsonl")
    first.close()
    begun(tmp_path / "o.jsonl").close()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("o.csv", "ends with .jsonl or .npy"),
        ("", "is a folder"),
        ("no/o.jsonl", "cannot be written"),
        ("p.npy", "no regular"),
    ],
)
def test_outputs_that_cannot_be(tmp_path, name, words):
    os.mkfifo(tmp_path / "p.npy")
    with pytest.raises(ConfigError, match=words):
        open_results(tmp_path / name)


def test_the_last_line_of_a_long_file_is_found_from_its_end(tmp_path):
    path = tmp_path / "f"
    long = b"x" * 300_000
    for data, expected in (
        (b"", (b"", 0)),
        (b"torn", (b"", 0)),
        (b"a\n", (b"a", 2)),
        (b"a\nb\ntorn", (b"b", 4)),
        (long + b"\n" + long + b"\ntorn", (long, 600_002)),
        (long + b"\ntorn" + long, (long, 300_001)),
    ):
        path.write_bytes(data)
        file = AppendFile.open(path)
        assert file.last_line() == expected
        file.close()


# What the formats can hold -----------------------------------------------------------------------------------------


def encode(path: Path, *tensors: Tensor, finite: bool = True, count: int = 1) -> list[Line | Fault]:
    results = open_results(path)
    rows = [ReadyRow(index, None) for index in range(count)]
    specs = tuple(TensorSpec(t.name, t.datatype, (-1, *t.array.shape[1:])) for t in tensors)
    try:
        results.output.fit(Signature((), specs))
        return results.output.encode(rows, tensors, finite)
    finally:
        results.close()


def outputs(line: Line | Fault) -> Any:
    assert isinstance(line, Line)
    return json.loads(line.data)["outputs"]


def test_json_holds_every_type_and_nests_as_one_row(tmp_path):
    path = tmp_path / "o.jsonl"
    floats = np.random.default_rng(2).random((1, 2, 3)).astype(np.float32)
    assert (
        np.array(outputs(encode(path, Tensor("y", "FP32", floats))[0])["y"], np.float32).tobytes() == floats.tobytes()
    )
    (line,) = encode(
        path,
        Tensor("a", "INT64", np.array([1 << 62])),
        Tensor("b", "BOOL", np.array([[True, False]])),
        Tensor("c", "BYTES", np.array([[b"x", "é".encode()]], object)),
        Tensor("d", "BF16", np.array([[0x3FC0]], np.uint16)),
        Tensor("e", "FP16", np.array([0.1], np.float16)),
    )
    found = outputs(line)
    assert (found["a"], found["b"], found["c"], found["d"]) == (1 << 62, [True, False], ["x", "é"], [1.5])
    assert np.float16(found["e"]) == np.float16(0.1)


def test_what_json_cannot_hold_is_a_fault_of_its_row(tmp_path):
    values = np.array([[1.0], [np.nan], [np.inf], [2.0]], np.float32)
    lines = encode(tmp_path / "o.jsonl", Tensor("y", "FP32", values), finite=False, count=4)
    assert [type(line) for line in lines] == [Line, Fault, Fault, Line]
    texts = Tensor("t", "BYTES", np.array([b"ok", b"\xff"], object))
    assert [type(line) for line in encode(tmp_path / "o.jsonl", texts, count=2)] == [Line, Fault]
    assert [type(line) for line in encode(tmp_path / "o.npy", Tensor("y", "FP32", values), count=4)] == [Line] * 4


def test_what_an_array_cannot_hold_is_refused_before_anything_runs(tmp_path):
    y = Tensor("y", "FP32", np.zeros((1, 2), np.float32))
    with pytest.raises(ConfigError, match="one tensor and the model gives y, z"):
        encode(tmp_path / "o.npy", y, Tensor("z", "FP32", y.array))
    with pytest.raises(ConfigError, match="cannot hold output `y` of type BYTES"):
        encode(tmp_path / "o.npy", Tensor("y", "BYTES", np.array([b"a"], object)))


def test_rows_that_fail_before_the_shape_is_known_get_their_place(tmp_path):
    results = open_results(tmp_path / "o.npy")
    results.begin(job("npy"), False)
    results.fit(Signature((), (TensorSpec("y", "INT32", (-1, -1)),)))
    results.append([Outcome(0, None, Fault("bad"))])
    (line,) = results.output.encode([ReadyRow(1, None)], (Tensor("y", "INT32", np.array([[7, 8]], np.int32)),), True)
    (other,) = results.output.encode([ReadyRow(2, None)], (Tensor("y", "INT32", np.array([[7]], np.int32)),), True)
    assert isinstance(other, Fault)
    results.append([Outcome(1, None, line), Outcome(2, None, other)])
    results.finish(3)
    results.close()
    assert np.load(tmp_path / "o.npy").tolist() == [[0, 0], [7, 8], [0, 0]]


@pytest.mark.parametrize("row_shape", [(-1,), (2,)])
def test_an_array_without_rows_can_be_loaded(tmp_path, row_shape):
    results = open_results(tmp_path / "o.npy")
    results.begin(job("npy"), False)
    results.fit(Signature((), (TensorSpec("y", "FP32", (-1, *row_shape)),)))
    results.finish(0)
    results.close()
    assert len(np.load(tmp_path / "o.npy")) == 0


# Identity ----------------------------------------------------------------------------------------------------------


def test_only_what_changes_results_makes_another_job(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"weights")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "m.onnx").hardlink_to(tmp_path / "m.onnx")
    text = PreprocessSettings(text=TextSettings(tokenizer="/a/tokenizer.json"), processes=3)
    settings = ModelSettings(name="m", file=str(tmp_path / "m.onnx"), preprocess=text)
    old = identity_of(FACTS, "jsonl", settings)
    same = replace(
        settings,
        file=str(tmp_path / "moved" / "m.onnx"),
        workers=WorkerSettings(instances=7),
        preprocess=PreprocessSettings(text=TextSettings(tokenizer="/b/tokenizer.json")),
    )
    assert difference(old, identity_of(FACTS, "jsonl", same)) is None
    others = {
        "the output was": identity_of(FACTS, "npy", settings),
        "the model was": identity_of(FACTS, "jsonl", replace(settings, name="n")),
        "settings are others": identity_of(FACTS, "jsonl", replace(settings, postprocess="mean_pool_l2")),
        "was read as": identity_of(replace(FACTS, kind="text"), "jsonl", settings),
        "has other content": identity_of(replace(FACTS, head="bb"), "jsonl", settings),
        "was written to since": identity_of(replace(FACTS, modified_ns=6), "jsonl", settings),
        "another version": replace(old, format=2),
    }
    for words, other in others.items():
        assert words in (difference(old, other) or "")
    (tmp_path / "m.onnx").write_bytes(b"other weights")
    assert "file is another" in (difference(old, identity_of(FACTS, "jsonl", settings)) or "")


def test_the_state_file_reads_back(tmp_path):
    assert load(tmp_path / "s") is None
    save(tmp_path / "s", job("jsonl"))
    assert load(tmp_path / "s") == job("jsonl")
    assert [p.name for p in tmp_path.iterdir()] == ["s"]
