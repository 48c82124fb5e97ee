"""How large a request is and whom it may share a batch with; and the order of its rows. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from hybrid.batching.queue import LaneKey
from hybrid.errors import BadRequest
from hybrid.messages import Tensor, TensorSpec

T = TypeVar("T")


def lane_of(tensors: Sequence[Tensor], pad: dict[str, int], size: int = 0) -> tuple[LaneKey, int]:
    """Return which lane a request belongs to, and its size (the length along the padded dimension).

    Tensors that may be padded share a lane whatever their length; all others must agree in every trailing dimension.

    Raises:
        BadRequest: padded tensors of one request differ in length. Padding would make them agree in some batches, so
            that the answer depended on who else is in the batch.
    """
    if len(tensors) == 1 and not pad:
        only = tensors[0]
        return LaneKey((only.datatype, only.array.shape[1:])), size
    data_format: list[Any] = []
    length: int | None = None
    for tensor in tensors:
        shape = tensor.array.shape[1:]
        if tensor.name in pad and shape:
            length = shape[0] if length is None else length
            if shape[0] != length:
                raise _lengths_fault(tensors, pad)
            size = max(size, length)
            shape = shape[1:]
        data_format.append((tensor.datatype, shape))
    return LaneKey(tuple(data_format)), size


def image_dims(specs: Sequence[TensorSpec]) -> tuple[str, tuple[int, ...]] | None:
    """Return the first input that takes images of any height and width, and which dimensions these are; else None."""
    for spec in specs:
        dims = tuple(place for place, dim in enumerate(spec.shape) if place and dim < 0)
        if len(dims) > 1:
            return spec.name, dims
    return None


def area_of(tensors: Sequence[Tensor], image: tuple[str, tuple[int, ...]]) -> int:
    """Return the pixels of a row."""
    name, dims = image
    for tensor in tensors:
        if tensor.name == name:
            area = 1
            for dim in dims:
                area *= tensor.array.shape[dim]
            return area
    return 0


def rising(rows: Sequence[T], size_of: Callable[[T], int]) -> tuple[list[T], list[int], np.ndarray[Any, Any]] | None:
    """Sort the rows of a request by size, so that it can be cut where the size changes; None when all are alike.

    Returns:
        The rows, their sizes, and for each row as the client sent them its place in the new order.
    """
    sizes = [size_of(row) for row in rows]
    if min(sizes) == max(sizes):
        return None
    order = sorted(range(len(rows)), key=sizes.__getitem__)
    places = np.empty(len(rows), np.intp)
    places[order] = np.arange(len(rows))
    return [rows[index] for index in order], [sizes[index] for index in order], places


def _lengths_fault(tensors: Sequence[Tensor], pad: dict[str, int]) -> BadRequest:
    shapes = ", ".join(f"{t.name!r} {list(t.array.shape)}" for t in tensors if t.name in pad)
    return BadRequest(f"inputs disagree on dimension 1, the length of a row: {shapes}")
