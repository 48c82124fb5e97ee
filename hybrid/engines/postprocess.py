"""What is made of a model's raw outputs, in the worker, before they travel back.

In the worker because the raw output is larger: a sentence's hidden states are tokens x the embedding's size.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np

from hybrid.engines.base import Arrays
from hybrid.errors import StartupError
from hybrid.messages import Signature, TensorSpec

_SMALLEST_NORM: Final = np.float32(1e-12)


class Postprocess(Protocol):
    """Turns the outputs of one batch into those that clients see; rows stay rows."""

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs after this step."""

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Arrays) -> Arrays:
        """Return the new outputs of one batch."""


class MeanPoolL2:
    """`last_hidden_state` [b, s, d] and `attention_mask` [b, s] -> `embedding` FP32 [b, d] of length 1.

    Rows are pooled one by one over their real tokens. One product with the mask for the whole batch would be shorter,
    but its order of additions, and so the last bits of a vector, would depend on how far the row was padded, and a NaN
    in the padding would reach the result.
    """

    def __init__(self, signature: Signature) -> None:
        hidden = _need(signature.outputs, "last_hidden_state", 3)
        _need(signature.inputs, "attention_mask", 2)
        self._outputs = (TensorSpec("embedding", "FP32", (-1, hidden.shape[2])),)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """`embedding` alone."""
        return self._outputs

    def __call__(self, inputs: Mapping[str, np.ndarray[Any, Any]], outputs: Arrays) -> Arrays:
        """Pool and normalise; a row whose mask is empty gives zeros."""
        hidden, real = outputs["last_hidden_state"], inputs["attention_mask"] != 0
        pooled = np.zeros((hidden.shape[0], hidden.shape[2]), np.float32)
        if real.all():  # the same additions in the same order, by one call for all rows
            np.add.reduce(hidden, axis=1, dtype=np.float32, out=pooled)
        else:
            for row, keep in enumerate(real):
                np.add.reduce(hidden[row][keep], axis=0, dtype=np.float32, out=pooled[row])
        # Dividing by the token count first changes nothing once the length is made 1. A row without tokens stays 0.
        norms = np.sqrt(np.einsum("bd,bd->b", pooled, pooled))
        pooled /= np.maximum(norms, _SMALLEST_NORM)[:, None]
        return {"embedding": pooled}


def build(name: str, signature: Signature) -> Postprocess | None:
    """Return the step called `name` for a model, None for "".

    Raises:
        StartupError: the model lacks an input or output that the step needs, or there is no such step.
    """
    if not name:
        return None
    if name != "mean_pool_l2":
        raise StartupError(f"unknown postprocess `{name}`; expected mean_pool_l2")
    return MeanPoolL2(signature)


def _need(specs: tuple[TensorSpec, ...], name: str, rank: int) -> TensorSpec:
    for spec in specs:
        if spec.name == name and len(spec.shape) == rank:
            return spec
    have = ", ".join(f"{spec.name} {list(spec.shape)}" for spec in specs)
    raise StartupError(f"postprocess mean_pool_l2 needs `{name}` with {rank} dimensions; the model has {have}")
