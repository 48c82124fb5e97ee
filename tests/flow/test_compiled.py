"""The serving path compiled, against the same files interpreted: the same answer to everything."""

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from server import Server

ROOT = Path(__file__).resolve().parents[2]
CAN_COMPILE = shutil.which("cc") is not None and (Path(sysconfig.get_path("include")) / "Python.h").exists()
MODELS = ("minilm", "simulated:null", "simulated:echo")
NULL = "/v2/models/simulated:null/infer"
TEXTS = "/v2/models/minilm/infer"

pytestmark = [
    pytest.mark.skipif(not CAN_COMPILE, reason="no C compiler or no headers of Python: nothing is compiled"),
    pytest.mark.timeout(300),  # compiling, beside whatever else this machine does
]


def one(data: Any, **more: Any) -> Any:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": data} | more]}


def texts(*rows: Any, **more: Any) -> Any:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(rows)], "data": rows} | more]}


ASKED = [
    (NULL, one([1.5])),
    (NULL, one([[2.5]])),
    (NULL, one([1.5]) | {"id": "seven", "parameters": {"timeout": 500_000}}),
    (NULL, one([1.0, 2.0])),
    (NULL, one(["1"])),
    (NULL, one([None])),
    (NULL, one([1e39])),
    (NULL, one([1.5], datatype="FP23")),
    (NULL, one([1.5], shape=[1, -1])),
    (NULL, one([1.5], name="y")),
    (NULL, {"inputs": []}),
    (NULL, one([[float(i)] for i in range(40)], shape=[40, 1])),
    (NULL, one([1.5]) | {"outputs": [{"name": "none"}]}),
    (NULL, one([1.5]) | {"parameters": {"priority": "high"}}),
    (NULL, []),
    (TEXTS, texts("a small boat", "two birds follow it home over the quiet lake")),
    (TEXTS, texts("")),
    (TEXTS, texts("good", 7)),
    (TEXTS, texts("word " * 3000)),
    ("/v2/models/none/infer", one([1.5])),
]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its modules compiled beside their sources, as they are in an installed one."""
    tree = tmp_path_factory.mktemp("compiled")
    for name in ("hybrid", "profiles"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("setup.py", "compile.ini", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    done = subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"],
        cwd=tree,
        env=os.environ | {"HYBRID_COMPILE": "1", "HYBRID_COMPILE_LEVEL": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return tree


@pytest.fixture(scope="module")
def compiled(tree: Path) -> Iterator[Server]:
    with Server(*MODELS, env={"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}) as server:
        yield server


@pytest.fixture(scope="module")
def interpreted() -> Iterator[Server]:
    with Server(*MODELS) as server:
        yield server


def plain(answer: Any) -> Any:
    """Without what differs from one request to the next."""
    return {key: value for key, value in answer.items() if key not in ("id", "parameters")}


def test_every_module_that_is_listed_is_compiled(tree: Path) -> None:
    script = """
import importlib, setup
names = [f"{f.replace('/', '.')}.{n}" for f, all in setup.COMPILED.items() for n in all.split()]
print([name for name in names if importlib.import_module(name).__file__.endswith(".py")], len(names))
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=True)
    left, count = done.stdout.rsplit(" ", 1)
    assert left == "[]"
    assert int(count) > 20
    version = subprocess.run([sys.executable, "-m", "hybrid", "--version"], cwd=tree, capture_output=True, text=True)
    assert version.stdout.endswith("(compiled)\n")


@pytest.mark.parametrize("index", range(len(ASKED)))
def test_both_answer_the_same(compiled: Server, interpreted: Server, index: int) -> None:
    path, body = ASKED[index]
    (status, theirs), (expected_status, ours) = compiled.post(path, body), interpreted.post(path, body)
    assert status == expected_status
    assert plain(theirs) == plain(ours)


def test_binary_tensors_of_any_size_come_back(compiled: Server) -> None:
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{compiled.port}") as client:
        for columns in (1, 1000, 300_000):
            sent = np.arange(2 * columns, dtype=np.float32).reshape(2, columns)
            tensor = tritonclient.http.InferInput("x", sent.shape, "FP32")
            tensor.set_data_from_numpy(sent, binary_data=True)
            answer = client.infer("simulated:echo", [tensor])
            assert np.array_equal(answer.as_numpy(answer.get_response()["outputs"][0]["name"]), sent)


def test_the_state_machine_keeps_its_promises_compiled(tree: Path) -> None:
    script = """
import sys, pytest
from hybrid.batching import state
assert state.__file__.endswith(".so"), state.__file__
sys.exit(pytest.main(["-p", "no:cacheprovider", *sys.argv[1:]]))
"""
    tests = ROOT / "tests" / "unit"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            script,
            *map(str, (tests / "test_batching_random.py", tests / "test_batching_poison.py")),
        ],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_large_body_made_in_a_thread_lets_the_loop_run(tree: Path) -> None:
    """Compiled code gives up the interpreter only where it says so."""
    script = """
import sys, threading, time
import numpy as np
from hybrid.messages import DTYPES
from hybrid.protocol.tensors_json import read_json, write_json
import msgspec
assert sys.modules["hybrid.protocol.tensors_json"].__file__.endswith(".so")
floats = np.random.default_rng(1).random(3_000_000, np.float32)
texts = np.array([b"word"] * 500_000, np.object_)
def work():
    for datatype, array in (("FP32", floats), ("BYTES", texts)):
        text = write_json(datatype, array)
        read_json(datatype, (array.size,), msgspec.Raw(text))
thread = threading.Thread(target=work)
began = time.monotonic()
thread.start()
turns = 0
while thread.is_alive():
    time.sleep(0.001)
    turns += 1
print(turns, time.monotonic() - began)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tree, capture_output=True, text=True, check=True)
    turns, seconds = map(float, done.stdout.split())
    assert turns > 25 * seconds, f"{turns} turns in {seconds} s"
