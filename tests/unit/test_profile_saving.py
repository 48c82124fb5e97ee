"""Profiles that are written: what is saved is loaded again, and nothing else than that."""

import os
import tomllib
from pathlib import Path

import pytest
from profile_world import GIB, machine, user_folder, write

from hybrid.errors import ConfigError
from hybrid.facts import GpuFacts, MachineFacts
from hybrid.planner.matching import matches
from hybrid.planner.profile_files import write_profile
from hybrid.planner.profile_text import match_of, overrides_of, profile_text, toml_value
from hybrid.planner.profiles import load_profile, save_profile
from hybrid.planner.types import Plan, PlanOverrides


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return user_folder(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "auto", "none", "a.toml", ".hidden", "-x", "a b", "a\nb", "x" * 65, "ü"]
)
def test_names_that_cannot_be_saved(user: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a profile"):
        save_profile(name, PlanOverrides(), machine(), "why")
    assert not user.exists()


def test_what_is_saved_is_loaded_again(user: Path) -> None:
    numbers = PlanOverrides(engine="openvino", max_batch=12, max_wait_ms=0.5, pin=False)
    path = save_profile(
        "best", numbers, machine(), 'tuned: "fast"\nat p99 200 ms', model="a.b", reasons={"max_batch": "because"}
    )
    assert path == user / "profiles" / "best.toml"
    found = load_profile("best", machine())
    assert found is not None
    assert (found.model, found.plan) == ({"a.b": numbers}, PlanOverrides())
    assert found.description == 'tuned: "fast"'
    text = path.read_text()
    assert "# because\nmax_batch = 12\n" in text
    assert "at p99 200 ms" in text
    assert "2 usable CPUs" in text
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["best.toml"]  # nothing temporary is left


def test_a_file_system_without_links_will_do(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    path = save_profile("mine", PlanOverrides(max_batch=1), machine(), "one")
    assert tomllib.loads(path.read_text())["plan"] == {"max_batch": 1}
    assert os.listdir(path.parent) == ["mine.toml"]


def test_nothing_is_replaced_without_force(user: Path) -> None:
    save_profile("mine", PlanOverrides(max_batch=1), machine(), "one")
    with pytest.raises(ConfigError, match="`mine` exists already"):
        save_profile("mine", PlanOverrides(max_batch=2), machine(), "two")
    with pytest.raises(ConfigError, match=r"mine\.toml: exists already"):
        write_profile("mine", "")
    with pytest.raises(ConfigError, match="`cpu-small` exists already"):
        save_profile("cpu-small", PlanOverrides(max_batch=2), machine(), "two")
    save_profile("mine", PlanOverrides(max_batch=3), machine(), "three", force=True)
    found = load_profile("mine", machine())
    assert found is not None
    assert found.plan.max_batch == 3
    assert os.listdir(user / "profiles") == ["mine.toml"]


@pytest.mark.parametrize("force", [False, True])
def test_a_name_that_brings_in_another_file_here_is_refused(user: Path, tmp_path: Path, force: bool) -> None:
    write(tmp_path / "profiles", "mine", "")
    with pytest.raises(ConfigError, match=r"would not be taken here, but profiles/mine\.toml in its place"):
        save_profile("mine", PlanOverrides(max_batch=1), machine(), "one", force=force)
    assert not user.exists()


def test_the_users_folder_may_be_the_current_one(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_profile("mine", PlanOverrides(max_batch=1), machine(), "one")
    monkeypatch.chdir(user)
    save_profile("mine", PlanOverrides(max_batch=2), machine(), "two", force=True)
    found = load_profile("mine", machine())
    assert found is not None
    assert found.plan.max_batch == 2


def test_a_saved_profile_is_not_taken_by_itself_until_its_match_is_switched_on(user: Path) -> None:
    on = machine(12, ("avx2", "avx512f"), gpu_gib=24, numa_nodes=2)
    path = save_profile("mine", PlanOverrides(max_batch=3), on, "why")
    assert tomllib.loads(path.read_text()).keys() == {"description", "plan"}
    lines = path.read_text().splitlines()
    begin = lines.index("# [match]")
    end = lines.index("", begin)
    path.write_text("\n".join([*lines[:begin], *(line[2:] for line in lines[begin:end]), *lines[end:]]))
    found = load_profile("auto", on)
    assert found is not None
    assert (found.name, found.automatic) == ("mine", True)


@pytest.mark.parametrize(
    "on",
    [
        machine(),
        machine(isa=()),
        machine(gpu_gib=8, battery=True),
        MachineFacts(machine().cpu, GIB, "host memory", gpus=(GpuFacts(0, "odd", 0, kind="intel", integrated=True),)),
    ],
)
def test_the_match_of_a_machine_fits_it(on: MachineFacts) -> None:
    assert matches(match_of(on), on)


def test_an_empty_profile_explains_every_key_and_each_example_is_valid(user: Path) -> None:
    path = save_profile("mine", PlanOverrides(), machine(), "to be filled in")
    lines = path.read_text().splitlines()
    begin = lines.index("[plan]")
    switched_on = [line[2:] for line in lines[begin + 2 :]]
    path.write_text("\n".join([*lines[: begin + 1], *switched_on]))
    found = load_profile("mine", machine())
    assert found is not None
    assert [key for key in PlanOverrides.__struct_fields__ if getattr(found.plan, key) is None] == []


def test_text_from_elsewhere_cannot_leave_its_comment_or_string() -> None:
    evil = 'a"\n[plan]\r\nmax_batch = 9\x00\x7f\u2028x'
    text = profile_text("n", PlanOverrides(pin=True), machine(), evil, reasons={"pin": evil}, model=evil)
    table = tomllib.loads(text)
    assert table["description"] == 'a"'
    assert table["model"] == {evil: {"pin": True}}


@pytest.mark.parametrize("value", [True, 3, 0.5, 1e-7, 5.0, 'x"\\\n\x7fü\U0001f600', ["a", 1]])
def test_values_as_toml(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}


def test_what_a_plan_keeps() -> None:
    plan = Plan(
        model="m", device="cpu", engine="onnxruntime", instances=2, threads_per_instance=1, max_batch=8,
        max_wait_ms=0.0, early_trigger=8, batching="dynamic", queue_rows=512, queue_bytes=1, preprocess_processes=0,
        cores=((0,), (1,)),
    )  # fmt: skip
    assert overrides_of(plan) == PlanOverrides(
        engine="onnxruntime", instances=2, threads_per_instance=1, max_batch=8, max_wait_ms=0.0, pipeline_depth=1
    )
