"""Numbers of processes that somebody fixed, beside the memory that there is."""

from typing import Any

import pytest

from hybrid.config import ModelSettings, PreprocessSettings, TextSettings
from hybrid.errors import ConfigError
from hybrid.facts import CpuBudget, MachineFacts
from hybrid.planner.measures import EngineProfile, MemoryLine, ModelProfile, Probe, Timing
from hybrid.planner.plan import first_plan
from hybrid.planner.types import PlanOverrides

GIB = 1 << 30
MIB = 1 << 20
TEXT = PreprocessSettings(text=TextSettings())


def planned(memory: int = 16 * GIB, preprocess: PreprocessSettings | None = None, **more: Any) -> int:
    cpu = CpuBudget(2, (0, 1), 2, None, None, 2, "test")
    machine = MachineFacts(cpu=cpu, memory_limit_bytes=memory, memory_source="host memory")
    model = ModelSettings(name="m", preprocess=preprocess or PreprocessSettings())
    return first_plan(machine, [model], None, **more)[0].instances


def refusal(**more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(**more)
    return str(caught.value)


def test_more_workers_than_memory_can_hold_are_refused() -> None:
    assert refusal(flags=PlanOverrides(instances=1000), file_bytes={"m": 23 * MIB}) == (
        "model `m`: `instances` 1000 (command line) would take 161.1 GiB or more, at least 165 MiB each; "
        "there are 16.0 GiB (host memory)"
    )
    assert planned(flags=PlanOverrides(instances=90), file_bytes={"m": 23 * MIB}) == 90
    assert planned(flags=PlanOverrides(instances=3), file_bytes={"m": 4 * GIB}) == 3


def test_what_was_measured_of_a_worker_counts_less_what_workers_share() -> None:
    line = MemoryLine(base_bytes=300 * MIB, per_row_bytes=0)
    timing = Timing(Probe("onnxruntime", 1, 1, 1), 0.01)
    known = ModelProfile("m", "", "", 0, (EngineProfile("onnxruntime", "1", timings=(timing,), memory=line),))
    message = refusal(flags=PlanOverrides(instances=90), measured={("m", "1"): known})
    assert "at least 236 MiB each" in message


def test_preprocess_processes_are_counted_as_well() -> None:
    message = refusal(preprocess=TEXT, flags=PlanOverrides(preprocess_processes=2000))
    assert "`preprocess_processes` 2000 (command line)" in message


def test_one_worker_is_never_refused() -> None:
    assert planned(64 * MIB, file_bytes={"m": GIB}, flags=PlanOverrides(instances=1)) == 1


def test_many_cpus_with_little_memory_get_fewer_preprocess_processes() -> None:
    cpu = CpuBudget(20, tuple(range(20)), 20, None, None, 20, "test")
    machine = MachineFacts(cpu=cpu, memory_limit_bytes=64 * MIB, memory_source="host memory")
    model = ModelSettings(name="m", preprocess=TEXT)
    assert first_plan(machine, [model], None)[0].preprocess_processes == 1
    with pytest.raises(ConfigError, match="`preprocess_processes` 5"):
        first_plan(machine, [model], None, PlanOverrides(preprocess_processes=5))
