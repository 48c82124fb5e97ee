"""Measuring on real processes: what they answer, that they run together, and that none is left however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from msgspec.structs import replace
from onnx_models import graphs

from bench.small_models import maps_onnx
from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines.base import EngineSettings
from hybrid.models.catalog import resolve
from hybrid.planner.machine import read_machine
from hybrid.planner.measures import Probe
from hybrid.probing.budget import Budget
from hybrid.probing.crew import Crew, ProbeFailed
from hybrid.probing.facts import FactsProbe
from hybrid.probing.messages import (
    Check,
    Checked,
    Loaded,
    Peak,
    Peaked,
    StartProbe,
    Time,
    Timed,
    Warm,
    Warmed,
    encode,
)
from hybrid.probing.process import ProbeProcess
from hybrid.probing.runner import NO_TIME, ProcessMeasurer, cores_for
from hybrid.probing.timing import summarise
from hybrid.workers import wire
from hybrid.workers.wire import MAX_PACKET

pytestmark = pytest.mark.slow
MACHINE = read_machine()
MIB = 1 << 20


def device(**settings):
    return ModelSettings(name="device", engine="simulated", simulated=SimulatedSettings(**settings))


def crew(model, members=1):
    return Crew(model, EngineSettings(), [()] * members, 8)


def test_a_crew_loads_warms_and_runs_together():
    with crew(device(fixed_ms=5.0), 2) as two:
        assert two.loaded(20.0) == [Loaded(pytest.approx(0.0, abs=0.1), True, 8)] * 2
        # Two batches at most are run, so a neighbour on the CPU can make either one long.
        assert all(0.004 < answer.seconds < 1.0 for answer in two.ask(Warm(4), Warmed, 5.0))
        begin = time.monotonic() + 0.01
        first, second = two.ask(Time(4, begin, begin + 0.3), Timed, 5.0)
    assert first.group == second.group == 1
    assert min(first.batches[-1][1], second.batches[-1][1]) - max(first.batches[0][0], second.batches[0][0]) > 0.2
    assert summarise([first, second]).seconds == pytest.approx(0.005, rel=0.5)


def test_very_short_batches_are_grouped():
    with crew(device()) as one:
        one.loaded(20.0)
        one.ask(Warm(1), Warmed, 5.0)
        begin = time.monotonic()
        (timed,) = one.ask(Time(1, begin, begin + 0.05), Timed, 5.0)
    assert timed.group > 5
    assert len(timed.batches) < 1000


def test_many_short_batches_fit_into_one_answer():
    with crew(device()) as one:
        one.loaded(20.0)
        one.ask(Warm(1), Warmed, 5.0)
        begin = time.monotonic()
        (timed,) = one.ask(Time(1, begin, begin + 0.01), Timed, 5.0)
        # As where the last batch of the warming was slow: nothing says that batches are short.
        probe = ProbeProcess(StartProbe(device(), EngineSettings(), (), 8))
        probe.answer(Warm(1))
        probe._warm_s = 1.0
        begin = time.monotonic()
        found = probe.answer(Time(1, begin, begin + 0.6))
    assert found.group > 1
    assert len(encode(found)) < MAX_PACKET
    assert found.batches[-1][1] - found.batches[0][0] == pytest.approx(0.6, rel=0.2)
    assert summarise([found]).seconds < 10 * summarise([timed]).seconds


def test_inputs_are_made_before_the_time_is_taken(monkeypatch):
    probe = ProbeProcess(StartProbe(device(), EngineSettings(), (), 8))
    probe.answer(Warm(4))
    monkeypatch.setattr(probe._feed, "rows", lambda rows: pytest.fail("made while others wait"))
    begin = time.monotonic() + 0.002
    assert probe.answer(Time(4, begin, begin + 0.02)).batches


def test_the_sample_of_many_outputs_fits_into_one_answer():
    outputs = {f"output-{number}-{'x' * 80}": np.ones((1, 5000), np.float32) for number in range(300)}
    probe = ProbeProcess(StartProbe(device(), EngineSettings(), (), 8))
    signature = probe._pipeline.signature
    fault = "f" * 200_000
    probe._pipeline = SimpleNamespace(check_batchable=lambda *_: fault, run=lambda *_: outputs, signature=signature)
    checked = probe.answer(Check())
    assert len(encode(checked)) < MAX_PACKET
    assert len(checked.sample) == 200
    assert sum(map(len, checked.sample.values())) == 1000


def test_settings_and_examples_may_be_larger_than_a_packet():
    wide = replace(resolve("minilm"), example_rows=("word " * 100_000,), description="x" * 300_000)
    with Crew(wide, EngineSettings(), [()], 8) as one:
        assert one.loaded(20.0)[0].length == wide.preprocess.text.max_tokens  # the example came along
    assert not psutil.Process().children()


def test_an_answer_that_cannot_be_read_is_a_failure(monkeypatch):
    with crew(device()) as one:
        monkeypatch.setattr(wire, "receive", lambda sock: b"\xc1")
        with pytest.raises(ProbeFailed, match="cannot be read"):
            one.loaded(20.0)


def test_a_process_that_ran_nothing_is_asked_once_more_and_then_late(monkeypatch):
    asked = []

    def ask(self, command, expected, timeout_s):
        asked.append(command)
        return [Warmed(0.001)] if isinstance(command, Warm) else [Timed(())]

    monkeypatch.setattr(Crew, "ask", ask)
    with ProcessMeasurer(device(), MACHINE, 8, Budget(30.0)) as measurer:
        (timing,) = measurer.time([Probe("simulated", 1, 1, 2)])
    assert timing.failure == NO_TIME
    assert [type(command) for command in asked] == [Warm, Time, Time]


def test_peaks_come_from_the_device_or_the_process():
    gpu = device(memory_total_bytes=100 * MIB, memory_weights_bytes=20 * MIB, memory_per_row_bytes=10 * MIB)
    with crew(gpu) as one, crew(device()) as other:
        one.loaded(20.0)
        assert one.ask(Peak(3), Peaked, 5.0)[0].peak_bytes == 50 * MIB
        with pytest.raises(ProbeFailed, match="9 rows need") as failed:
            one.ask(Peak(9), Peaked, 5.0)
        assert failed.value.memory
        assert one.ask(Peak(4), Peaked, 5.0)[0].peak_bytes == 60 * MIB  # it lives on
        other.loaded(20.0)
        assert 10 * MIB < other.ask(Peak(3), Peaked, 5.0)[0].peak_bytes < 1000 * MIB


def test_the_check_shows_what_comes_out():
    with crew(device(columns=3)) as one:
        assert one.loaded(20.0)[0].variable is False
        (checked,) = one.ask(Check(), Checked, 5.0)
    assert checked.fault == ""
    assert [len(values) for values in checked.sample.values()] == [3]


def test_a_model_that_cannot_be_loaded_says_why():
    missing = ModelSettings(name="m", file="/nonexistent/net.onnx")
    with crew(missing) as one, pytest.raises(ProbeFailed, match="no such file"):
        one.loaded(20.0)


@pytest.mark.parametrize(
    ("number", "text", "memory"), [(signal.SIGKILL, "killed by SIGKILL", True), (signal.SIGSEGV, "SIGSEGV", False)]
)
def test_a_process_that_dies_is_a_failure_and_no_hang(number, text, memory):
    with crew(device(start_s=30.0)) as one:
        (child,) = psutil.Process().children()
        time.sleep(0.5)
        child.send_signal(number)
        with pytest.raises(ProbeFailed, match=text) as failed:
            one.loaded(20.0)
        assert failed.value.memory is memory


def test_a_process_that_takes_too_long_is_given_up():
    began = time.monotonic()
    with crew(device(start_s=30.0)) as one, pytest.raises(ProbeFailed, match="too long") as failed:
        one.loaded(0.2)
    assert failed.value.late
    assert time.monotonic() - began < 5.0


def test_the_measurer_keeps_processes_between_questions_of_one_setting():
    probes = [Probe("simulated", instances, 1, rows) for instances in (1, 2) for rows in (1, 4)]
    with ProcessMeasurer(device(fixed_ms=2.0, per_row_ms=1.0), MACHINE, 8, Budget(30.0)) as measurer:
        timings = measurer.time(probes)
        pids = {child.pid for child in psutil.Process().children()}
        again = measurer.time([Probe("simulated", 2, 1, 2)])
        assert {child.pid for child in psutil.Process().children()} == pids
    assert [timing.probe for timing in timings] == probes
    assert [timing.failure for timing in timings] == [""] * 4
    assert [timing.seconds for timing in timings] == pytest.approx([0.003, 0.006, 0.003, 0.006], rel=0.5)
    assert again[0].seconds == pytest.approx(0.004, rel=0.5)
    assert not psutil.Process().children()


def test_times_that_were_taken_beside_others_say_so(tmp_path):
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count what a process waits for a CPU")
    maps_onnx(tmp_path / "maps.onnx", 16, 64)
    model = ModelSettings(name="maps", file=str(tmp_path / "maps.onnx"))
    (core,) = cores_for(model, MACHINE, 1, 1)
    busy = "import os, sys\nos.sched_setaffinity(0, map(int, sys.argv[1:]))\nprint(flush=True)\nwhile True: pass"
    cpus = core or MACHINE.cpu.cpus
    command = [sys.executable, "-c", busy, *map(str, cpus)]
    others = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2 * len(cpus))]
    try:
        assert all(other.stdout.readline() for other in others)
        with ProcessMeasurer(model, MACHINE, 8, Budget(30.0)) as measurer:
            (timing,) = measurer.time([Probe("onnxruntime", 1, 1, 1)])
        limited = replace(MACHINE, cpu=replace(MACHINE.cpu, quota_cpus=1.5))
        with ProcessMeasurer(model, limited, 8, Budget(30.0)) as measurer:
            (paused,) = measurer.time([Probe("onnxruntime", 1, 1, 1)])
    finally:
        for other in others:
            other.kill()
            other.communicate()
    assert timing.failure == ""
    assert 0.2 < timing.waited <= 1.0  # two thirds where the kernel is fair
    assert paused.waited == 0.0  # under a quota nobody can tell its pauses from others' work


def test_what_fails_does_not_keep_others_from_being_measured():
    gpu = device(fixed_ms=1.0, memory_total_bytes=100 * MIB, memory_weights_bytes=MIB, memory_per_row_bytes=20 * MIB)
    with ProcessMeasurer(gpu, MACHINE, 8, Budget(30.0)) as measurer:
        small, large = measurer.time([Probe("simulated", 1, 1, 2), Probe("simulated", 1, 1, 8)])
        (after,) = measurer.time([Probe("simulated", 1, 1, 3)])
    assert (small.failure, after.failure) == ("", "")
    assert "8 rows need" in large.failure
    assert large.seconds == float("inf")


def test_without_time_nothing_is_started():
    with ProcessMeasurer(device(), MACHINE, 8, Budget(0.0)) as measurer:
        (timing,) = measurer.time([Probe("simulated", 1, 1, 2)])
        assert timing.failure == NO_TIME
        assert not psutil.Process().children()


def test_cores_are_those_that_a_plan_would_hand_out():
    budget = replace(MACHINE.cpu, cpus=(0, 1, 2, 3), usable=4)
    four = replace(MACHINE, cpu=budget, core_groups=((0, 1), (2, 3)), efficiency_cpus=())
    model = device()
    assert cores_for(model, four, 2, 2) == [(0, 2), (1, 3)]
    assert cores_for(model, four, 3, 2) == [()] * 3
    assert cores_for(model, four, 1, 1, "cuda:0") == [()]
    assert cores_for(model, replace(four, cpu=replace(budget, usable=2)), 2, 1) == [()] * 2
    unpinned = replace(model, workers=replace(model.workers, pin=False))
    assert cores_for(unpinned, four, 2, 1) == [()] * 2


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_facts_about_a_real_model(tmp_path, engine):
    graphs.identity(tmp_path / "echo.onnx")
    model = ModelSettings(name="echo", file=str(tmp_path / "echo.onnx"))
    steps = []
    facts = FactsProbe(model, MACHINE, 8, 4096 * MIB, 64, Budget(20.0), steps.append).find(engine)
    profile = facts.profile
    assert (profile.engine, profile.batching_fault, profile.fixed_rows) == (engine, "", None)
    assert profile.memory is not None
    assert 10 * MIB < profile.memory.base_bytes < 1000 * MIB
    assert [point.rows for point in profile.memory.points][:3] == [1, 2, 4]
    assert max(point.rows for point in profile.memory.points) >= 32
    assert steps[0] == f"{engine}: loading"
    assert facts.sample
    assert 0.0 < profile.beside.loop_s < profile.beside.cpu_s
    assert profile.beside.turn_s > 0.0


def climbed(error, budget_s=20.0):
    """The memory line of a model whose batches of 16 rows fail with an error."""
    peaks = FactsProbe._peak

    def peak(self, crew, rows):
        if rows >= 16:
            raise error
        return peaks(self, crew, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FactsProbe, "_peak", peak)
        gpu = device(memory_total_bytes=4096 * MIB, memory_weights_bytes=MIB, memory_per_row_bytes=2 * MIB)
        facts = FactsProbe(gpu, MACHINE, 8, 4096 * MIB, 64, Budget(budget_s)).find("simulated")
    return facts.profile.memory


def test_only_a_lack_of_memory_bounds_the_memory_line():
    assert climbed(ProbeFailed("killed", memory=True)).per_row_bytes > 500 * MIB
    for other in (ProbeFailed("it took too long", late=True), ProbeFailed("killed by SIGSEGV")):
        assert climbed(other).per_row_bytes == pytest.approx(2 * MIB, rel=0.1)


def test_finding_out_waits_no_longer_than_the_budget():
    began = time.monotonic()
    with pytest.raises(ProbeFailed) as failed:
        FactsProbe(device(start_s=30.0), MACHINE, 8, 4096 * MIB, 64, Budget(0.5)).find("simulated")
    assert failed.value.late
    assert time.monotonic() - began < 5.0


PARENT = """
import sys, time
from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.engines.base import EngineSettings
from hybrid.probing.crew import Crew
model = ModelSettings(name="m", engine="simulated", simulated=SimulatedSettings())
with Crew(model, EngineSettings(), [(), ()], 8) as crew:
    crew.loaded(20.0)
    print("loaded", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_probes_die_with_whoever_measures(number):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"loaded\n"
        children = psutil.Process(parent.pid).children()
        assert len(children) == 2
        os.kill(parent.pid, number)
        assert not psutil.wait_procs(children, timeout=5.0)[1]
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
