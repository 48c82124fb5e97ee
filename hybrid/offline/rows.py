"""The values that the parts of an offline job hand to each other. Knows no file and no model."""

from typing import Any

import numpy as np
from msgspec import Struct

from hybrid.messages import Tensor

RowId = str | int | None
Array = np.ndarray[Any, Any]


class Text(Struct, frozen=True, gc=False):
    """A row that the model's text step has to tokenise."""

    content: bytes


class Picture(Struct, frozen=True, gc=False):
    """A row that the model's image step has to decode: an encoded image, or base64 of one."""

    content: bytes


class Tensors(Struct, frozen=True):
    """A row of tensors as they come; each has a first dimension of 1."""

    tensors: tuple[Tensor, ...]


class Fault(Struct, frozen=True, gc=False):
    """Why a row has no result."""

    text: str
    code: str = "bad_request"


class InputRow(Struct, frozen=True):
    """One row of the input. `index` counts rows from 0; `nbytes` is about what it keeps in memory."""

    index: int
    content: Text | Picture | Tensors | Fault
    id: RowId = None
    nbytes: int = 0


class ReadyRow(Struct, frozen=True):
    """A row that can be run: the compact arrays that its preprocess step made of it, or else its tensors.

    `form` is what rows of one batch must have in common; `size` its length along the padded dimension, 0 without one.
    """

    index: int
    id: RowId
    arrays: tuple[Array, ...] = ()
    tensors: tuple[Tensor, ...] = ()
    form: Any = None
    size: int = 0


class Line(Struct, frozen=True, gc=False):
    """A row's result, encoded for the output file."""

    data: bytes


class Outcome(Struct, frozen=True):
    """What became of one row."""

    index: int
    id: RowId
    result: Line | Fault
