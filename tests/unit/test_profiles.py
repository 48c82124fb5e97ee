"""Profiles as files: which one is taken, which machine it says it is for, what is chosen and what is saved."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from hybrid.errors import ConfigError
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner import profiles
from hybrid.planner.matching import conditions, matches, specificity
from hybrid.planner.profile_files import choose, chosen, config_folder, folders, write_profile
from hybrid.planner.profile_text import match_of, overrides_of, profile_text, toml_value
from hybrid.planner.profiles import known_profiles, listed_profiles, load_profile, save_profile
from hybrid.planner.types import Match, Plan, PlanOverrides

GIB = 1 << 30


def machine(usable: int = 2, isa: tuple[str, ...] = ("avx2",), gpu_gib: int = 0, **more: Any) -> MachineFacts:
    budget = CpuBudget(usable, tuple(range(usable)), usable, None, None, usable, "test")
    gpus = (GpuFacts(0, "gpu", gpu_gib * GIB),) if gpu_gib else ()
    return MachineFacts(budget, 16 * GIB, "host memory", architecture="x86_64", isa=isa, gpus=gpus, **more)


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, empty, and a current directory without profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "config" / "hybrid"


@pytest.fixture
def folder(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `profiles` folder that is the only one looked into."""
    (tmp_path / "only").mkdir()
    monkeypatch.setattr(profiles, "folders", lambda here=True: (tmp_path / "only", tmp_path / "nowhere"))
    return tmp_path / "only"


def write(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


# --- which one is taken -----------------------------------------------------------------------------------------------


def test_load_by_path_and_by_name(folder: Path) -> None:
    text = 'description = "d"\n[plan]\nmax_batch = 3\n[gpu]\nmax_batch = 9\n[model.minilm]\ninstances = 1\n'
    path = write(folder, "mine", text)
    by_path, by_name = load_profile(path, machine()), load_profile("mine", machine())
    assert by_path == by_name
    assert by_path is not None
    assert (by_path.name, by_path.description, by_path.automatic, by_path.why) == ("mine", "d", False, "as asked for")
    assert (by_path.plan, by_path.gpu) == (PlanOverrides(max_batch=3), PlanOverrides(max_batch=9))
    assert by_path.model == {"minilm": PlanOverrides(instances=1)}


def test_a_profile_asked_for_is_used_even_where_it_does_not_match(folder: Path) -> None:
    write(folder, "huge", "[match]\nusable_cpus_min = 64\n[plan]\nmax_batch = 3\n")
    assert load_profile("huge", machine(2)) is not None


def test_none_and_auto_without_any_profile(folder: Path) -> None:
    assert load_profile("none", machine()) is None
    assert load_profile("auto", machine()) is None


def test_unknown_name_names_the_nearest(folder: Path) -> None:
    write(folder, "laptop", "")
    with pytest.raises(ConfigError, match="unknown profile `laptpo`; did you mean `laptop`"):
        load_profile("laptpo", machine())
    with pytest.raises(ConfigError, match="known: auto, laptop, none"):
        load_profile("zzz", machine())


def test_missing_file(folder: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_profile("somewhere/else", machine())
    with pytest.raises(ConfigError, match="no such file"):
        load_profile("else.toml", machine())


def test_auto_takes_the_most_specific_that_fits(folder: Path) -> None:
    write(folder, "a-any", "[match]\nusable_cpus_min = 1\n")
    write(folder, "b-avx2", '[match]\nusable_cpus_min = 1\nisa = ["avx2"]\n')
    write(folder, "c-other", '[match]\nusable_cpus_min = 1\nusable_cpus_max = 4\nisa = ["amx_int8"]\n')
    found = load_profile("auto", machine())
    assert found is not None
    assert (found.name, found.automatic, found.why) == ("b-avx2", True, "fits this machine")
    other = load_profile("auto", machine(isa=("neon",)))
    assert other is not None
    assert other.name == "a-any"


def test_auto_ignores_files_without_a_match_table(folder: Path) -> None:
    write(folder, "by-name-only", "[plan]\nmax_batch = 3\n")
    write(folder, "not-ours", "[tool]\nx = 1\n")
    assert load_profile("auto", machine()) is None


def test_auto_reports_a_broken_profile(folder: Path) -> None:
    write(folder, "broken", "[match]\nusable_cpu_min = 3\n")
    with pytest.raises(ConfigError, match=r"broken.toml: unknown key `match.usable_cpu_min`; did you mean"):
        load_profile("auto", machine())


def test_current_directory_wins_over_the_users_and_that_over_what_is_shipped(user: Path, tmp_path: Path) -> None:
    write(user / "profiles", "ci", "[plan]\nmax_batch = 66\n")
    assert known_profiles()["ci"] == user / "profiles" / "ci.toml"
    write(tmp_path / "profiles", "ci", "[plan]\nmax_batch = 77\n")
    found = load_profile("ci", machine())
    assert found is not None
    assert found.plan.max_batch == 77
    assert known_profiles(here=False)["ci"] == user / "profiles" / "ci.toml"


def test_the_list_has_broken_files_too(folder: Path) -> None:
    write(folder, "a", 'description = "d"\n[match]\nusable_cpus_min = 2\n')
    write(folder, "b", "[match]\nusable_cpus_min = 3\n")
    write(folder, "c", "")
    write(folder, "d", "[plan]\nmax_bach = 3\n")
    write(folder, ".hidden", "")
    found = listed_profiles(machine())
    assert [(one.name, one.fits) for one in found] == [("a", True), ("b", False), ("c", None), ("d", None)]
    assert "max_bach" in found[3].error


# --- which machine it is for ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(), True),
        (Match(usable_cpus_min=2, usable_cpus_max=2), True),
        (Match(usable_cpus_min=3), False),
        (Match(usable_cpus_max=1), False),
        (Match(memory_limit_bytes_min=17 * GIB), False),
        (Match(memory_limit_bytes_max=16 * GIB), True),
        (Match(isa=("avx2",)), True),
        (Match(isa=("avx2", "amx_int8")), False),
        (Match(architecture="aarch64"), False),
        (Match(numa_nodes_min=1), True),
        (Match(numa_nodes_min=2), False),
        (Match(battery=False), True),
        (Match(battery=True), False),
        (Match(efficiency_cpus=False), True),
        (Match(efficiency_cpus=True), False),
        (Match(gpu_memory_bytes_min=1), False),
        (Match(gpu_kind="cuda"), False),
        (Match(gpu_mig=False), False),
    ],
)
def test_conditions(match: Match, fits: bool) -> None:
    assert matches(match, machine()) is fits


def test_conditions_that_other_machines_meet() -> None:
    assert matches(Match(battery=True, efficiency_cpus=True), machine(battery=True, efficiency_cpus=(1,)))
    assert matches(Match(numa_nodes_min=2), machine(numa_nodes=4))


def test_gpu_conditions_ask_for_one_such_gpu() -> None:
    match = Match(gpu_memory_bytes_min=20 * GIB, gpu_memory_bytes_max=48 * GIB)
    assert matches(match, machine(gpu_gib=24))
    assert not matches(match, machine(gpu_gib=80))
    assert not matches(match, machine(gpu_gib=8))


def test_all_gpu_conditions_must_hold_of_the_same_gpu() -> None:
    slice_, card = GpuFacts(0, "slice", 10 * GIB, mig=True), GpuFacts(1, "card", 24 * GIB)
    on = MachineFacts(machine().cpu, GIB, "host memory", gpus=(slice_, card))
    assert matches(Match(gpu_mig=True, gpu_memory_bytes_max=12 * GIB), on)
    assert matches(Match(gpu_mig=False, gpu_memory_bytes_min=20 * GIB), on)
    assert not matches(Match(gpu_mig=True, gpu_memory_bytes_min=20 * GIB), on)
    assert not matches(Match(gpu_kind="intel"), on)
    assert not matches(Match(gpu_integrated=True), on)


def test_each_condition_says_what_it_asks_for_and_what_is_here() -> None:
    match = Match(usable_cpus_min=4, isa=("avx2", "amx_int8"), battery=False, gpu_kind="cuda", gpu_memory_bytes_min=GIB)
    said = [(one.text, one.holds, one.here) for one in conditions(match, machine())]
    assert said == [
        ("usable CPUs: at least 4", False, "2"),
        ("instructions: avx2", True, "avx2"),
        ("instructions: amx_int8", False, "avx2"),
        ("battery: no", True, "no"),
        ("a GPU: cuda, at least 1.0 GiB", False, "none"),
    ]


def test_more_specific_is_a_gpu_then_more_facts_then_more_bounds() -> None:
    rising = (
        Match(),
        Match(usable_cpus_min=1),
        Match(usable_cpus_min=1, usable_cpus_max=4),
        Match(usable_cpus_min=1, battery=False),
        Match(usable_cpus_min=1, isa=("avx2", "avx512f"), battery=False),
        Match(gpu_kind="cuda"),
        Match(gpu_kind="cuda", gpu_memory_bytes_min=GIB),
        Match(gpu_kind="cuda", gpu_memory_bytes_min=GIB, gpu_memory_bytes_max=GIB),
    )
    ranks = [specificity(match) for match in rising]
    assert ranks == sorted(set(ranks))


# --- what is chosen ---------------------------------------------------------------------------------------------------


def test_the_choice_is_what_auto_takes_until_it_is_taken_back(user: Path) -> None:
    assert chosen() is None
    path = choose("ci")
    assert path.parent == user / "machines"
    found = load_profile("auto", machine())
    assert found is not None
    assert (found.name, found.automatic, found.chosen) == ("ci", False, True)
    assert "hybrid profile use" in found.why
    asked = load_profile("cpu-small", machine())
    assert asked is not None
    assert not asked.chosen
    choose("none")
    assert load_profile("auto", machine()) is None
    assert choose(None) == path
    assert not path.exists()
    choose(None)
    back = load_profile("auto", machine())
    assert back is not None
    assert back.automatic


@pytest.mark.parametrize("name", ['the "fast" one', "back\\slash", "with space", "ümlaut"])
def test_a_choice_may_have_any_name_that_a_file_has(user: Path, name: str) -> None:
    write(user / "profiles", name, "[plan]\nmax_batch = 77\n")
    choose(name)
    found = load_profile("auto", machine())
    assert found is not None
    assert (found.name, found.plan.max_batch) == (name, 77)


def test_a_name_that_is_no_text_cannot_be_chosen(user: Path) -> None:
    with pytest.raises(ConfigError, match="is not Unicode"):
        choose("half\udc80")
    assert chosen() is None


def test_a_choice_holds_for_one_host_name(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: "../a b")
    first = choose("ci")
    assert (first.parent, first.name) == (user / "machines", "_a_b.toml")
    monkeypatch.setattr("platform.node", lambda: "other")
    assert chosen() is None
    monkeypatch.setattr("platform.node", lambda: "")
    assert choose("ci").name == "localhost.toml"


def test_a_choice_does_not_depend_on_the_current_directory(user: Path, tmp_path: Path) -> None:
    write(tmp_path / "profiles", "ci", "[plan]\nmax_batch = 77\n")
    choose("ci")
    found = load_profile("auto", machine())
    assert found is not None
    assert found.plan.max_batch != 77


def test_a_choice_that_is_gone_or_wrong_says_how_to_get_rid_of_it(user: Path) -> None:
    path = choose("gone")
    with pytest.raises(ConfigError, match=r"unknown profile `gone`.*`hybrid profile use auto` takes that back"):
        load_profile("auto", machine())
    path.write_text("profil = 3\n")
    with pytest.raises(ConfigError, match=r"machines/.*toml: unknown key `profil`"):
        load_profile("auto", machine())


def test_without_a_home_nothing_is_chosen_and_nothing_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError

    monkeypatch.setenv("XDG_CONFIG_HOME", "relative/does/not/count")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert config_folder() is None
    assert chosen() is None
    assert folders()[0] == Path("profiles")
    with pytest.raises(ConfigError, match="no home folder"):
        choose("ci")


def test_without_the_variable_the_folder_is_below_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    assert config_folder() == Path.home() / ".config" / "hybrid"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "file"))
    for attempt in (lambda: choose("ci"), lambda: write_profile("mine", "")):
        with pytest.raises(ConfigError, match=r"file/hybrid/.*: cannot be written: .*; set XDG_CONFIG_HOME"):
            attempt()


def test_a_folder_that_cannot_be_read_holds_no_choice(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choose("ci")

    def locked(self: Path) -> bool:
        raise PermissionError

    monkeypatch.setattr(Path, "is_file", locked)
    assert chosen() is None


# --- what is saved ----------------------------------------------------------------------------------------------------


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
