"""Threads that compute: as many as the plan says, on the CPUs that it says, in every engine (P1, P6)."""

import os
import shutil
from pathlib import Path

import pytest
from busy import busy_model, masks, under_load
from server import Server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="needs CPU masks"),
]
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
ENGINES = ("onnxruntime", "openvino")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_on_one_cpu_one_thread_computes(tmp_path: Path, engine: str) -> None:
    cpu = CPUS[0]
    with Server(busy_model(tmp_path, engine), prefix=("taskset", "-c", str(cpu))) as server:
        plan, tasks = under_load(server)
        assert (plan["instances"], plan["threads_per_instance"]) == (1, 1)
        assert sum(map(len, tasks.values())) == 1
        assert [masks(busy) for busy in tasks.values()] == [[{cpu}]]
        assert all(os.sched_getaffinity(child.pid) == {cpu} for child in server.children())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("options", [(), ("--workers", "1", "--threads", "2")], ids=["planned", "one worker"])
@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")
def test_on_two_cpus_as_many_compute_as_planned(tmp_path: Path, engine: str, options: tuple[str, ...]) -> None:
    two = CPUS[:2]
    prefix = ("taskset", "-c", ",".join(map(str, two)))
    with Server(busy_model(tmp_path, engine), options=options, prefix=prefix) as server:
        plan, tasks = under_load(server)
        assert len(tasks) == plan["instances"]
        assert plan["instances"] * plan["threads_per_instance"] <= 2
        for busy in tasks.values():
            assert 1 <= len(busy) <= plan["threads_per_instance"]
        of_workers = [set().union(*masks(busy)) for busy in tasks.values()]
        assert all(mask <= set(two) for mask in of_workers)
        if any(plan["cores"]):
            assert [sorted(mask) for mask in of_workers] == [list(cores) for cores in plan["cores"]]
            assert sum(map(len, of_workers)) == len(set().union(*of_workers)), "two workers share a CPU"
