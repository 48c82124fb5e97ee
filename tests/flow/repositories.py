"""Repositories of tiny ONNX models for flow tests: y = x + k, so that an answer tells which model it is from."""

import os
import sys
import threading
import urllib.error
from pathlib import Path
from typing import Any

from server import Server

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))

import onnx_graphs as graphs

ONE_WORKER = "[workers]\ninstances = 1\nthreads = 1\n"


def plus(path: Path, k: float) -> None:
    """Put the model y = x + k into a place in one step, like a deployment should."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}")
    node = graphs.helper.make_node("Add", ["x", "k"], ["y"])
    x, y = (graphs.value(name, graphs.FLOAT, ["n", 4]) for name in "xy")
    graphs.write(part, [node], [x], [y], [graphs.helper.make_tensor("k", graphs.FLOAT, [1], [k])])
    part.replace(path)


def folder(root: Path, name: str, k: float, toml: str = "", version: str = "") -> Path:
    """Write a model folder, or add a version to one."""
    path = root / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "model.toml").write_text(f"{toml}\n{ONE_WORKER}")
    plus(path / version / "m.onnx", k)
    return path


def truncate(path: Path) -> None:
    """Leave half of a file."""
    os.truncate(path, path.stat().st_size // 2)


def ask(server: Server, path: str, value: float = 0.0) -> Any:
    """Infer one row; returns the first number of the answer, or the status if it is an error."""
    body = {"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [value] * 4}]}
    status, answer = server.post(f"/v2/models/{path}/infer", body)
    return answer["outputs"][0]["data"][0] if status == 200 else status


def load(server: Server, name: str, verb: str = "load", headers: dict[str, str] | None = None) -> tuple[int, Any]:
    return server.post(f"/v2/repository/models/{name}/{verb}", {}, headers)


def index(server: Server) -> dict[tuple[str, str], tuple[str, str]]:
    """(name, version) -> (state, reason)."""
    _, entries = server.post("/v2/repository/index", b"")
    return {(e["name"], e["version"]): (e["state"], e["reason"]) for e in entries}


class Load:
    """Clients that ask one model again and again; `with` ends them. Each answer is what it should add."""

    def __init__(self, server: Server, path: str, clients: int = 8) -> None:
        self.answers: list[Any] = []  # (k, version) of each answer in the order of arrival, or what went wrong
        self._server, self._path = server, path
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _run(self, number: int) -> None:
        value = float(1000 * number)
        while not self._stop.is_set():
            value += 1.0
            rows = [[value] * 4, [value + 0.25] * 4, [value + 0.5] * 4]  # more than a batch holds: several pieces
            body = {
                "inputs": [{"name": "x", "shape": [3, 4], "datatype": "FP32", "data": [n for row in rows for n in row]}]
            }
            try:
                status, answer = self._server.post(f"/v2/models/{self._path}/infer", body)
            except (OSError, urllib.error.URLError) as error:
                self.answers.append(repr(error))
                return
            if status != 200:
                self.answers.append((status, answer))
                continue
            data = answer["outputs"][0]["data"]
            added = {data[4 * row + column] - rows[row][column] for row in range(3) for column in range(4)}
            self.answers.append((added.pop() if len(added) == 1 else sorted(added), answer["model_version"]))
