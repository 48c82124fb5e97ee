"""What is kept of measurements, for whom it holds, and that nothing about the folder can be fatal."""

import json
import math
import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from hybrid.config import ModelSettings, PreprocessSettings, TextSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.measures import EngineProfile, MemoryLine, ModelProfile, Probe, Timing
from hybrid.probing.cache import _FORMAT, Cache, Record, default_folder
from hybrid.probing.fingerprint import engine_version, machine_key, model_files

GIB = 1 << 30
TIMING = Timing(Probe("onnxruntime", 2, 1, 8), 0.012, 0.1, 30)
FAILED = Timing(Probe("onnxruntime", 2, 1, 64), math.inf, runs=0, failure="out of memory")
ENGINE = EngineProfile("onnxruntime", "1.20", timings=(TIMING, FAILED), memory=MemoryLine(100, 5))
RECORD = Record(ModelProfile("m", "machine", "digest", 32, (ENGINE,)), ("question",), {"openvino": "left out"})


def machine(**changes):
    budget = CpuBudget(2, (0, 1), 2, None, None, 2, "all")
    return replace(MachineFacts(budget, 8 * GIB, "host", "EPYC", "x86_64", ("avx2",)), **changes)


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "probes")


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"weights")
    return ModelSettings(name="m", file=str(path))


def test_a_record_comes_back_as_it_was(cache):
    cache.save(RECORD)
    assert cache.load("machine", "digest") == RECORD
    assert cache.warning == ""


def test_another_machine_or_model_is_not_known(cache):
    cache.save(RECORD)
    assert cache.load("other", "digest") is None
    assert cache.load("machine", "other") is None


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "",
        lambda text: "[]",
        lambda text: text.replace('"digest"', '"another"'),
        lambda text: text.replace(f'"format": {_FORMAT}', f'"format": {_FORMAT - 1}'),
        lambda text: text.replace("0.012", '"fast"'),
        lambda text: text.replace("0.012", "0.0"),
        lambda text: text.replace("0.012", "-1.0"),
        lambda text: text.replace('"loop_s": 0.0', '"loop_s": -1.0'),
        lambda text: text.replace('"turn_s": 0.0', '"turn_s": -1.0'),
        lambda text: text.replace('"rows": 8', '"rows": 0'),
        lambda text: text.replace('"instances": 2', '"instances": -2', 1),
        lambda text: text.replace('"threads": 1', '"threads": 0', 1),
        lambda text: text.replace('"fixed_rows": null', '"fixed_rows": 0'),
    ],
)
def test_a_broken_or_foreign_file_is_as_good_as_none(cache, tmp_path, change):
    cache.save(RECORD)
    (path,) = (tmp_path / "probes").iterdir()
    text = path.read_text()
    assert change(text) != text
    path.write_text(change(text))
    assert cache.load("machine", "digest") is None
    cache.save(RECORD)
    assert cache.load("machine", "digest") == RECORD


def test_a_tilde_is_the_home_and_no_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    Cache(Path("~/probes")).save(RECORD)
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_a_folder_that_cannot_be_written_is_a_warning(tmp_path, model):
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "probes")
    cache.save(RECORD)
    assert "next start measures again" in cache.warning
    assert cache.digest(model)


@pytest.mark.parametrize("folder", ["file/probes", None])
def test_what_cannot_be_written_is_known_until_it_can(tmp_path, folder):
    (tmp_path / "file").write_text("")
    cache = Cache(folder and tmp_path / folder)
    cache.save(RECORD)
    assert cache.load("machine", "digest") == RECORD
    assert cache.load("machine", "other") is None
    assert Cache(folder and tmp_path / folder).load("machine", "digest") is None
    (tmp_path / "file").unlink()
    cache.save(replace(RECORD, notes={}))
    assert cache.load("machine", "digest") == replace(RECORD, notes={})
    if folder is not None:
        assert Cache(tmp_path / folder).load("machine", "digest") == replace(RECORD, notes={})


def test_nothing_half_written_stays_behind(cache, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    cache.save(RECORD)
    assert "No space left" in cache.warning
    assert list((tmp_path / "probes").iterdir()) == []


def test_the_content_of_a_model_counts_and_not_its_name(cache, model, tmp_path):
    first = cache.digest(model)
    assert cache.digest(replace(model, name="other")) == first
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(b"weights")
    assert cache.digest(replace(model, file=str(copy))) == first
    copy.write_bytes(b"weightz")
    assert cache.digest(replace(model, file=str(copy))) != first
    (tmp_path / "net.onnx.data").write_bytes(b"more")
    assert cache.digest(model) != first


@pytest.mark.parametrize(
    "changes",
    [
        {"postprocess": "mean_pool_l2"},
        {"example_rows": ("a longer text",)},
        {"preprocess": PreprocessSettings(text=TextSettings(max_tokens=9))},
    ],
)
def test_settings_that_change_a_run_count(cache, model, changes):
    assert cache.digest(replace(model, **changes)) != cache.digest(model)


def test_settings_that_change_no_run_do_not_count(cache, model):
    assert cache.digest(replace(model, description="x", slo_p99_ms=5.0)) == cache.digest(model)


def test_a_file_that_has_not_changed_is_not_read_again(cache, model, monkeypatch):
    first = cache.digest(model)
    monkeypatch.setattr("hybrid.probing.cache.file_digest", lambda path: pytest.fail(f"{path} was read"))
    assert cache.digest(model) == first


def test_a_damaged_memo_only_costs_reading(cache, model, tmp_path):
    first = cache.digest(model)
    (tmp_path / "probes" / "files.json").write_text("{")
    assert cache.digest(model) == first
    assert json.loads((tmp_path / "probes" / "files.json").read_text())


def test_a_missing_model_file_is_for_others_to_report(cache):
    assert cache.digest(ModelSettings(name="m", file="/nonexistent/net.onnx"))


def test_weights_beside_a_model_belong_to_it(tmp_path):
    for name in ("a.xml", "a.bin", "a.txt", "ab.bin", "b.onnx", "b.onnx.data", "b.onnx_data", "b.json"):
        (tmp_path / name).write_text("x")
    files = {p.name for p in model_files(ModelSettings(name="m", file=str(tmp_path / "a.xml")))}
    assert files == {"a.xml", "a.bin"}
    files = {p.name for p in model_files(ModelSettings(name="m", file=str(tmp_path / "b.onnx")))}
    assert files == {"b.onnx", "b.onnx.data", "b.onnx_data"}


def test_machines_that_measure_alike_have_one_key():
    key = machine_key(machine())
    assert machine_key(machine(memory_limit_bytes=8 * GIB + 4096, memory_source="cgroup")) == key
    others = [
        machine(memory_limit_bytes=4 * GIB),
        machine(model_name="Xeon"),
        machine(isa=("avx2", "amx_tile")),
        machine(cpu=CpuBudget(1, (0,), 2, 1.0, None, 2, "quota")),
        machine(gpus=(GpuFacts(0, "H100", 80 * GIB),)),
    ]
    assert len({key, *map(machine_key, others)}) == 6


def test_where_measurements_are_kept():
    assert str(default_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"})) == "/x/hybrid/probes"


def test_without_a_home_nothing_is_kept_and_one_warning_says_so(monkeypatch, model):
    def nowhere():
        raise RuntimeError

    monkeypatch.setattr("pathlib.Path.home", nowhere)
    cache = Cache(default_folder({}))
    assert cache.digest(model) == Cache(None).digest(model)
    cache.save(RECORD)
    assert Cache(default_folder({})).load("machine", "digest") is None
    assert "no home folder" in cache.warning


def test_versions_of_engines():
    assert engine_version("onnxruntime")[0].isdigit()
    assert engine_version("no such engine") == ""
