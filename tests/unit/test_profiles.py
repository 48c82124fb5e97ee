from pathlib import Path

import pytest

from hybrid.errors import ConfigError
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner import profiles
from hybrid.planner.profiles import known_profiles, load_profile, matches
from hybrid.planner.types import Match, PlanOverrides

GIB = 1 << 30


def machine(usable: int = 2, isa: tuple[str, ...] = ("avx2",), gpu_gib: int = 0) -> MachineFacts:
    budget = CpuBudget(usable, tuple(range(usable)), usable, None, None, usable, "test")
    gpus = (GpuFacts(0, "gpu", gpu_gib * GIB),) if gpu_gib else ()
    return MachineFacts(budget, 16 * GIB, "host memory", architecture="x86_64", isa=isa, gpus=gpus)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `profiles` folder that is the only one looked into."""
    monkeypatch.setattr(profiles, "_folders", lambda: (tmp_path / "profiles", tmp_path / "nowhere"))
    (tmp_path / "profiles").mkdir()
    return tmp_path / "profiles"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_load_by_path_and_by_name(folder: Path) -> None:
    path = write(folder, "mine", 'description = "d"\n[plan]\nmax_batch = 3\n[model.minilm]\ninstances = 1\n')
    by_path, by_name = load_profile(path, machine()), load_profile("mine", machine())
    assert by_path == by_name
    assert by_path is not None
    assert (by_path.name, by_path.description, by_path.automatic) == ("mine", "d", False)
    assert by_path.plan == PlanOverrides(max_batch=3)
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


def test_auto_takes_the_match_with_the_most_conditions(folder: Path) -> None:
    write(folder, "a-any", "[match]\nusable_cpus_min = 1\n")
    write(folder, "b-avx2", '[match]\nusable_cpus_min = 1\nisa = ["avx2"]\n')
    write(folder, "c-other", '[match]\nusable_cpus_min = 1\nusable_cpus_max = 4\nisa = ["amx_int8"]\n')
    found = load_profile("auto", machine())
    assert found is not None
    assert (found.name, found.automatic) == ("b-avx2", True)
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


def test_current_directory_wins_over_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "profiles").mkdir()
    write(tmp_path / "profiles", "ci", "[plan]\nmax_batch = 77\n")
    found = load_profile("ci", machine())
    assert found is not None
    assert found.plan.max_batch == 77


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
        (Match(gpu_memory_bytes_min=1), False),
    ],
)
def test_conditions(match: Match, fits: bool) -> None:
    assert matches(match, machine()) is fits


def test_gpu_conditions_ask_for_one_such_gpu() -> None:
    match = Match(gpu_memory_bytes_min=20 * GIB, gpu_memory_bytes_max=48 * GIB)
    assert matches(match, machine(gpu_gib=24))
    assert not matches(match, machine(gpu_gib=80))
    assert not matches(match, machine(gpu_gib=8))


# --- what is shipped --------------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.chdir(tmp_path)  # nothing but what is shipped
    return known_profiles()


def test_every_shipped_profile_loads(shipped: dict[str, Path]) -> None:
    assert {"ci", "cpu-small"} <= set(shipped)
    for name in shipped:
        found = load_profile(name, machine())
        assert found is not None
        assert found.description


@pytest.mark.parametrize(("usable", "name"), [(1, None), (2, "cpu-small"), (4, "cpu-small"), (5, None)])
def test_auto_among_the_shipped(shipped: dict[str, Path], usable: int, name: str | None) -> None:
    found = load_profile("auto", machine(usable))
    assert (found.name if found else None) == name
