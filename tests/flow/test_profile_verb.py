"""`hybrid profile` as a user meets it, and that servers and plans go by what it wrote."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from flow.server import Server

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)  # where there is no folder called profiles
    return tmp_path / "config" / "hybrid"


def hybrid(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hybrid", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=os.environ)


def said(*arguments: str) -> str:
    done = hybrid(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def refused(*arguments: str) -> str:
    done = hybrid(*arguments)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    return line


def in_use() -> list[str]:
    return [one["name"] for one in json.loads(said("profile", "list", "--json")) if one["in_use"]]


def test_list_show_use_and_back(home: Path) -> None:
    before = in_use()
    assert said("profile") == said("profile", "list")
    assert "taken by name only" in said("profile", "show", "ci")
    shown = said("profile", "show", "gpu-24g")
    assert "a GPU: cuda, no MIG slice, 14.0 GiB to 36.0 GiB" in shown
    assert "max_batch = 64" in shown
    assert "Not in use." in shown

    assert "uses profile ci" in said("profile", "use", "ci")
    assert in_use() == ["ci"]
    assert "Not in use." not in said("profile", "show", "ci")
    table = said("plan", "simulated:null")
    assert "ci, chosen for this machine with `hybrid profile use`" in " ".join(table.split())
    assert "cpu-small, as asked for" in said("plan", "simulated:null", "--profile", "cpu-small")

    said("profile", "use", "auto")
    assert in_use() == before
    assert [path.name for path in home.rglob("*") if path.is_file()] == []


def test_serve_goes_by_the_choice_and_says_so(home: Path) -> None:
    said("profile", "new", "mine")
    path = home / "profiles" / "mine.toml"
    path.write_text(path.read_text() + '\n[model."simulated:null"]\nmax_batch = 5\n')
    said("profile", "use", "mine")
    with Server("simulated:null") as server:
        assert "mine, chosen for this machine" in " ".join(server.out.split())
        (plan,) = server.get("/hybrid/v1/plan")[1]
        assert plan["max_batch"] == 5


def test_a_plan_is_saved_and_taken_again(home: Path) -> None:
    assert "hybrid serve --profile card takes it" in said("profile", "new", "card", "--from-plan", "simulated:gpu-24g")
    text = (home / "profiles" / "card.toml").read_text()
    plan = json.loads(said("plan", "simulated:gpu-24g", "--json", "--profile", "card"))
    assert f"max_batch = {plan['max_batch']}\n" in text
    assert "profile card" in plan["reasons"]["max_batch"]
    assert "exists already" in refused("profile", "new", "card")
    said("profile", "new", "card", "--force")
    assert "gpu-24g" not in (home / "profiles" / "card.toml").read_text()


def test_what_is_refused_in_one_line(home: Path, tmp_path: Path) -> None:
    assert "unknown profile `lapto`; did you mean `laptop`?" in refused("profile", "use", "lapto")
    assert "`none` is no profile: it stands for no profile at all" in refused("profile", "show", "none")
    assert "`auto` is no profile: it stands for the one that fits" in refused("profile", "show", "auto")
    assert "is a path" in refused("profile", "use", "../x")
    assert "cannot be the name" in refused("profile", "new", "../x")
    assert "unknown model" in refused("profile", "new", "x", "--from-plan", "nothing-of-that-name")
    assert "no such file" in refused("profile", "show", "x.toml")
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "local.toml").write_text("")
    assert "lies in the current directory" in refused("profile", "use", "local")
    assert not home.exists()


def test_a_home_that_cannot_be_written(home: Path) -> None:
    home.parent.write_text("")
    assert "cannot be written" in refused("profile", "use", "ci")
    assert "set XDG_CONFIG_HOME" in refused("profile", "new", "mine")
    assert said("profile", "list")
