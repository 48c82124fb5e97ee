"""What every benchmark shares: machine facts, medians with spread, the table on screen and the JSON beside it."""

import json
import platform
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from hybrid.planner.machine import read_machine

RESULTS = Path(__file__).parent / "results"


class Spread(Struct, frozen=True):
    """Median, smallest and largest of several rounds."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.4g} ({self.low:.4g}..{self.high:.4g})"


def spread(values: Sequence[float]) -> Spread:
    """Summarise rounds."""
    return Spread(statistics.median(values), min(values), max(values))


def machine_facts() -> dict[str, Any]:
    """Facts that a reader needs to judge a figure."""
    machine = read_machine()
    return {
        "cpus": machine.cpu.usable,
        "model": machine.model_name,
        "isa": list(machine.isa),
        "memory_gib": round(machine.memory_limit_bytes / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_before": [round(value, 2) for value in psutil.getloadavg()],
    }


def refuse_when_busy(limit: float = 0.25) -> None:
    """Wait until the machine is quiet, for at most a minute; say so when it is not.

    A forgotten process halves every figure, and nobody sees it in the result.
    """
    for _ in range(12):
        busy = psutil.cpu_percent(interval=5.0) / 100.0
        if busy <= limit:
            return
    print(f"warning: the machine is {busy:.0%} busy with something else; figures will be off", file=sys.stderr)


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print one table."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, justify="left" if column == columns[0] else "right")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(width=110).print(table)


def write(name: str, facts: Mapping[str, Any], content: Mapping[str, Any]) -> Path:
    """Write bench/results/NAME.json and return its path."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    spec = sys.modules["__main__"].__spec__
    program = "bench" if spec is None or spec.name == "bench.__main__" else spec.name
    words = ["FOLDER" if word.startswith("/") else word for word in sys.argv[1:]]  # of this machine
    command = " ".join(("python -m", program, *words))
    document = {"bench": name, "date": time.strftime("%Y-%m-%d"), "command": command, "machine": facts, **content}
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n")
    return path


def _plain(value: object) -> object:
    if isinstance(value, Spread):
        return {"median": value.median, "low": value.low, "high": value.high}
    raise TypeError(f"cannot write {type(value).__name__}")
