"""Measuring children that hang, die or cannot start: the measurement is missing, and nothing waits."""

import os
import time

import msgspec
import psutil
import pytest

from hybrid.facts import CpuBudget, MachineFacts
from hybrid.planner import lines, spin
from hybrid.planner.measures import CoreRate, RooflineJob, RooflineRun
from hybrid.planner.speed import measure_speed

CPU = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


@pytest.mark.slow
def test_a_child_that_says_nothing_is_ended_when_its_time_is_over() -> None:
    began = time.monotonic()
    with lines.Children("hybrid.planner.spinner", 1, limit_s=1.5) as children:
        assert children.hear(1) == ["ready"]
        assert children.hear(1) == [None]  # it waits for a question that does not come
    assert time.monotonic() - began < 10.0


def test_children_end_with_the_context() -> None:
    with lines.Children("hybrid.planner.spinner", 2, limit_s=30.0) as children:
        assert children.hear(2) == ["ready", "ready"]
        running = psutil.Process().children()
        assert len(running) == 2
    assert not any(child.is_running() for child in running)


def test_a_program_that_does_not_start_says_nothing() -> None:
    with lines.Children("hybrid.planner.no_such_program", 1, limit_s=30.0) as children:
        children.tell("a question", 1)
        assert children.hear(1) == [None]


def test_spinning_without_a_working_program_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spin, "_PROGRAM", "hybrid.planner.no_such_program")
    assert spin.measure_spin((1,)) == ()


def test_without_processes_nothing_is_measured_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/no/such/python")
    budget = CpuBudget(1, (CPU,), 1, None, None, 1, "one CPU")
    speed = measure_speed(MachineFacts(budget, 1 << 30, "host memory"))
    assert (speed.spins, speed.rates, speed.spin_share) == ((), (), 0.0)
    assert "no busy processes could be started" in speed.note
    assert "no process could be started" in speed.note


@pytest.mark.slow
def test_a_number_of_cores_without_memory_fails_alone() -> None:
    too_much, little = RooflineRun((CPU, CPU), 1 << 60), RooflineRun((CPU,), 1 << 20)
    with lines.Children("hybrid.planner.roofline_child", 1, limit_s=60.0) as children:
        children.tell(msgspec.json.encode(RooflineJob((too_much, little), 0.02)).decode(), 1)
        failed, done = (msgspec.json.decode(children.hear(1)[0] or "", type=CoreRate) for _ in range(2))
    assert failed == CoreRate(2, 0.0, 0.0)
    assert done.matrix_flops > 0
    assert done.copy_bytes_per_s > 0
