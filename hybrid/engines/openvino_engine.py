"""OpenVINO behind the engine interface; the only file that imports `openvino`.

Owns the properties that a model is compiled with, the translation of OpenVINO's types to protocol datatypes and of its
exceptions to `EngineFailure`. It must never know about batches, arenas or requests.

What OpenVINO does not tell, nobody can: an index out of a table's range gives a row of zeros, and where it runs out of
memory in the middle of a graph the process ends.
"""

import logging
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hybrid.config import ModelSettings
from hybrid.engines.base import Arrays, EngineFailure, EngineSettings, MemoryFacts
from hybrid.engines.feed import check_feed, fixed_rows, mapped, one_line
from hybrid.errors import StartupError
from hybrid.messages import FailureKind, Signature, TensorSpec

# Importing OpenVINO reports the import to its makers over the network and writes into the home directory. Without this
# package it uses a stub of its own.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
import openvino as ov  # noqa: E402

log = logging.getLogger("hybrid.engines.openvino")

#: OpenVINO's element type -> protocol datatype. Text is left out because it travels as arrays of fixed width, which
#: lose the zero bytes at the end of an element; 8 bit floats and what has less than 8 bits have no protocol datatype.
DATATYPES: Final = {
    "boolean": "BOOL",
    "u8": "UINT8",
    "u16": "UINT16",
    "u32": "UINT32",
    "u64": "UINT64",
    "i8": "INT8",
    "i16": "INT16",
    "i32": "INT32",
    "i64": "INT64",
    "f16": "FP16",
    "bf16": "BF16",
    "f32": "FP32",
    "f64": "FP64",
}

#: Every exception that OpenVINO's binding can let out, by class name -> whose fault it is. Nearly all of its errors are
#: a RuntimeError, whose text decides; the others are what C++ standard exceptions become.
FAILURES: Final = {
    "RuntimeError": FailureKind.ENGINE,
    "ValueError": FailureKind.INPUT,
    "TypeError": FailureKind.INPUT,
    "IndexError": FailureKind.INPUT,
    "KeyError": FailureKind.INPUT,
    "OverflowError": FailureKind.MEMORY,
    "MemoryError": FailureKind.MEMORY,
    "UserInputError": FailureKind.INPUT,
    "OVTypeError": FailureKind.INPUT,
    "GeneralFailure": FailureKind.ENGINE,
    "InitializationFailure": FailureKind.ENGINE,
    "NotImplementedFailure": FailureKind.ENGINE,
    "OpConversionFailure": FailureKind.ENGINE,
    "OpValidationFailure": FailureKind.ENGINE,
}
_VAGUE: Final = ("RuntimeError", "GeneralFailure")
#: How a failed reading of the CPU topology shows: numbers that cannot be parsed, or its source files.
_TOPOLOGY: Final = re.compile(r"\bsto(i|l|ul)\b|lin_system_conf|cpu_map|sysfs|/sys/devices", re.IGNORECASE)
_DEVICE: Final = re.compile(r"(cpu|gpu|auto)(?:[.:](\d+))?")


class OpenVinoEngine:
    """One compiled model with one request, which is used again for every batch."""

    def __init__(self, compiled: ov.CompiledModel, signature: Signature, memory: "_Memory") -> None:
        self._request: ov.InferRequest | None = compiled.create_infer_request()
        self._signature = signature
        self._max_rows = fixed_rows(signature.inputs)
        self._memory = memory

    @property
    def signature(self) -> Signature:
        """What the compiled model reports, translated. `platform` ends in the precision that it computes in."""
        return self._signature

    @property
    def max_rows(self) -> int | None:
        """The smallest fixed first dimension of an input."""
        return self._max_rows

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Run the request on views of `inputs`; what comes back are copies, which the next run leaves alone.

        Raises:
            EngineFailure: INPUT for anything but the declared inputs; else see `FAILURES`.
        """
        if self._request is None:
            raise EngineFailure(FailureKind.ENGINE, "the engine is closed")
        specs = self._signature.inputs
        check_feed(specs, inputs)
        try:
            feed = {index: inputs[spec.name] for index, spec in enumerate(specs)}
            values: Any = self._request.infer(feed, share_inputs=True, share_outputs=False)
            return {
                spec.name: values[index].view(np.uint16) if spec.datatype == "BF16" else values[index]
                for index, spec in enumerate(self._signature.outputs)
            }
        except Exception as error:
            raise failure(error) from error

    def memory(self) -> MemoryFacts:
        """What a GPU's driver says that it has allocated; of the CPU, OpenVINO tells nothing."""
        return self._memory.read()

    def close(self) -> None:
        """Let go of the request and with it of the model."""
        self._request = None


class _Memory:
    """Asks for the memory statistics of one device."""

    def __init__(self, core: Any, device: str) -> None:
        self._core, self._device = core, device

    def read(self) -> MemoryFacts:
        """Return the sum over all kinds of memory. Never raises: the thread that reports life asks for it."""
        if not self._device.startswith("GPU"):
            return MemoryFacts()
        try:
            kinds: dict[str, int] = self._core.get_property(self._device, "GPU_MEMORY_STATISTICS")
        except RuntimeError:
            return MemoryFacts()
        return MemoryFacts(allocated=sum(kinds.values()))


def load(settings: ModelSettings, run: EngineSettings) -> OpenVinoEngine:
    """Load and compile `settings.file` for one instance.

    Raises:
        StartupError: the file is missing or broken, uses types that we cannot carry, the device is not there, or it
            does not compute in the precision that the settings ask for.
    """
    path = settings.file
    if not os.path.isfile(path):
        raise StartupError(f"model {settings.name}: {path}: no such file")
    try:
        core = ov.Core()
        device = _device(core, run.device)
        model = core.read_model(path)
        compiled = core.compile_model(model, device, properties(device, settings, run))
        executes = ", ".join(compiled.get_property("EXECUTION_DEVICES"))
        precision = _precision(compiled, device, settings)
    except StartupError:
        raise
    except Exception as error:
        raise StartupError(_refusal(settings, error)) from error
    if precision != settings.openvino.precision:
        raise StartupError(
            f"model {settings.name}: `openvino.precision` is {settings.openvino.precision}, but {executes} computes in "
            f"{precision} instead"
        )
    log.info("%s: OpenVINO %s on %s in %s", settings.name, ov.__version__, executes, precision)
    signature = Signature(
        inputs=_specs(settings.name, "input", model.inputs, compiled.inputs),
        outputs=_specs(settings.name, "output", model.outputs, compiled.outputs),
        platform=f"openvino_{precision}",
    )
    if not signature.inputs:
        raise StartupError(f"model {settings.name}: {path} has no inputs, so there is nothing to infer from")
    return OpenVinoEngine(compiled, signature, _Memory(core, device))


def properties(device: str, settings: ModelSettings, run: EngineSettings) -> dict[str, Any]:
    """What a model is compiled with on `device`, OpenVINO's own name of it."""
    common = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": settings.openvino.precision}
    cpu = common | {
        "INFERENCE_NUM_THREADS": run.threads,
        "NUM_STREAMS": "1",
        # The worker process is pinned already. OpenVINO pins by its own reading of the machine, and several processes
        # that all choose the first cores run many times slower.
        "ENABLE_CPU_PINNING": False,
        # OpenVINO by itself keeps 5,000 compiled kernels per kind of layer, one per input shape. A small conv net with
        # random H x W of 16..95 grew from 119 to 950 MB in 20,000 runs with those, and settled at 187 MB with 256, at
        # the same speed (bench/results/memory_openvino_shapes.json). With 0 every change of shape compiles again.
        "CPU_RUNTIME_CACHE_CAPACITY": str(settings.openvino.cache_entries),
    }
    if device == "CPU":
        return cpu
    return common | ({"DEVICE_PROPERTIES": {"CPU": cpu}} if device == "AUTO" else {})


def failure(error: BaseException) -> EngineFailure:
    """Map whatever a run raised."""
    return mapped(error, FAILURES, _VAGUE)


def _device(core: ov.Core, asked: str) -> str:
    """OpenVINO's name for a device of ours. It is looked up, since a missing one fails late and in riddles."""
    found = _DEVICE.fullmatch(asked)
    if found is None:
        raise StartupError(f"openvino: unknown device `{asked}`; expected cpu, gpu, gpu.N or auto")
    name = found[1].upper()
    if name == "AUTO":
        return name
    there = core.available_devices
    wanted = name if found[2] is None else f"{name}.{found[2]}"
    # One GPU is called GPU, several are GPU.0, GPU.1 and so on; each also answers to its number.
    same = (wanted, wanted.removesuffix(".0"), f"{wanted}.0")
    if not any(device in same for device in there):
        raise StartupError(f"openvino: device `{asked}` is not there; OpenVINO finds {', '.join(there) or 'none'}")
    return wanted


def _precision(compiled: ov.CompiledModel, device: str, settings: ModelSettings) -> str:
    """What the device really computes in. AUTO does not say; it passes on what it was given."""
    if device == "AUTO":
        return settings.openvino.precision
    return str(compiled.get_property("INFERENCE_PRECISION_HINT").to_string())


def _refusal(settings: ModelSettings, error: BaseException) -> str:
    text = one_line(error)
    if _TOPOLOGY.search(text):
        cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        return (
            f"model {settings.name}: OpenVINO cannot read the CPU topology of this machine or container (allowed CPUs "
            f'{cpus}): {text}; give the container a CPU set without gaps, or use `engine = "onnxruntime"`'
        )
    return f"model {settings.name}: {settings.file} cannot be loaded: {text}"


def _specs(model: str, role: str, read: list[Any], compiled: list[Any]) -> tuple[TensorSpec, ...]:
    """Names as in the file, since compiling may merge tensors and with them their names; the rest as compiled."""
    specs: list[TensorSpec] = []
    for source, port in zip(read, compiled, strict=True):
        name = min(source.names)  # never empty: compiling has named what had no name after its node
        element = port.element_type.to_string()
        datatype = DATATYPES.get(element)
        if datatype is None:
            raise StartupError(f"model {model}: {role} `{name}` is of type {element}, which this engine cannot serve")
        if port.partial_shape.rank.is_dynamic:
            raise StartupError(f"model {model}: {role} `{name}` has no fixed number of dimensions")
        shape = tuple(-1 if d.is_dynamic else d.get_length() for d in port.partial_shape)
        specs.append(TensorSpec(name, datatype, shape))
    return tuple(specs)
