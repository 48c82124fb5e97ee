"""Where PyTorch computes, as seen by the engine: how tensors get there and back, and what the allocator says.

Owns the interface of a device, the CPU as one whose transfers are immediate, and thread counts. Knows no model and no
numpy array.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Protocol

import torch

from hybrid.engines.base import EngineSettings, MemoryFacts
from hybrid.errors import StartupError

Tensors = list[torch.Tensor]
_DEVICE: Final = re.compile(r"(cpu|cuda)(?::(\d+))?")


class Fetch(Protocol):
    """Results on their way to host memory."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> Tensors:
        """Return the results as host tensors that nobody else will write to."""


class Recording(Protocol):
    """A graph of kernels for one set of shapes, with the tensors that it reads and writes each time."""

    inputs: Tensors
    outputs: Tensors

    def replay(self) -> None:
        """Compute `outputs` from what is in `inputs` now."""


class Device(Protocol):
    """What the engine needs of a device. Calls come from one thread, except `facts`."""

    name: str
    overlaps: bool  # whether a second batch may begin before the results of the first are fetched
    copies: bool  # whether `put` leaves the host tensors alone once it has returned

    def put(self, hosts: Sequence[torch.Tensor]) -> Tensors:
        """Bring host tensors over, for the batch that `get` ends."""

    def computing(self) -> AbstractContextManager[Any]:
        """In here kernels follow what was `put` before them."""

    def get(self, results: Sequence[torch.Tensor]) -> Fetch:
        """Start to bring results back."""

    def record(self, call: Callable[[Sequence[torch.Tensor]], Tensors], like: Sequence[torch.Tensor]) -> Recording:
        """Record the kernels of `call` for tensors of the shapes of `like`."""

    def facts(self) -> MemoryFacts:
        """What the allocator says; never raises, because the thread that reports life asks for it."""

    def shrink(self) -> None:
        """Give cached memory back to the device, after running out of it."""


class CpuDevice:
    """Host memory."""

    name = "cpu"
    overlaps = False
    copies = False

    def put(self, hosts: Sequence[torch.Tensor]) -> Tensors:
        """Return them as they are."""
        return list(hosts)

    def computing(self) -> AbstractContextManager[Any]:
        """Nothing to wait for."""
        return nullcontext()

    def get(self, results: Sequence[torch.Tensor]) -> "HostFetch":
        """They are there."""
        return HostFetch(list(results))

    def record(self, call: Callable[[Sequence[torch.Tensor]], Tensors], like: Sequence[torch.Tensor]) -> Recording:
        """Not on CPUs; `open_device` refuses the setting."""
        raise NotImplementedError("CUDA graphs need CUDA")

    def facts(self) -> MemoryFacts:
        """PyTorch keeps no books of host memory."""
        return MemoryFacts()

    def shrink(self) -> None:
        """The CPU allocator caches nothing."""


class HostFetch:
    """Results that are in host memory already."""

    def __init__(self, results: Tensors) -> None:
        self._results = results

    def done(self) -> bool:
        """Always."""
        return True

    def wait(self) -> Tensors:
        """Return them."""
        return self._results


def open_device(run: EngineSettings, cuda_graphs: bool = False, tf32: bool = False) -> Device:
    """Set the thread counts of this process and return the device of `run`.

    Raises:
        StartupError: no such device, or none that this PyTorch can use.
    """
    found = _DEVICE.fullmatch(run.device)
    if found is None or (found[1] == "cpu" and found[2] is not None):
        raise StartupError(f"torch: unknown device `{run.device}`; expected cpu, cuda or cuda:N")
    torch.set_num_threads(run.threads)
    if torch.get_num_interop_threads() != 1:
        torch.set_num_interop_threads(1)
    if found[1] == "cpu":
        if cuda_graphs:
            raise StartupError('torch: `torch.cuda_graphs` needs `workers.device = "cuda"`')
        return CpuDevice()
    if not torch.cuda.is_available():
        why = "is built without CUDA" if torch.version.cuda is None else "finds no CUDA device or driver"
        raise StartupError(f"torch: device `{run.device}` is not there; PyTorch {torch.__version__} {why}")
    index, count = int(found[2] or 0), torch.cuda.device_count()
    if index >= count:
        raise StartupError(f"torch: device `{run.device}` is not there; PyTorch sees {count}, counted from 0")
    # PyTorch rounds the inputs of convolutions to 10 bits by itself, so that results differ by host.
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    from hybrid.engines.torch_cuda import CudaDevice

    return CudaDevice(f"cuda:{index}")
