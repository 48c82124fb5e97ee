"""The README says what the code does: every name in its tables exists, and every name in the code is in its tables."""

import re
import tomllib
from importlib import import_module
from typing import Literal, get_args, get_origin, get_type_hints

import click
import pytest
from documents import README, ROOT, blocks, code, quoted, rows, section
from msgspec import NODEFAULT, Struct, structs

import hybrid.app  # noqa: F401  # defines errors of its own
from hybrid.cli.main import COMMANDS
from hybrid.config import Config, ModelSettings
from hybrid.config_file import load_settings, load_toml
from hybrid.engines import simulated_engine
from hybrid.errors import HybridError, StartupError
from hybrid.models.catalog import list_models
from hybrid.planner.profiles import ProfileFile
from hybrid.planner.types import Match, PlanOverrides
from hybrid.telemetry.metric_table import METRICS

# Settings ----------------------------------------------------------------------------------------------------------


def leaves(cls: type[Struct], prefix: str = "") -> dict[str, str]:
    """Dotted key -> default as the README writes it, for every setting below `cls`."""
    found: dict[str, str] = {}
    hints = get_type_hints(cls)
    for field in structs.fields(cls):
        hint = hints[field.name]
        nested = next((t for t in (hint, *get_args(hint)) if isinstance(t, type) and issubclass(t, Struct)), None)
        if nested is not None:
            found |= leaves(nested, f"{prefix}{field.name}.")
        elif field.default_factory is not NODEFAULT:
            found[prefix + field.name] = shown(field.default_factory())
        else:
            found[prefix + field.name] = "required" if field.default is NODEFAULT else shown(field.default)
    return found


def shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    return str(list(value)) if isinstance(value, tuple) else str(value)


def literals(cls: type[Struct], prefix: str = "") -> dict[str, tuple[str, ...]]:
    """Dotted key -> the words that the setting takes, for every setting that takes only some words."""
    found: dict[str, tuple[str, ...]] = {}
    for name, hint in get_type_hints(cls).items():
        nested = next((t for t in (hint, *get_args(hint)) if isinstance(t, type) and issubclass(t, Struct)), None)
        if nested is not None:
            found |= literals(nested, f"{prefix}{name}.")
        elif get_origin(hint) is Literal:
            found[prefix + name] = tuple(word for word in get_args(hint) if word)
    return found


def setting_rows(cls: type[Struct]) -> dict[str, list[str]]:
    text = section(README, "Configuration")
    table = section(text, "model.toml") if cls is ModelSettings else text.split("\n### ")[0]
    return {code(row[0]): row for row in rows(table)}


@pytest.mark.parametrize("cls", [Config, ModelSettings])
def test_every_setting_is_in_the_readme_with_its_default(cls):
    assert {key: code(row[1]) for key, row in setting_rows(cls).items()} == leaves(cls)


@pytest.mark.parametrize("cls", [Config, ModelSettings])
def test_every_word_that_a_setting_takes_is_named(cls):
    lines = {key: " ".join(row) for key, row in setting_rows(cls).items()}
    missing = [(key, word) for key, words in literals(cls).items() for word in words if word not in lines[key]]
    assert not missing


def test_every_key_of_a_profile_is_in_the_readme():
    text = section(README, "Profiles").split("```")[-1]
    named = {word for word in quoted(text) if re.fullmatch(r"[a-z_]+", word)}
    fields = {field.name for cls in (Match, PlanOverrides) for field in structs.fields(cls)}
    words = [get_type_hints(cls)[key] for cls, key in ((Match, "gpu_kind"), (PlanOverrides, "batching"))]
    assert named == fields | {word for hint in words for word in get_args(get_args(hint)[0])}


def test_every_profile_is_in_the_readme():
    files = {
        path.stem: load_settings(ProfileFile, load_toml(path), str(path)) for path in (ROOT / "profiles").iterdir()
    }
    table = {code(row[0]): row[2] == "yes" for row in rows(section(README, "Profiles"))}
    assert table == {name: content.match is not None for name, content in files.items()}


@pytest.mark.parametrize(
    ("first_line", "cls"), [("# model.toml", ModelSettings), ("# config.toml", Config), ("# profile", ProfileFile)]
)
def test_every_example_file_loads(first_line, cls):
    examples = [body for body in blocks(README, "toml") if body.startswith(first_line + "\n")]
    assert examples
    for body in examples:
        load_settings(cls, tomllib.loads(body), first_line)


# Command line and environment --------------------------------------------------------------------------------------


def test_every_option_is_in_the_readme():
    table = {(code(row[0]).split()[1], code(row[1])) for row in rows(section(README, "Command line"))}
    known = set()
    for verb, (module, _) in COMMANDS.items():
        known.add((verb, ""))
        command = getattr(import_module(module), verb)
        commands = [command, *command.commands.values()] if isinstance(command, click.Group) else [command]
        known |= {(verb, p.opts[0]) for one in commands for p in one.params if isinstance(p, click.Option)}
    assert table == known


def test_every_environment_variable_is_in_the_readme():
    sources = "".join(path.read_text() for path in (ROOT / "setup.py", *(ROOT / "hybrid").rglob("*.py")))
    table = {code(row[0]) for row in rows(section(README, "Environment variables"))}
    assert table == set(re.findall(r'"(HYBRID_[A-Z_]+[A-Z])"', sources))


def test_every_make_target_that_is_named_exists():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join([*quoted(README), *blocks(README, "sh make")])))
    assert {"serve", "test"} <= named <= targets


# Errors, metrics, models -------------------------------------------------------------------------------------------


def answers(cls: type[HybridError] = HybridError) -> dict[str, str]:
    """Code -> status of every error that a client may get."""
    found = {cls("").code: str(cls.status)}
    for sub in cls.__subclasses__():
        if not issubclass(sub, StartupError):
            found |= answers(sub)
    return found


def test_every_error_is_in_the_readme_with_its_status():
    assert {code(row[0]): row[1] for row in rows(section(README, "Errors"))} == answers()


def test_every_metric_is_in_the_readme_with_its_type_and_labels():
    table = {code(name): (kind, code(labels)) for name, kind, labels, _ in rows(section(README, "Metrics"))}
    assert table == {metric.name: (metric.kind, ", ".join(metric.labels)) for metric in METRICS}


def test_every_model_that_can_be_named_is_in_the_readme():
    assert [code(row[0]) for row in rows(section(README, "Models"))] == [row.name for row in list_models()]


def test_every_fault_is_in_the_readme():
    named = dict(re.findall(r"`([A-Z_]+)` (-60\d\d)", section(README, "Models")))
    constants = {name: value for name, value in vars(simulated_engine).items() if name.isupper()}
    markers = {name: value for name, value in constants.items() if value in range(-6999, -6000)}
    assert {name: float(value) for name, value in named.items()} == markers


# The rest ----------------------------------------------------------------------------------------------------------


def test_every_file_that_is_named_exists():
    files = {name for name in quoted(README) if re.fullmatch(r"[\w./]*(LICENSE|\.md)", name)}
    assert files >= {"LICENSE", "CHANGELOG.md", "hybrid/ARCHITECTURE.md"}
    assert not [name for name in files if not (ROOT / name).is_file()]


def test_the_performance_section_is_marked():
    text = section(README, "Performance")
    assert 0 <= text.find("<!-- performance -->") < text.find("<!-- /performance -->")


def test_the_changelog_has_the_usual_shape():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", version) for version in versions[1:])
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
