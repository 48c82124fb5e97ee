"""Profiles as files: which one is taken, and what a user has chosen for a machine."""

from pathlib import Path

import pytest
from profile_world import machine, user_folder, write

from hybrid.errors import ConfigError
from hybrid.planner import profiles
from hybrid.planner.profile_files import choose, chosen, config_folder, folders, write_profile
from hybrid.planner.profiles import known_profiles, listed_profiles, load_profile
from hybrid.planner.types import PlanOverrides


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return user_folder(tmp_path, monkeypatch)


@pytest.fixture
def folder(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty `profiles` folder that is the only one looked into."""
    (tmp_path / "only").mkdir()
    monkeypatch.setattr(profiles, "folders", lambda here=True: (tmp_path / "only", tmp_path / "nowhere"))
    return tmp_path / "only"


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
    found = load_profile("huge", machine(2))
    assert found is not None
    assert found.plan.max_batch == 3


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
