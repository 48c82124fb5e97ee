"""How much memory a question may count with: that of the device that the model's settings mean."""

import pytest

from hybrid.config import ModelSettings, WorkerSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.questions import own_memory

GIB = 1 << 30


def machine(*gpus: GpuFacts) -> MachineFacts:
    return MachineFacts(CpuBudget(2, (0, 1), 2, None, None, 2, "all 2"), 16 * GIB, "host memory", gpus=gpus)


@pytest.mark.parametrize(
    ("device", "gib"),
    [("cuda", 80), ("cuda:1", 24), ("cuda:2", None), ("gpu", 4), ("gpu.0", 4), ("auto", 4), ("gpu.1", None)],
)
def test_memory_is_that_of_the_gpu_that_the_device_means(device: str, gib: int | None) -> None:
    gpus = (
        GpuFacts(0, "C", 0, kind="amd"),
        GpuFacts(0, "D", 4 * GIB, kind="intel"),
        GpuFacts(0, "A", 80 * GIB),
        GpuFacts(1, "B", 24 * GIB),
        GpuFacts(2, "U", 0),
    )
    model = ModelSettings(name="g", file="g.onnx", workers=WorkerSettings(device=device))
    found = own_memory(model, machine(*gpus))
    assert found == gib * GIB if gib else found > 1 << 50


def test_an_integrated_gpu_has_no_more_memory_than_the_process_may_use() -> None:
    gpus = (GpuFacts(0, "D", 500 * GIB, kind="intel", integrated=True),)
    model = ModelSettings(name="g", file="g.onnx", workers=WorkerSettings(device="gpu"))
    here = machine(*gpus)
    assert own_memory(model, here) == here.memory_limit_bytes
