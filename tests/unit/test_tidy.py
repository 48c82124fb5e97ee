"""The gates of the project: style, types, import contracts, sizes. Each tool runs once and shows its own words."""

import ast
import hashlib
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import hybrid

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

FILE_LINES_REFUSED = 400
FILE_LINES_ARGUED = 300
#: Source files over FILE_LINES_ARGUED, each with the reason why it is not two.
LONG_FILES = {
    "hybrid/batching/state.py": "the state machine: every move of a request is checked against all others in one place",
    "hybrid/frontend/connection.py": "one connection's order of answers, backpressure and closing share their state",
    "hybrid/frontend/parser.py": "one request's way through the HTTP parser, with every refusal beside its rule",
    "hybrid/telemetry/snapshot.py": "a schema, read as a whole",
    "hybrid/workers/pool.py": "the life of a worker, from start to replacement, is one story",
}
FUNCTION_LINES_REFUSED = 60
FUNCTION_LINES_P90 = 35
FUNCTION_LINES_MEDIAN = 10

#: Contracts that must name every module of a package but these few.
CONTRACTS_OVER_ALL_MODULES = {
    "pure-batching": ("hybrid/batching", {"scheduler"}),
    "pure-planner": (
        "hybrid/planner",
        {
            *("cgroups", "gpus", "lines", "machine", "nvml", "prepare", "profile_files", "profiles"),
            *("roofline_child", "speed", "spin", "spinner", "topology"),
        },
    ),
    "pure-tune": ("hybrid/tune", {"journal", "progress", "run", "trial"}),
    "frontend-wire": (
        "hybrid/frontend",
        {"admission", "decoding", "grpc", "grpc_service", "handler", "models_api", "openai_api", "ops"},
    ),
}

#: The licence as published, without the empty line some copies begin with.
APACHE_2_SHA256 = "c71d239df91726fc519c6eb72d318ec65820627232b2f796219e87dcf35d0ab4"

_UNFINISHED = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X)\b")
_MACHINE_PATH = re.compile(r"(?<![\w./-])/(wor[k]|roo[t]|hom[e])/")
_REGISTRY = re.compile(r"index[-_]url|trusted[-_]host|find[-_]links|https?://[^\s\"']*/simple\b", re.IGNORECASE)


def run(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"{' '.join(command)}\n{done.stdout}{done.stderr}", pytrace=False)


@cache
def project_files() -> tuple[Path, ...]:
    """What git tracks or would track; everything below the source folders where this is no checkout."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        paths = [path for folder in ("hybrid", "bench", "tests", "profiles") for path in (ROOT / folder).rglob("*")]
    return tuple(path for path in paths if path.is_file() and "__pycache__" not in path.parts)


def source_files(folder: str = "hybrid") -> list[Path]:
    return [path for path in sorted((ROOT / folder).rglob("*.py")) if not path.stem.endswith(("_pb2", "_pb2_grpc"))]


def texts() -> Iterator[tuple[str, str]]:
    """Name and text of every project file that is text."""
    for path in project_files():
        data = path.read_bytes()
        if b"\0" not in data[:4096] and path.name != "tokenizer.json":  # a vocabulary holds any word
            yield str(path.relative_to(ROOT)), data.decode(errors="replace")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


# The tools ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_ruff_finds_nothing():
    run("-m", "ruff", "check", "--quiet", ".")


@pytest.mark.slow
def test_the_code_is_formatted():
    run("-m", "ruff", "format", "--check", "--quiet", ".")


@pytest.mark.slow
@pytest.mark.timeout(600)  # the first run on a machine fills the cache
def test_mypy_strict_finds_nothing():
    run("-m", "mypy", "--no-error-summary")


@pytest.mark.slow
def test_the_import_contracts_hold():
    run("-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())")


@pytest.mark.parametrize("contract", CONTRACTS_OVER_ALL_MODULES)
def test_no_module_stays_outside_of_a_contract(contract):
    folder, exceptions = CONTRACTS_OVER_ALL_MODULES[contract]
    modules = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}
    listed = next(c for c in PYPROJECT["tool"]["importlinter"]["contracts"] if c["id"] == contract)["source_modules"]
    assert {name.rpartition(".")[2] for name in listed} == modules - exceptions


# Sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["hybrid", "bench", "tests"])
def test_files_are_short(folder):
    lines = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in source_files(folder)}
    refused = {name: count for name, count in lines.items() if count > FILE_LINES_REFUSED}
    assert not refused, f"over {FILE_LINES_REFUSED} lines: split them"
    long = {name for name, count in lines.items() if count > FILE_LINES_ARGUED}
    if folder != "tests":  # of which each is read alone
        assert not long - LONG_FILES.keys(), f"over {FILE_LINES_ARGUED} lines: split them, or say in LONG_FILES why not"
    argued = {name for name in LONG_FILES if name.startswith(f"{folder}/")}
    assert not argued - lines.keys(), "LONG_FILES names files that are gone"


@pytest.mark.parametrize("folder", ["hybrid", "bench", "tests"])
def test_functions_are_short(folder):
    sizes = {}
    for path in source_files(folder):
        for function in functions(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{function.lineno} {function.name}"
            sizes[place] = (function.end_lineno or 0) - function.lineno + 1
    ordered = sorted(sizes.values())
    too_long = {place: size for place, size in sizes.items() if size > FUNCTION_LINES_REFUSED}
    assert not too_long
    assert ordered[int(0.9 * len(ordered))] < FUNCTION_LINES_P90
    assert statistics.median(ordered) < FUNCTION_LINES_MEDIAN


# Words -------------------------------------------------------------------------------------------------------------


def test_nothing_is_left_for_later():
    found = [f"{name}: {word[0]}" for name, text in texts() for word in _UNFINISHED.finditer(text)]
    assert not found


def test_no_file_knows_a_machine_or_a_registry():
    found = [
        f"{name}: {hit[0]}"
        for name, text in texts()
        if name != "tests/unit/test_tidy.py"
        for pattern in (_MACHINE_PATH, _REGISTRY)
        for hit in pattern.finditer(text)
    ]
    assert not found


@pytest.mark.slow
def test_every_test_asserts():
    """Itself or in a helper that it calls, at most two calls away; for a type checker's sake does not count."""
    trees = {path: ast.parse(path.read_text()) for path in source_files("tests")}
    idle = [
        f"{path.relative_to(ROOT)}:{test.lineno} {test.name}"
        for path, tree in trees.items()
        if path.stem.startswith("test_")
        for test in functions(tree)
        if test.name.startswith("test_") and not _asserts(test, _helpers(tree, trees), 2)
    ]
    assert not idle


def _helpers(tree: ast.Module, trees: dict[Path, ast.Module]) -> dict[str, list[ast.AST]]:
    """Functions by name, of a file of tests and of those that it imports: `join` of another file is not `str.join`."""
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    names = {name for node in imports for name in (getattr(node, "module", None), *(one.name for one in node.names))}
    found: dict[str, list[ast.AST]] = {}
    for one in (tree, *(other for path, other in trees.items() if path.stem in names)):
        for function in functions(one):
            found.setdefault(function.name, []).append(function)
    return found


def _asserts(function: ast.AST, helpers: dict[str, list[ast.AST]], depth: int) -> bool:
    calls = _calls(function)
    if any(name in ("assert", "raises", "warns", "fail") or name.startswith("assert_") for name in calls):
        return True
    helping = [helper for name in calls for helper in helpers.get(name, ()) if helper is not function]
    return depth > 0 and any(_asserts(helper, helpers, depth - 1) for helper in helping)


@cache
def _calls(function: ast.AST) -> frozenset[str]:
    """The names of what a function calls, and "assert" where it does."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assert) and not _only_narrows(node.test):
            names.add("assert")
        elif isinstance(node, ast.Call):
            names.add(node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", ""))
    return frozenset(names)


def _only_narrows(test: ast.expr) -> bool:
    """Whether it is `name is not None`, which mostly tells a type checker what is known."""
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)


# Package -----------------------------------------------------------------------------------------------------------


def test_the_licence_is_the_unchanged_apache_licence():
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE_2_SHA256
    assert PYPROJECT["project"]["license"] == "Apache-2.0"


def test_the_version_is_said_once():
    assert hybrid.__version__ == PYPROJECT["project"]["version"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "unwanted"),
    [
        ("hybrid", ("onnxruntime", "numpy", "uvloop", "tokenizers", "PIL", "msgspec", "asyncio")),
        ("hybrid.cli.main", ("onnxruntime", "numpy", "uvloop", "tokenizers", "PIL")),
        ("hybrid.app", ("grpc", "google.protobuf", "onnxruntime", "uvloop", "tokenizers", "PIL")),  # for some only
    ],
)
def test_importing_loads_no_heavy_library(module, unwanted):
    script = f"import sys, {module}; print([name for name in {unwanted!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
