"""PyTorch behind the engine interface. `torch` is imported here, in `torch_model` and in `torch_device` only.

Owns a batch's way through the device, the translation between numpy and torch, and the mapping of torch's exceptions.
It must never know about batches of several requests, arenas or sockets.
"""

import logging
import os
import re
import traceback
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from hybrid.config import ModelSettings
from hybrid.engines.base import Arrays, EngineFailure, EngineSettings, MemoryFacts
from hybrid.engines.feed import check_feed, fixed_rows, mapped, one_line
from hybrid.engines.torch_device import Device, Fetch, Recording, Tensors, open_device
from hybrid.engines.torch_model import DATATYPES, TorchModel, load_program, load_script
from hybrid.errors import StartupError
from hybrid.messages import FailureKind, Signature

log = logging.getLogger("hybrid.engines.torch")

#: Every exception that torch can let out of a run, by class name -> whose fault it is. Most are a RuntimeError, also
#: those of TorchScript, so the text decides.
FAILURES: Final = {
    "OutOfMemoryError": FailureKind.MEMORY,
    "MemoryError": FailureKind.MEMORY,
    "RuntimeError": FailureKind.ENGINE,
    "Error": FailureKind.ENGINE,  # torch.jit.Error: an exception that the script itself raises
    "FatalError": FailureKind.ENGINE,
    "AcceleratorError": FailureKind.ENGINE,
    "AssertionError": FailureKind.INPUT,  # the guards of an exported program: a shape outside of what it was made for
    "IndexError": FailureKind.INPUT,
    "TypeError": FailureKind.INPUT,
    "ValueError": FailureKind.INPUT,
    "_LinAlgError": FailureKind.INPUT,
    "LinAlgError": FailureKind.INPUT,
    "DistError": FailureKind.ENGINE,
    "DistBackendError": FailureKind.ENGINE,
    "DistNetworkError": FailureKind.ENGINE,
    "DistStoreError": FailureKind.ENGINE,
    "QueueEmptyError": FailureKind.ENGINE,
    "NotImplementedError": FailureKind.ENGINE,
}
_VAGUE: Final = ("RuntimeError", "Error", "AcceleratorError")
#: After these the process's CUDA context is gone: every later call fails too.
_BROKEN: Final = re.compile(
    r"device-side assert|illegal memory access|illegal instruction|misaligned address|launch failure|launch timed out"
    r"|uncorrectable ECC|cudaErrorDeviceUnavailable|device is lost",
    re.IGNORECASE,
)
_MAX_RECORDINGS: Final = 32  # sets of shapes; each holds memory for its activations
#: oneDNN's and PyTorch's own cache of compiled CPU kernels, both read when the first of them is made.
_CACHES: Final = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")


class TorchEngine:
    """One model on one device."""

    def __init__(self, model: TorchModel, device: Device, graphs: bool = False) -> None:
        self._model: TorchModel | None = model
        self._device = device
        self._signature = model.signature
        self._max_rows = fixed_rows(model.signature.inputs)
        self._graphs = graphs
        self._recordings: dict[tuple[Any, ...], Recording] = {}

    @property
    def signature(self) -> Signature:
        """As declared, or as the exported program says."""
        return self._signature

    @property
    def max_rows(self) -> int | None:
        """The smallest fixed first dimension of an input."""
        return self._max_rows

    @property
    def overlaps(self) -> bool:
        """Whether a second batch may begin before the first has ended."""
        return self._device.overlaps

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Run one batch to its end.

        Raises:
            EngineFailure: INPUT for anything but the declared inputs; OUTPUT when results are not as declared; MEMORY
                with the allocator's figures, after the cache was emptied; else see `FAILURES`.
            SystemExit: the device is lost to this process.
        """
        return self.begin(inputs, rows).wait()

    def begin(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> "TorchBatch":
        """Start one batch. On CUDA this returns while it is still computing; `inputs` are copied by then.

        Raises:
            EngineFailure, SystemExit: as `run`.
        """
        if self._model is None:
            raise EngineFailure(FailureKind.ENGINE, "the engine is closed")
        check_feed(self._signature.inputs, inputs)
        moved: Tensors = []
        try:
            with torch.inference_mode():
                copy = not self._device.copies
                moved = self._device.put([_host(inputs[s.name], s.datatype, copy) for s in self._signature.inputs])
                with self._device.computing():
                    return TorchBatch(self, self._device.get(self._compute(moved)))
        except EngineFailure:
            raise
        except Exception as error:
            failed = self.failure(error)
            if failed.kind is FailureKind.MEMORY:
                # What the failed batch still holds would keep its memory from being given back.
                moved = []
                traceback.clear_frames(error.__traceback__)
                self._device.shrink()
            raise failed from error

    def memory(self) -> MemoryFacts:
        """What the device's allocator says."""
        return self._device.facts()

    def close(self) -> None:
        """Let go of the model and its recordings."""
        self._model = None
        self._recordings.clear()

    def failure(self, error: Exception) -> EngineFailure:
        """Map what a run raised.

        Raises:
            SystemExit: the device is lost to this process; a new one starts clean.
        """
        text = _cause(error)
        if _BROKEN.search(text):
            log.error("%s is lost: %s", self._device.name, text)
            raise SystemExit(1) from error
        failed = mapped(error, FAILURES, _VAGUE, text)
        if failed.kind is FailureKind.MEMORY:
            failed = EngineFailure(failed.kind, f"{failed.text}{_figures(self._device.facts())}")
        return failed

    def _compute(self, tensors: Tensors) -> Tensors:
        assert self._model is not None
        if not self._graphs:
            return self._model.call(tensors)
        key = tuple((tensor.dtype, tuple(tensor.shape)) for tensor in tensors)
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._recordings) >= _MAX_RECORDINGS:
                return self._model.call(tensors)
            recording = self._recordings[key] = self._device.record(self._model.call, tensors)
        for fixed, tensor in zip(recording.inputs, tensors, strict=True):
            fixed.copy_(tensor)
        recording.replay()
        return [result.clone() for result in recording.outputs]


class TorchBatch:
    """A batch that has begun."""

    def __init__(self, engine: TorchEngine, fetch: Fetch) -> None:
        self._engine, self._fetch = engine, fetch

    def done(self) -> bool:
        """Whether `wait` would return at once."""
        return self._fetch.done()

    def wait(self) -> Arrays:
        """Return the results, which are nobody else's.

        Raises:
            EngineFailure, SystemExit: as `TorchEngine.run`; a kernel that fails is noticed here.
        """
        try:
            results = self._fetch.wait()
        except Exception as error:
            raise self._engine.failure(error) from error
        specs = self._engine.signature.outputs
        return {spec.name: _array(spec.name, spec.datatype, t) for spec, t in zip(specs, results, strict=True)}


def load(settings: ModelSettings, run: EngineSettings) -> TorchEngine:
    """Load `settings.file` for one instance.

    Raises:
        StartupError: the file is missing, broken or not to be loaded without unpickling, its inputs are not declared,
            or the device is not there.
    """
    if not os.path.isfile(settings.file):
        raise StartupError(f"model {settings.name}: {settings.file}: no such file")
    for name in _CACHES:
        # PyTorch's defaults are 1024 each. A small conv net with 2..8 rows and random H x W of 16..63 settled at 409 MB
        # with those and at 304 MB with 256, at the same speed (bench/results/memory_torch_shapes.json); a net of 40
        # layers still keeps all of 8 batch sizes then. What the operator has set stays.
        os.environ.setdefault(name, str(settings.torch.cache_entries))
    program = settings.file.lower().endswith(".pt2")
    if settings.torch.compile and not program:
        text = "`torch.compile` does nothing for TorchScript; export the model to a .pt2 file"
        raise StartupError(f"model {settings.name}: {text}")
    device = open_device(run, settings.torch.cuda_graphs, settings.torch.tf32)
    model = (load_program if program else load_script)(settings, device.name)
    log.info("%s: PyTorch %s on %s", settings.name, torch.__version__, device.name)
    return TorchEngine(model, device, settings.torch.cuda_graphs)


def _host(array: np.ndarray[Any, Any], datatype: str, copy: bool) -> torch.Tensor:
    """A host tensor; where the model would compute on it as it is, a copy, since models may write into their inputs."""
    ours = array.copy() if copy or not (array.flags.writeable and array.flags.c_contiguous) else array
    tensor = torch.from_numpy(ours)
    return tensor.view(torch.bfloat16) if datatype == "BF16" else tensor


def _array(name: str, datatype: str, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    got = DATATYPES.get(tensor.dtype)
    if got != datatype:
        text = f"output `{name}` is {got or tensor.dtype}, but declared {datatype}"
        raise EngineFailure(FailureKind.OUTPUT, text)
    array: np.ndarray[Any, Any] = (tensor.view(torch.uint16) if datatype == "BF16" else tensor).numpy()
    return array


def _cause(error: BaseException) -> str:
    """TorchScript shows its source first and says what is wrong with it in the last line."""
    text = str(error).strip()
    return text.splitlines()[-1] if "TorchScript interpreter" in text else one_line(error)


def _figures(facts: MemoryFacts) -> str:
    if facts.allocated is None or facts.reserved is None:
        return ""
    mib = [f"{count / 2**20:.0f} MiB" for count in (facts.allocated, facts.reserved, facts.fragmented or 0)]
    return f" (allocated {mib[0]} of {mib[1]} reserved, {mib[2]} of that in pieces between used ones)"
