"""The interface of the preprocess steps.

The work is split in two so that little crosses from the preprocess processes to the server: `row` does what is slow
and returns compact arrays (token ids, 8-bit pixels), `assemble` makes tensors of them (padding, masks, scaling).
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from hybrid.messages import Tensor, TensorSpec

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

    def cheap_row(self, item: bytes) -> Row:
        """Transform a row that took too long, at less cost and with a coarser result of the same form.

        Raises:
            BadRequest: as `row`.
        """

    def assemble(self, rows: Sequence[Row]) -> tuple[Tensor, ...]:
        """Make the model's tensors of at least one row, in the order given. Runs in the server, so it is quick."""

    def size(self, rows: Sequence[Row]) -> int:
        """Return the tokens of the longest row, or the pixels of a row: what size classes are made of."""

    def tokens(self, rows: Sequence[Row]) -> int:
        """Return the tokens of all rows together; 0 for images."""


class TextStep(Preprocessor, Protocol):
    """A step that makes token ids, which clients may also send instead of text."""

    def row_of_ids(self, ids: Sequence[int]) -> Row:
        """Take the ids that a client sends, special tokens included.

        Raises:
            BadRequest: none at all, more than the model takes, or one that the vocabulary does not have.
        """
