"""What engines share around a run: the check of what goes in, and the reading of what they raise.

OpenVINO computes on inputs of the wrong shape, type or name without a word, so nothing may reach it unchecked. Knows no
engine library.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineFailure
from hybrid.errors import StartupError
from hybrid.messages import DTYPES, FailureKind, TensorSpec

_MEMORY: Final = re.compile(
    r"bad_alloc|bad allocation|out of memory|failed to allocate|can(no|')t allocate|could not allocate"
    r"|not enough memory|CL_OUT_OF|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation",
    re.IGNORECASE,
)
_INPUT: Final = re.compile(
    r"\b(shapes?|sizes?|dimensions?|dims?|broadcast|bounds|range|ind(ex|ices)|rank|axis|channels|dtype)\b",
    re.IGNORECASE,
)
_TEXT_LIMIT: Final = 500


def check_feed(specs: tuple[TensorSpec, ...], inputs: Mapping[str, np.ndarray[Any, Any]]) -> None:
    """Refuse inputs that are not exactly those of the signature.

    Raises:
        EngineFailure: INPUT, with the name, what was expected and what came.
    """
    for spec in specs:
        array = inputs.get(spec.name)
        if array is None:
            raise EngineFailure(FailureKind.INPUT, f"input `{spec.name}` is missing")
        if array.dtype != DTYPES[spec.datatype]:
            text = f"input `{spec.name}` is {array.dtype}, expected {spec.datatype} ({DTYPES[spec.datatype]})"
            raise EngineFailure(FailureKind.INPUT, text)
        fits = array.ndim == len(spec.shape) and all(
            want in (-1, got) for want, got in zip(spec.shape, array.shape, strict=True)
        )
        if not fits:
            text = f"input `{spec.name}` has shape {list(array.shape)}, expected {list(spec.shape)}"
            raise EngineFailure(FailureKind.INPUT, text)
    if len(inputs) != len(specs):
        unknown = next(name for name in inputs if all(name != spec.name for spec in specs))
        known = ", ".join(spec.name for spec in specs)
        raise EngineFailure(FailureKind.INPUT, f"the model has no input `{unknown}`; it has {known}")


def fixed_rows(specs: tuple[TensorSpec, ...]) -> int | None:
    """The smallest fixed first dimension of an input, or None when all are variable."""
    fixed = [spec.shape[0] for spec in specs if spec.shape and spec.shape[0] >= 0]
    return min(fixed) if fixed else None


def declared(settings: ModelSettings, role: str) -> tuple[TensorSpec, ...]:
    """The `inputs` or `outputs` (the `role`) of model.toml as specs.

    Raises:
        StartupError: a datatype that does not exist or that is text, or two of one name.
    """
    specs: list[TensorSpec] = []
    for tensor in getattr(settings, role):
        where = f"model {settings.name}: `{role}`: `{tensor.name}`"
        if tensor.datatype not in DTYPES or tensor.datatype == "BYTES":
            known = ", ".join(name for name in DTYPES if name != "BYTES")
            raise StartupError(f"{where}: unknown datatype `{tensor.datatype}`; expected one of {known}")
        if any(tensor.name == spec.name for spec in specs):
            raise StartupError(f"{where} is declared twice")
        specs.append(TensorSpec(tensor.name, tensor.datatype, tensor.shape))
    return tuple(specs)


def mapped(
    error: BaseException, kinds: Mapping[str, FailureKind], vague: tuple[str, ...], text: str | None = None
) -> EngineFailure:
    """Map what a library raised, by the name of its class; the text of a `vague` class says more than its name."""
    name = type(error).__name__
    text = one_line(error) if text is None else text
    kind = FailureKind.MEMORY if isinstance(error, MemoryError) else kinds.get(name, FailureKind.ENGINE)
    if name in vague:
        if _MEMORY.search(text):
            kind = FailureKind.MEMORY
        elif _INPUT.search(text):
            kind = FailureKind.INPUT
    return EngineFailure(kind, f"{name}: {text}")


def one_line(error: BaseException) -> str:
    """The message on one line of bounded length; the last words of a long one are kept, causes stand at the end."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= _TEXT_LIMIT else "..." + text[-_TEXT_LIMIT:]
