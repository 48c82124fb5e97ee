"""The CUDA side of the PyTorch engine without a GPU: `torch.cuda` is replaced by one that notes what is asked of it.

"Device" tensors are host tensors here, and a copy to the device is the very pinned buffer: a buffer that is used again
too early shows in the results.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from hybrid.engines import torch_cuda
from hybrid.engines.base import EngineFailure
from hybrid.engines.torch_cuda import CudaDevice
from hybrid.engines.torch_device import CpuDevice
from hybrid.engines.torch_engine import TorchEngine
from hybrid.engines.torch_model import TorchModel
from hybrid.messages import FailureKind, Signature, TensorSpec

MIB = 1 << 20


class FakeCuda:
    """`torch.cuda`: streams have names, events remember where they were recorded, memory is a number."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.streams = iter(("up", "compute", "down"))
        self.current = "default"
        self.emptied = 0
        self.pinned = 0
        fake = self

        class Event:
            def __init__(self, blocking: bool = False) -> None:
                self.blocking = blocking
                self.done = False

            def record(self, stream: Any) -> None:
                self.stream = stream.name
                fake.log.append(f"{stream.name} records")

            def query(self) -> bool:
                return self.done

            def synchronize(self) -> None:
                assert self.blocking, "a spinning wait would burn the front end's core"
                fake.log.append(f"wait for {self.stream}")

        self.Event = Event

    def Stream(self, device: Any) -> Any:
        name = next(self.streams)
        return SimpleNamespace(name=name, wait_event=lambda e: self.log.append(f"{name} after {e.stream}"))

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream.name
        yield
        self.current = before

    def CUDAGraph(self) -> Any:
        return SimpleNamespace(replay=lambda: self.log.append("replay"))

    def graph(self, graph: Any, pool: Any, stream: Any) -> Any:
        assert (pool, stream.name) == ("pool", "compute")
        self.log.append("capture")
        return nullcontext()

    def graph_pool_handle(self) -> str:
        return "pool"

    def set_device(self, device: Any) -> None:
        self.log.append(f"use {device}")

    def memory_stats(self, device: Any) -> dict[str, int]:
        names = ("allocated_bytes", "reserved_bytes", "inactive_split_bytes")
        return {f"{name}.all.current": size * MIB for name, size in zip(names, (100, 160, 30), strict=True)}

    def empty_cache(self) -> None:
        self.emptied += 1


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()

    def empty(size: int, dtype: torch.dtype, pin_memory: bool) -> torch.Tensor:
        assert pin_memory, "a copy from pageable memory waits for the device"
        fake.pinned += 1
        return torch.full((size,), 255, dtype=dtype)

    def device(name: str) -> torch.device:
        assert name == "cuda:0"
        return torch.device("cpu")

    replaced = SimpleNamespace(cuda=fake, device=device, empty=empty, uint8=torch.uint8, Tensor=torch.Tensor)
    monkeypatch.setattr(torch_cuda, "torch", replaced)
    monkeypatch.setattr(
        torch.Tensor, "record_stream", lambda tensor, stream: fake.log.append(f"kept for {stream.name}")
    )
    return fake


def engine(cuda: FakeCuda, call: Any = None, graphs: bool = False) -> TorchEngine:
    def double(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        assert cuda.current == "compute"
        return [tensors[0] * 2]

    specs = (TensorSpec("x", "FP32", (-1, -1)),), (TensorSpec("y", "FP32", (-1, -1)),)
    device = CudaDevice("cuda:0")
    cuda.log.clear()
    return TorchEngine(TorchModel(call or double, Signature(*specs)), device, graphs)


def x(value: float, rows: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.full((rows, 3), value, np.float32)}


def test_one_batch_goes_up_computes_and_comes_down_in_order(cuda: FakeCuda) -> None:
    batch = engine(cuda).begin(x(1), 2)
    assert cuda.log == [
        *("up records", "compute after up", "kept for compute"),
        *("compute records", "down after compute", "kept for down", "down records"),
    ]
    assert not batch.done()
    assert batch.wait()["y"].tolist() == [[2, 2, 2]] * 2
    assert cuda.log[-1] == "wait for down"


def test_two_in_flight_do_not_share_pinned_memory_and_no_more_is_taken(cuda: FakeCuda) -> None:
    running = engine(cuda)
    assert running.overlaps
    kept = []
    first = running.begin(x(0), 2)
    for value in range(1, 20):
        second = running.begin(x(value, rows=value % 3), value % 3)
        kept.append(first.wait()["y"])
        first = second
    for value, array in enumerate(kept):
        np.testing.assert_array_equal(array, np.full((value % 3 if value else 2, 3), 2 * value))
    lanes, buffers_per_lane = 2, 2
    assert lanes * buffers_per_lane <= cuda.pinned <= lanes * buffers_per_lane + 4  # some grew with their batch


def test_the_inputs_may_change_once_a_batch_has_begun(cuda: FakeCuda) -> None:
    inputs = x(1)
    batch = engine(cuda).begin(inputs, 2)
    inputs["x"][:] = 7
    assert batch.wait()["y"].tolist() == [[2, 2, 2]] * 2


def test_out_of_memory_empties_the_cache_once_and_the_retry_succeeds(cuda: FakeCuda) -> None:
    """GPU-04, GPU-05."""

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if not cuda.emptied:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return [tensors[0] + 1]

    running = engine(cuda, call)
    with pytest.raises(EngineFailure) as caught:
        running.run(x(1), 2)
    assert caught.value.kind is FailureKind.MEMORY
    assert caught.value.text.endswith(
        "20.00 MiB (allocated 100 MiB of 160 MiB reserved, 30 MiB of that in pieces between used ones)"
    )
    assert cuda.emptied == 1
    assert running.run(x(1), 2)["y"].tolist() == [[2, 2, 2]] * 2
    assert cuda.emptied == 1


def test_failed_batches_take_no_pinned_memory_with_them(cuda: FakeCuda) -> None:
    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if tensors[0].sum() < 0:
            raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        return [tensors[0] + 1]

    running = engine(cuda, call)
    for _ in range(10):
        with pytest.raises(EngineFailure):
            running.run(x(-1), 2)
    assert running.run(x(1), 2)["y"].tolist() == [[2, 2, 2]] * 2
    assert cuda.pinned == 2


def test_a_kernel_that_fails_later_is_noticed_by_who_waits(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(self: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    batch = engine(cuda).begin(x(1), 2)
    monkeypatch.setattr(cuda.Event, "synchronize", raises)
    with pytest.raises(SystemExit):
        batch.wait()


def test_a_shape_is_recorded_once_and_replayed(cuda: FakeCuda) -> None:
    calls = []

    def call(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        calls.append(tensors[0].shape[0])
        return [tensors[0] * 2]

    running = engine(cuda, call, graphs=True)
    for _ in range(3):
        running.run(x(1), 2)
        running.run(x(1, rows=4), 4)
    assert calls == [2] * 4 + [4] * 4  # three warm runs and the capture of each
    assert (cuda.log.count("capture"), cuda.log.count("replay")) == (2, 6)


def test_shapes_beyond_the_limit_run_without_a_recording(cuda: FakeCuda) -> None:
    running = engine(cuda, graphs=True)
    for rows in range(1, 40):
        np.testing.assert_array_equal(running.run(x(3, rows), rows)["y"], np.full((rows, 3), 6))
    assert cuda.log.count("capture") == 32


class ReplayingDevice(CpuDevice):
    """Replays by computing again, so that what the recording reads and writes is seen."""

    def record(self, call: Any, like: Any) -> Any:
        inputs = [tensor.clone() for tensor in like]
        outputs = call(inputs)

        def replay() -> None:
            for fixed, fresh in zip(outputs, call(inputs), strict=True):
                fixed.copy_(fresh)

        return SimpleNamespace(inputs=inputs, outputs=outputs, replay=replay)


def test_a_replay_reads_its_own_inputs_and_its_results_are_copied_out() -> None:
    specs = (TensorSpec("x", "FP32", (-1, 3)),), (TensorSpec("y", "FP32", (-1, 3)),)
    model = TorchModel(lambda tensors: [tensors[0] * 2], Signature(*specs))
    running = TorchEngine(model, ReplayingDevice(), graphs=True)
    kept = [running.run(x(value), 2)["y"] for value in range(4)]
    assert [array[0, 0] for array in kept] == [0, 2, 4, 6]


def test_the_allocators_figures_are_reported(cuda: FakeCuda) -> None:
    facts = engine(cuda).memory()
    assert (facts.allocated, facts.reserved, facts.fragmented) == (100 * MIB, 160 * MIB, 30 * MIB)
