"""The frozen values that owners hand to each other: tensors, model signatures, requests and answers.

Arrays: a tensor's `array` has the numpy type of its datatype. BYTES tensors are object arrays of `bytes`; BF16 has no
numpy type and travels as its uint16 bit pattern. The first dimension of every tensor of a batching model is the row.
"""

from enum import Enum
from typing import Any, Final

import numpy as np
from msgspec import Struct

#: Open Inference Protocol datatype -> numpy type. BYTES is an object array of `bytes`; BF16 is carried as its bits.
DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BF16": np.dtype(np.uint16),
    "BYTES": np.dtype(np.object_),
}


class TensorSpec(Struct, frozen=True, array_like=True):
    """One input or output of a model. `shape` includes the row dimension; -1 is variable."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Tensor(Struct, frozen=True):
    """A named array with its protocol datatype (see the module docstring for BYTES and BF16)."""

    name: str
    datatype: str
    array: np.ndarray[Any, Any]

    @property
    def nbytes(self) -> int:
        """Payload size in bytes; for BYTES the sum of the elements."""
        if self.datatype == "BYTES":
            return sum(len(element) for element in self.array.flat)
        return int(self.array.nbytes)


class Signature(Struct, frozen=True):
    """What an engine takes and gives, as the engine reports it after loading."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    platform: str = ""


class WantedOutput(Struct, frozen=True):
    """An output that the client asked for by name, and the form it wants it in."""

    name: str
    binary: bool = False


class InferRequest(Struct, frozen=True):
    """An inference request, decoded but not yet checked against a model.

    `outputs` is None when the client did not say; `binary` is the form for outputs not named one by one.
    `timeout_s` is None without a client deadline, else above 0. `priority`: 1 is most urgent, 9 least, None unset.
    """

    inputs: tuple[Tensor, ...]
    id: str = ""
    outputs: tuple[WantedOutput, ...] | None = None
    binary: bool = False
    timeout_s: float | None = None
    priority: int | None = None


class Timings(Struct, frozen=True):
    """Seconds spent per stage of one request. Stages that a request skipped are 0."""

    parse: float = 0.0
    preprocess: float = 0.0
    queue: float = 0.0
    copy: float = 0.0
    compute: float = 0.0
    post: float = 0.0
    serialise: float = 0.0


class InferResponse(Struct, frozen=True):
    """A finished inference, before it is encoded. `downgraded` rows were preprocessed more coarsely than usual."""

    model_name: str
    model_version: str
    outputs: tuple[Tensor, ...]
    id: str = ""
    timings: Timings = Timings()
    batch_rows: int = 0
    finite: bool = True
    tokens: int = 0  # of all texts of the request, padding left out; 0 where no text was tokenised
    downgraded: int = 0


class ReleaseReason(Enum):
    """Why a batch left the queue."""

    FULL = "full"  # max batch reached, or the next request would not fit
    EARLY_TRIGGER = "early_trigger"  # enough rows waiting
    IDLE_WORKER = "idle_worker"  # a worker was free and the plan says not to wait
    MAX_WAIT = "max_wait"  # the oldest request waited long enough
    DEADLINE = "deadline"  # the earliest deadline minus the predicted compute time is now
    SIZE_CLASS = "size_class"  # another class waits for the worker
    DRAIN = "drain"  # shutting down: nothing more will come
    ISOLATE = "isolate"  # a failed batch is being bisected, or retried alone


class FailureKind(Enum):
    """How an execution failed; decides what happens to the requests of the batch."""

    INPUT = "input"  # the engine refused the data: bisect
    ENGINE = "engine"  # the engine raised: bisect
    MEMORY = "memory"  # out of memory: retry smaller
    OUTPUT = "output"  # wrong row count or missing output: fail the batch, worker stays
    LOST = "lost"  # the worker died or hung: retry once, alone
