"""Made-up inputs for a model, and the check whether its rows may share a batch.

Pure but for the `run` it is handed. Knows no engine and no request.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from hybrid.engines.base import Arrays, EngineFailure
from hybrid.messages import DTYPES, FailureKind, Signature, TensorSpec

Run = Callable[[Arrays, int], Arrays]

CHECK_ROWS: Final = 3
#: Integers may be ids into a table of unknown size, flags, or zero only: tried from the most telling to the safest.
_INTEGER_LIMITS: Final = (100, 2, 1)
_SEED: Final = 1


def plausible_inputs(signature: Signature, rows: int, length: int) -> Arrays:
    """Return inputs that most models accept: masks 1, everything else 0 or "text"; variable dimensions are `length`."""
    return {spec.name: _plain(spec, _shape(spec, rows, length)) for spec in signature.inputs}


def distinct_inputs(signature: Signature, rows: int, length: int, integer_limit: int) -> Arrays:
    """Return inputs whose rows differ: floats in [0, 1), integers in [0, limit), masks 1. The same ones every time."""
    rng = np.random.default_rng(_SEED)
    return {spec.name: _varied(spec, _shape(spec, rows, length), rng, integer_limit) for spec in signature.inputs}


def batching_fault(run: Run, signature: Signature, tolerance: float, length: int, rows: int = CHECK_ROWS) -> str | None:
    """Compare `rows` rows alone with the same rows in one batch; None when batching is legal, else why it is not.

    A model that refuses all of the made-up rows gets a reason too: what cannot be checked is not merged. `tolerance`
    is relative to the largest value of an output.
    """
    flat = [spec.name for spec in signature.inputs if not spec.shape]
    if flat:
        return f"input `{flat[0]}` has no row dimension"
    inputs: Arrays = {}
    alone: list[Arrays] = []
    refusal = ""
    for limit in _INTEGER_LIMITS:
        inputs = distinct_inputs(signature, rows, length, limit)
        try:
            alone = [run({k: v[row : row + 1] for k, v in inputs.items()}, 1) for row in range(rows)]
            break
        except EngineFailure as failure:
            refusal = failure.text
            if failure.kind is FailureKind.OUTPUT:
                return refusal
    if not alone:
        return f"it could not be checked, because the model refuses made-up rows: {refusal}"
    try:
        together = run(inputs, rows)
    except EngineFailure as failure:
        return f"{rows} rows fail together that work alone: {failure.text}"
    return next(filter(None, (_difference(row, one, together, tolerance, rows) for row, one in enumerate(alone))), None)


def _difference(row: int, alone: Arrays, together: Arrays, tolerance: float, rows: int) -> str | None:
    for name, single in alone.items():
        one, many = single[:1], together[name][row : row + 1]
        where = f"output `{name}`: row {row} of a batch of {rows}"
        if one.shape != many.shape:
            return f"{where} has shape {list(many.shape[1:])}, alone it has {list(one.shape[1:])}"
        if one.dtype.kind != "f":
            if not np.array_equal(one, many):
                return f"{where} is not what the row alone gives"
            continue
        a, b = one.astype(np.float64), many.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return f"{where} is finite where the row alone is not, or the reverse"
        a, b = np.where(np.isfinite(a), a, 0.0), np.where(np.isfinite(b), b, 0.0)
        largest = float(np.abs(a).max(initial=0.0))
        distance = float(np.abs(a - b).max(initial=0.0))
        if distance > tolerance * largest:
            return f"{where} differs from the row alone by {distance:.3g}, over {tolerance:g} of {largest:.3g}"
    return None


def _shape(spec: TensorSpec, rows: int, length: int) -> tuple[int, ...]:
    """A fixed row dimension is not looked at: whoever runs the rows fills them up to it."""
    return (rows, *(d if d >= 0 else length for d in spec.shape[1:])) if spec.shape else ()


def _plain(spec: TensorSpec, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if spec.datatype == "BYTES":
        return np.full(shape, b"text", DTYPES["BYTES"])
    return np.full(shape, int(_is_mask(spec)), DTYPES[spec.datatype])


def _varied(
    spec: TensorSpec, shape: tuple[int, ...], rng: np.random.Generator, integer_limit: int
) -> np.ndarray[Any, Any]:
    dtype = DTYPES[spec.datatype]
    if _is_mask(spec):
        return _plain(spec, shape)
    if spec.datatype == "BYTES":
        texts = np.empty(shape, dtype)
        for index in range(texts.size):
            texts.flat[index] = b"text %d" % index
        return texts
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    limit = min(integer_limit, 2) if dtype.kind == "b" or "type" in spec.name.lower() else integer_limit
    return rng.integers(0, limit, shape).astype(dtype)


def _is_mask(spec: TensorSpec) -> bool:
    return "mask" in spec.name.lower() and spec.datatype != "BYTES"
