"""What the README tells people to type works as printed; those that need a server share one."""

import http.client
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import README, ROOT, blocks, code, rows, section
from flow.server import Server

pytestmark = pytest.mark.slow

COMMANDS = [line for body in blocks(README, "sh run") for line in body.splitlines() if line]
CURLS = blocks(README, "sh server")
SCRIPTS = blocks(README, "python server")
#: Whatever unloads a model takes one that no later test needs.
ENDPOINTS = [
    (row[0], code(row[1]).replace("{model}", "nsfw" if "/unload" in row[1] else "minilm"))
    for row in rows(section(README, "Endpoints"))
]


@pytest.fixture(scope="module")
def server():
    with Server("minilm", "nsfw") as running:
        yield running


def shell(script: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", script], cwd=ROOT, env=os.environ | {"PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def on_port(text: str, server: Server) -> str:
    assert "127.0.0.1:8000" in text
    return text.replace("127.0.0.1:8000", f"127.0.0.1:{server.port}")


def test_there_is_something_to_run():
    assert len(COMMANDS) >= 4
    assert len(CURLS) >= 2
    assert SCRIPTS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs(command):
    assert shell(command).strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("index", range(len(CURLS)))
def test_a_request_is_answered(index, server):
    answer = json.loads(shell(on_port(CURLS[index], server)))
    assert answer["outputs"][0]["data"]


@pytest.mark.parametrize("index", range(len(SCRIPTS)))
def test_a_script_runs(index, server):
    done = subprocess.run(
        [sys.executable, "-c", on_port(SCRIPTS[index], server)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize(("method", "path"), [e for e in ENDPOINTS if not e[1].endswith(("/infer", "/embeddings"))])
def test_an_endpoint_answers(method, path, server):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert answer.read1(64)
    finally:
        connection.close()


def test_the_paths_with_a_version_answer(server):
    of_minilm = [path for _, path in ENDPOINTS if path.startswith("/v2/models/minilm") and not path.endswith("/infer")]
    assert len(of_minilm) >= 3
    for path in of_minilm:
        status, _ = server.get(path.replace("/minilm", "/minilm/versions/1"))
        assert status == 200, path
