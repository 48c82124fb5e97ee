"""CUDA as a device of the PyTorch engine: streams, pinned buffers, graphs. A thin layer over `torch.cuda`.

Knows no model and no numpy array; decides nothing that could be decided without a GPU.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from hybrid.engines.base import MemoryFacts

Tensors = list[torch.Tensor]

_WARM_RUNS: Final = 3  # before a recording: libraries choose algorithms and allocate in their first runs


class CudaDevice:
    """One GPU with three streams, so that one batch computes while the next arrives and the last one leaves.

    Host memory must be pinned for a copy to run beside anything; each batch in flight has a lane of such buffers.
    """

    overlaps = True
    copies = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._device = torch.device(name)
        torch.cuda.set_device(self._device)
        self._up, self._compute, self._down = (torch.cuda.Stream(self._device) for _ in range(3))
        self._free: list[_Lane] = []
        self._open: _Lane | None = None  # of the batch that was put and not got yet; one that failed leaves it here
        self._pool = torch.cuda.graph_pool_handle()

    def put(self, hosts: Sequence[torch.Tensor]) -> Tensors:
        """Copy into pinned memory at once, and from there over beside what computes now."""
        lane = self._open or (self._free.pop() if self._free else _Lane())
        self._open = lane
        moved = []
        with torch.cuda.stream(self._up):
            for index, host in enumerate(hosts):
                pinned = lane.room("in", index, host)
                pinned.copy_(host)
                moved.append(pinned.to(self._device, non_blocking=True))
            arrived = torch.cuda.Event()
            arrived.record(self._up)
        self._compute.wait_event(arrived)
        for tensor in moved:
            tensor.record_stream(self._compute)  # its memory must not be handed out while that stream reads it
        return moved

    def computing(self) -> AbstractContextManager[Any]:
        """The compute stream."""
        context: AbstractContextManager[Any] = torch.cuda.stream(self._compute)
        return context

    def get(self, results: Sequence[torch.Tensor]) -> "CudaFetch":
        """Copy into pinned memory on a stream of its own, after the kernels so far."""
        computed = torch.cuda.Event()
        computed.record(self._compute)
        self._down.wait_event(computed)
        lane, self._open = self._open or _Lane(), None
        pinned = []
        with torch.cuda.stream(self._down):
            for index, result in enumerate(results):
                result.record_stream(self._down)
                pinned.append(lane.room("out", index, result).copy_(result, non_blocking=True))
            landed = torch.cuda.Event(blocking=True)  # sleeps where the default would spin on the front end's core
            landed.record(self._down)
        return CudaFetch(landed, pinned, lambda: self._free.append(lane))

    def record(
        self, call: Callable[[Sequence[torch.Tensor]], Tensors], like: Sequence[torch.Tensor]
    ) -> "CudaRecording":
        """Warm up, then capture on the compute stream. All recordings share one pool: they never run side by side."""
        inputs = [tensor.clone() for tensor in like]
        with self.computing():
            for _ in range(_WARM_RUNS):
                call(inputs)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._compute):
            outputs = call(inputs)
        return CudaRecording(graph, inputs, outputs)

    def facts(self) -> MemoryFacts:
        """The caching allocator's books, which are kept on the host."""
        stats = torch.cuda.memory_stats(self._device)
        return MemoryFacts(
            allocated=stats.get("allocated_bytes.all.current", 0),
            reserved=stats.get("reserved_bytes.all.current", 0),
            fragmented=stats.get("inactive_split_bytes.all.current", 0),
        )

    def shrink(self) -> None:
        """Free the blocks that hold nothing, so that a smaller batch finds room in one piece."""
        torch.cuda.empty_cache()


class CudaFetch:
    """Results in flight to a lane's pinned buffers."""

    def __init__(self, landed: Any, pinned: Tensors, release: Callable[[], None]) -> None:
        self._landed, self._pinned, self._release = landed, pinned, release

    def done(self) -> bool:
        """Ask the driver, without waiting."""
        return bool(self._landed.query())

    def wait(self) -> Tensors:
        """Copy them out of the lane, which the next batch may then use."""
        self._landed.synchronize()
        results = [tensor.clone() for tensor in self._pinned]
        self._release()
        return results


class CudaRecording:
    """A captured CUDA graph."""

    def __init__(self, graph: Any, inputs: Tensors, outputs: Tensors) -> None:
        self._graph, self.inputs, self.outputs = graph, inputs, outputs

    def replay(self) -> None:
        """Launch it on the current stream."""
        self._graph.replay()


class _Lane:
    """Pinned buffers of one batch in flight, each as large as the largest tensor that it has held."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, int], torch.Tensor] = {}

    def room(self, role: str, index: int, like: torch.Tensor) -> torch.Tensor:
        """Return pinned memory of the shape and type of `like`."""
        size = like.numel() * like.element_size()
        buffer = self._buffers.get((role, index))
        if buffer is None or buffer.numel() < size:
            buffer = self._buffers[role, index] = torch.empty(max(size, 1), dtype=torch.uint8, pin_memory=True)
        return buffer[:size].view(like.dtype).view(like.shape)
