"""ONNX Runtime behind the engine interface; the only file that imports `onnxruntime`.

Owns session options, the translation of ORT's types to protocol datatypes and of its exceptions to `EngineFailure`.
It must never know about batches, arenas or requests.
"""

import functools
import os
import re
from collections.abc import Mapping
from typing import Any, Final

# Its wheels for Linux report usage over the network and keep a device id below the home directory unless this is set
# before the library is loaded. A server does neither unasked: the one who runs it may set it to 0.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import numpy as np
import onnxruntime as ort

from hybrid.config import ModelSettings
from hybrid.engines.base import Arrays, EngineFailure, EngineSettings, MemoryFacts
from hybrid.engines.onnx_file import rows_are_alike
from hybrid.errors import StartupError
from hybrid.messages import DTYPES, FailureKind, Signature, TensorSpec

#: ORT's type string -> protocol datatype. bfloat16, the 8 and 4 bit floats and complex numbers have no numpy type that
#: ORT's Python binding takes, so models with such inputs or outputs are refused when they load.
DATATYPES: Final = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

#: Every exception that ORT or its Python wrapper raises, by class name -> whose fault it is. By name, because older
#: releases lack some of the classes. `Fail` and `RuntimeException` are catch-alls: the text decides first.
FAILURES: Final = {
    "InvalidArgument": FailureKind.INPUT,
    "ValueError": FailureKind.INPUT,  # the wrapper: inputs missing from the feed
    "MemoryError": FailureKind.MEMORY,
    "Fail": FailureKind.ENGINE,
    "RuntimeException": FailureKind.ENGINE,
    "EPFail": FailureKind.ENGINE,
    "EngineError": FailureKind.ENGINE,
    "DeviceReset": FailureKind.ENGINE,
    "NotImplemented": FailureKind.ENGINE,
    "NotFound": FailureKind.ENGINE,
    "NoModel": FailureKind.ENGINE,
    "NoSuchFile": FailureKind.ENGINE,
    "InvalidProtobuf": FailureKind.ENGINE,
    "InvalidGraph": FailureKind.ENGINE,
    "ModelLoaded": FailureKind.ENGINE,
    "ModelLoadCanceled": FailureKind.ENGINE,
    "ModelRequiresCompilation": FailureKind.ENGINE,
    "RuntimeError": FailureKind.ENGINE,
}
_CATCH_ALL: Final = ("Fail", "RuntimeException", "EPFail", "RuntimeError")
_MEMORY: Final = re.compile(
    r"bad_alloc|bad allocation|BFCArena|out of memory|failed to allocate|available memory of|could not allocate"
    r"|overflow|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
_SHAPE: Final = re.compile(r"\b(shapes?|dimensions?|broadcast|bounds|ind(ex|ices)|rank|axis)\b", re.IGNORECASE)
_PROVIDERS: Final = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}
_FATAL_ONLY: Final = 4
_AS_REQUESTED: Final = 1  # kSameAsRequested
_TEXT_LIMIT: Final = 500


class OnnxEngine:
    """One ORT session with exactly the threads it was given."""

    def __init__(self, session: ort.InferenceSession, signature: Signature) -> None:
        self._session: ort.InferenceSession | None = session
        self._signature = signature
        self._bytes_in = tuple(spec.name for spec in signature.inputs if spec.datatype == "BYTES")
        self._outputs = tuple((spec.name, spec.datatype == "BYTES") for spec in signature.outputs)
        fixed = [spec.shape[0] for spec in signature.inputs if spec.shape and spec.shape[0] >= 0]
        self._max_rows = min(fixed) if fixed else None

    @property
    def signature(self) -> Signature:
        """What the session reports, translated."""
        return self._signature

    @property
    def max_rows(self) -> int | None:
        """The smallest fixed first dimension of an input."""
        return self._max_rows

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Run the session. ONNX strings are text, so BYTES elements must be UTF-8.

        Raises:
            EngineFailure: see `FAILURES`.
        """
        if self._session is None:
            raise EngineFailure(FailureKind.ENGINE, "the engine is closed")
        feed = self._with_text(inputs) if self._bytes_in else inputs
        try:
            values: Any = self._session.run(None, feed)
        except Exception as error:
            raise failure(error) from error
        return {
            name: _encoded(value) if is_bytes else value
            for (name, is_bytes), value in zip(self._outputs, values, strict=True)
        }

    def memory(self) -> MemoryFacts:
        """Nothing: ORT's arena offers no figures through Python, only the process's own memory tells."""
        return MemoryFacts()

    def close(self) -> None:
        """Let go of the session; its threads go with it, and its memory unless sessions share it (`_set_up_arena`)."""
        self._session = None

    def _with_text(self, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
        """ORT calls str() on other objects, which would turn b'x' into the text "b'x'" without a word."""
        return {name: _decoded(name, array) if name in self._bytes_in else array for name, array in inputs.items()}


def load(settings: ModelSettings, run: EngineSettings) -> OnnxEngine:
    """Load `settings.file` for one instance.

    Raises:
        StartupError: the file is missing, unreadable or broken, uses types we cannot carry, or the device is not there.
    """
    providers = _providers(run.device)
    path = settings.file
    if not os.path.isfile(path):
        raise StartupError(f"model {settings.name}: {path}: no such file")
    ort.set_default_logger_severity(_FATAL_ONLY)
    options = _options(run)
    try:
        if run.device == "cpu" and rows_are_alike(path):
            # Once the largest batch has run, every other one finds room. Where lengths vary, each new one asks for more
            # than there was: MiniLM with 300 random shapes of 1-4 x 1-256 tokens ends at 368 MB so, else at 277 MB.
            _set_up_arena()
            options.add_session_config_entry("session.use_env_allocators", "1")
        session = ort.InferenceSession(path, options, providers=providers, enable_fallback=0)
    except Exception as error:
        raise StartupError(f"model {settings.name}: {path} cannot be loaded: {_text(error)}") from error
    signature = Signature(
        inputs=tuple(_spec(settings.name, "input", node) for node in session.get_inputs()),
        outputs=tuple(_spec(settings.name, "output", node) for node in session.get_outputs()),
        platform="onnxruntime_onnx",
    )
    if not signature.inputs:
        raise StartupError(f"model {settings.name}: {path} has no inputs, so there is nothing to infer from")
    return OnnxEngine(session, signature)


def failure(error: BaseException) -> EngineFailure:
    """Map whatever `session.run` raised."""
    name = type(error).__name__
    text = _text(error)
    kind = FAILURES.get(name, FailureKind.ENGINE)
    if name in _CATCH_ALL:
        if _MEMORY.search(text):
            kind = FailureKind.MEMORY
        elif _SHAPE.search(text):
            kind = FailureKind.INPUT
    return EngineFailure(kind, f"{name}: {text}")


@functools.cache
def _set_up_arena() -> None:
    """Set up the arena that sessions of this process may share: one that grows by what is asked for.

    A session of its own has no such choice, its arena grows by powers of two. What the largest batch leaves of a block
    smaller batches touch later, so mixed sizes take up to a quarter more than the largest one, by jumps: near a memory
    limit no batch could be planned.
    """
    info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(info, ort.OrtArenaCfg({"arena_extend_strategy": _AS_REQUESTED}))


def _options(run: EngineSettings) -> ort.SessionOptions:
    options = ort.SessionOptions()
    # An explicit count also keeps ORT from pinning its own threads, which fails with error lines in a cpuset with gaps;
    # the worker process is already pinned and its threads inherit that.
    options.intra_op_num_threads = run.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    spinning = "1" if run.spinning else "0"
    options.add_session_config_entry("session.intra_op.allow_spinning", spinning)
    options.add_session_config_entry("session.inter_op.allow_spinning", spinning)
    # What ORT logs on a failed run is in the exception too; on stderr it would be a line per poisoned batch.
    options.log_severity_level = _FATAL_ONLY
    # A memory pattern is planned and kept for each new input shape, and its one big block splits the arena badly when
    # shapes vary. MiniLM with 600 random shapes of 1-4 x 1-256 tokens, one thread, ORT 1.32: RSS settles at 306 MB
    # with both on, at 333 MB with extension by the requested size, at 291 MB with the arena on and patterns off, and
    # had not settled with the arena off. 1800 runs of 1 x 1-512: 294 MB with patterns, 281 MB without. A run at a
    # fixed shape takes the same time in all of them.
    options.enable_cpu_mem_arena = True
    options.enable_mem_pattern = False
    return options


def _providers(device: str) -> list[str | tuple[str, dict[str, str]]]:
    """ORT takes an unknown provider with a warning and runs on the CPU instead, so it is checked here."""
    kind, _, index = device.partition(":")
    name = _PROVIDERS.get(kind)
    if name is None or (index and not index.isdecimal()):
        raise StartupError(f"onnxruntime: unknown device `{device}`; expected cpu, cuda or cuda:N")
    if name not in ort.get_available_providers():
        raise StartupError(
            f"onnxruntime: device `{device}` needs {name}, which the installed onnxruntime {ort.__version__} lacks; "
            f"it has {', '.join(ort.get_available_providers())}"
        )
    return [(name, {"device_id": index or "0"})] if kind == "cuda" else [name]


def _spec(model: str, role: str, node: Any) -> TensorSpec:
    datatype = DATATYPES.get(node.type)
    if datatype is None:
        raise StartupError(f"model {model}: {role} `{node.name}` is a {node.type}, which cannot be served")
    # A fixed dimension is an int; a symbolic one a string or None. An output of unknown rank looks like a scalar here.
    return TensorSpec(node.name, datatype, tuple(d if isinstance(d, int) and d >= 0 else -1 for d in node.shape))


def _decoded(name: str, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(array.shape, DTYPES["BYTES"])
    for index, value in enumerate(array.flat):
        try:
            out.flat[index] = str(value, "utf-8")
        except UnicodeDecodeError as error:
            text = f"input `{name}`: element {index} is not UTF-8 (byte {error.start}), and ONNX strings must be"
            raise EngineFailure(FailureKind.INPUT, text) from error
    return out


def _encoded(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty(array.shape, DTYPES["BYTES"])
    for index, value in enumerate(array.flat):
        out.flat[index] = value.encode()
    return out


def _text(error: BaseException) -> str:
    """The message on one line, without ORT's own prefix."""
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", str(error))
    text = " ".join(text.split()) or type(error).__name__
    return text if len(text) <= _TEXT_LIMIT else text[:_TEXT_LIMIT] + "..."
