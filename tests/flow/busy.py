"""A model that computes, load on it, and which threads did the work, as the kernel counts."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from onnx_models import graphs
from server import Server

LAYERS, WIDTH = 40, 768


def busy_model(root: Path, engine: str) -> str:
    """A stack of matrix products over one number: some milliseconds of work for a request of a few bytes."""
    folder = root / "busy"
    folder.mkdir()
    (folder / "model.toml").write_text(f'engine = "{engine}"\n')
    widen = graphs.helper.make_tensor("widen", graphs.FLOAT, [1, WIDTH], [0.01] * WIDTH)
    square = graphs.helper.make_tensor("square", graphs.FLOAT, [WIDTH, WIDTH], [0.001] * WIDTH**2)
    nodes = [graphs.helper.make_node("MatMul", ["x", "widen"], ["h0"])]
    for layer in range(LAYERS):
        nodes += [
            graphs.helper.make_node("MatMul", [f"h{layer}", "square"], [f"m{layer}"]),
            graphs.helper.make_node("Tanh", [f"m{layer}"], [f"h{layer + 1}"]),
        ]
    nodes.append(graphs.helper.make_node("ReduceMean", [f"h{LAYERS}"], ["y"], axes=[1], keepdims=1))
    x, y = graphs.value("x", graphs.FLOAT, ["n", 1]), graphs.value("y", graphs.FLOAT, ["n", 1])
    graphs.write(folder / "model.onnx", nodes, [x], [y], [widen, square])
    return str(folder)


def load(server: Server, seconds: float = 1.0, clients: int = 4) -> None:
    """Ask without a pause from several connections."""
    ends = time.monotonic() + seconds

    def ask() -> None:
        while time.monotonic() < ends:
            assert server.infer_x("busy", 1.0)[0] == 200

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def cpu_s(pid: int) -> dict[int, float]:
    """Thread id -> CPU seconds, to the nanosecond: clock ticks go whole to the thread that runs when they come."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name): int((task / "schedstat").read_text().split()[0]) / 1e9 for task in tasks}


def computing(before: dict[int, float], after: dict[int, float]) -> list[int]:
    """Threads that burned a tenth or more of what the busiest one did; at least one burned something."""
    burned = {task: spent_s - before.get(task, 0.0) for task, spent_s in after.items()}
    most = max(burned.values())
    assert most > 0.1, f"nothing was computed: {burned}"
    return [task for task, spent_s in burned.items() if spent_s >= most / 10]


def masks(tasks: list[int]) -> list[set[int]]:
    return [os.sched_getaffinity(task) for task in tasks]


def under_load(server: Server) -> tuple[Any, dict[int, list[int]]]:
    """The plan, and the computing threads of each worker by its pid."""
    (plan,) = server.get("/hybrid/v1/plan")[1]
    load(server, 0.3)  # the first batches start threads that later ones do not need
    pids = [worker["pid"] for worker in server.workers()]
    before = {pid: cpu_s(pid) for pid in pids}
    load(server)
    return plan, {pid: computing(before[pid], cpu_s(pid)) for pid in pids}
