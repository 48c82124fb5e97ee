"""Running `hybrid batch` on small inputs, and what its files say afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def command(model: str, source: Path | str, output: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "hybrid", "batch", model, str(source), "--output", str(output), *options]


def batch(
    model: str, source: Path | str, output: Path, *options: str, given: bytes | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(model, source, output, *options), input=given, capture_output=True, timeout=60, check=False
    )
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def summary(model: str, source: Path | str, output: Path, *options: str, given: bytes | None = None) -> dict[str, Any]:
    """Run it with --json; it must end well."""
    done = batch(model, source, output, "--json", *options, given=given)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def x_lines(values: Iterable[float], columns: int = 1) -> str:
    """JSONL of rows for simulated models; the id of a row is its value as text."""
    rows = []
    for value in values:
        data = [value] * columns
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, columns], "data": data}
        rows.append(json.dumps({"id": str(value), "inputs": [tensor]}))
    return "".join(row + "\n" for row in rows)


def results(output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.read_text().splitlines()]


def errors(output: Path) -> list[dict[str, Any]]:
    path = Path(f"{output}.errors.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def simulated(folder: Path, name: str = "sim", batching: str = "", **device: object) -> str:
    """Write a model folder with a simulated device and return its path."""
    folder = folder / name
    folder.mkdir(exist_ok=True)
    values = "".join(f"{key} = {json.dumps(value)}\n" for key, value in device.items())
    (folder / "model.toml").write_text(f'name = "{name}"\n[simulated]\n{values}\n[batching]\n{batching}\n')
    return str(folder)


def children_of(pid: int) -> set[int]:
    return {int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
