"""The interface of the preprocess steps, and the one function that makes them. Pure: no processes, no clock.

The work is split in two so that little crosses from the preprocess processes to the server: `row` does what is slow
and returns compact arrays (token ids, 8-bit pixels), `assemble` makes tensors of them (padding, masks, scaling).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hybrid.config import PreprocessSettings
from hybrid.errors import BadRequest, StartupError
from hybrid.messages import Signature, Tensor, TensorSpec

Row = tuple[np.ndarray[Any, Any], ...]


class Preprocessor(Protocol):
    """Turns what a client sends into what the model takes."""

    @property
    def input(self) -> TensorSpec:
        """What the client sends: BYTES [-1]."""

    def row(self, item: bytes) -> Row:
        """Transform one row.

        Raises:
            BadRequest: the item is not what it should be; the message says why.
        """

    def rows(self, items: Sequence[bytes]) -> list[Row | BadRequest]:
        """Transform several rows; a bad one is an error in its place and does not spoil the others."""

    def assemble(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Make the model's tensors of at least one row, in the order given. Runs in the server, so it is quick."""

    def size(self, rows: Sequence[Row]) -> int:
        """Return the tokens of the longest row, or the pixels of a row: what size classes are made of."""


def build(settings: PreprocessSettings, model_signature: Signature) -> Preprocessor | None:
    """Make the step that the settings ask for; None when they ask for none.

    Raises:
        StartupError: the tokenizer is broken, or the model does not take what the step makes.
    """
    # Imported here so that a server of images does not load the tokenizer library, and the reverse.
    if settings.text is not None and settings.image is not None:
        raise StartupError("preprocess: expected `text` or `image`, got both")
    if settings.text is not None:
        from hybrid.preprocess.text import TextPreprocessor

        return TextPreprocessor(settings.text, model_signature)
    if settings.image is not None:
        from hybrid.preprocess.image import ImagePreprocessor

        return ImagePreprocessor(settings.image, model_signature)
    return None


def each_row(step: Preprocessor, items: Sequence[bytes]) -> list[Row | BadRequest]:
    """Return `rows` for a step that gains nothing from seeing them together."""
    results: list[Row | BadRequest] = []
    for item in items:
        try:
            results.append(step.row(item))
        except BadRequest as error:
            results.append(error)
    return results
