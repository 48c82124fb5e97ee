"""What `hybrid machine` finds and measures under limits that the kernel really sets: CPU masks and quotas."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from busy import busy_model, under_load
from server import Server

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("taskset") is None, reason="needs taskset")]
CPUS = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
PERIOD_US = 100_000


def machine(*prefix: str) -> dict[str, Any]:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "hybrid", "machine", "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


@contextmanager
def quota_group(quota_cpus: float) -> Iterator[Path]:
    """A control group with this quota, v1 or v2; skips where this process may not make one."""
    name = f"hybrid-test-{os.getpid()}"
    v1, v2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
    in_v1 = (v1 / "cpu.cfs_quota_us").exists() or (v1 / "cgroup.procs").exists()
    group = (v1 if in_v1 else v2) / name
    quota_us = round(quota_cpus * PERIOD_US)
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        try:
            if in_v1:
                (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (group / "cpu.cfs_quota_us").write_text(str(quota_us))
            else:
                (group / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")
        except OSError as error:
            pytest.skip(f"the CPU controller is not at hand in a new control group: {error}")
        yield group
    finally:
        removed = time.monotonic() + 5.0
        while group.exists():
            try:
                group.rmdir()
            except OSError:  # the last process is not quite gone
                assert time.monotonic() < removed, f"{group} stays: {(group / 'cgroup.procs').read_text()}"
                time.sleep(0.02)


def inside(group: Path) -> tuple[str, ...]:
    """A prefix that moves a command into the group, by exec."""
    return ("sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh")


SMALLER_THAN_CACHES = "the arrays copied are smaller than four times the caches, so copying may seem too fast"


# --- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cpu", [CPUS[0], CPUS[-1]])
def test_machine_on_one_cpu(cpu: int) -> None:
    for _ in range(3):  # a copy past the caches takes seconds, and is given up where others want this CPU as well
        facts = machine("taskset", "-c", str(cpu))
        if facts["speed"]["rates"]:
            break
        assert "could not be measured in time" in facts["speed"]["note"]
    assert (facts["usable_cpus"], facts["cpu_ids"]) == (1, [cpu])
    speed = facts["speed"]
    assert [spin["busy"] for spin in speed["spins"]] == [1]
    assert 0 < speed["spin_share"] <= 1
    assert [rate["cores"] for rate in speed["rates"]] == [1]
    assert speed["rates"][0]["matrix_flops"] > 1e8
    assert speed["rates"][0]["copy_bytes_per_s"] > 1e8
    last = max((one["size_bytes"] for one in facts["caches"] if one["level"] > 1), default=0)
    four_fit = 4.1 * last < min(1 << 30, facts["memory_limit_bytes"] // 16)  # a little for the private caches
    assert speed["note"] == ("" if four_fit else SMALLER_THAN_CACHES)


def spins(counts: tuple[int, ...], *prefix: str) -> dict[int, float]:
    """Busy processes -> CPUs that they got, measured by a program started with `prefix`."""
    script = (
        "from hybrid.planner.spin import measure_spin\n"
        f"for rate in measure_spin({counts}): print(rate.busy, rate.received_cpus)"
    )
    command = [*prefix, sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return {int(busy): float(got) for busy, got in map(str.split, done.stdout.splitlines())}


def test_spinners_on_one_cpu_share_it() -> None:
    got = spins((1, 3), "taskset", "-c", str(CPUS[-1]))
    assert 0 < got[1] <= 1.0
    assert 0 < got[3] <= 1.1


def test_a_busy_neighbour_is_seen() -> None:
    cpu = str(CPUS[-1])
    neighbour = subprocess.Popen(["taskset", "-c", cpu, sys.executable, "-c", "while True: pass"])
    try:
        got = spins((1,), "taskset", "-c", cpu)
    finally:
        neighbour.kill()
        neighbour.wait()
    assert 0 < got[1] <= 0.6  # half of the CPU, and less where others want it as well


# --- quotas -----------------------------------------------------------------------------------------------------------


def test_a_real_quota_is_found_and_felt() -> None:
    with quota_group(0.5) as group:
        facts = machine(*inside(group))
    assert (facts["usable_cpus"], facts["quota_cpus"]) == (1, 0.5)
    assert "quota of 0.5" in facts["usable_cpus_reason"] or len(CPUS) == 1
    assert facts["cpu_ids"] == CPUS
    assert facts["speed"]["spin_share"] <= 0.6


def test_spinners_get_what_the_quota_allows() -> None:
    with quota_group(0.4) as group:
        got = spins((1, 2), *inside(group))
    assert all(0 < cpus <= 0.4 * 1.25 for cpus in got.values()), got


def test_under_a_real_quota_as_many_threads_compute_as_it_pays_for(tmp_path: Path) -> None:
    with quota_group(1.0) as group, Server(busy_model(tmp_path, "onnxruntime"), prefix=inside(group)) as server:
        plan, tasks = under_load(server)
        pids = set((group / "cgroup.procs").read_text().split())
        assert {str(child.pid) for child in server.children()} <= pids, "children leave the control group"
    assert plan["instances"] * plan["threads_per_instance"] == 1
    assert sum(map(len, tasks.values())) == 1
    if len(CPUS) > 1:
        assert plan["cores"] == [[]], "the kernel picks the CPU"
