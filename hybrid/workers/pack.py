"""Forming a batch: the rows of several requests are copied, once, into the input slab of a worker.

Requests of one lane share names, datatypes and trailing shapes, except along dimension 1 of inputs that may be padded;
those are filled up to the longest piece of this batch, or to the one length that static batching has for all.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybrid.messages import Tensor
from hybrid.workers.arena import Slab, aligned, pack_raw
from hybrid.workers.wire import Block

Array = np.ndarray[Any, Any]


class Rows(NamedTuple):
    """Some rows of a request's tensors. Of inputs that may be padded only `length` along dimension 1 is needed."""

    tensors: tuple[Tensor, ...]
    start: int
    rows: int
    length: int | None = None  # as long as the tensors are


def pack_batch(
    slab: Slab, pieces: Sequence[Rows], rows: int, pad: Mapping[str, int], length: int = 0
) -> tuple[Block, ...]:
    """Write one batch and describe it. `pieces` are in batch order and have `rows` rows in sum.

    Inputs in `pad` become at least `length` long.
    """
    inputs = pieces[0].tensors
    shapes: list[tuple[int, ...]] = []
    lengths: list[int] = []
    raws: dict[int, bytes] = {}
    for index, first in enumerate(inputs):
        shape = (rows, *first.array.shape[1:])
        if first.datatype == "BYTES":
            raws[index] = _join_bytes(pieces, index)
            lengths.append(len(raws[index]))
        else:
            if first.name in pad:
                longest = max(length, *(piece.length or piece.tensors[index].array.shape[1] for piece in pieces))
                shape = (rows, longest, *first.array.shape[2:])
            lengths.append(_product(shape) * first.array.itemsize)
        shapes.append(shape)
    return _write(slab, pieces, list(zip(inputs, shapes, lengths, strict=True)), raws, pad)


def _write(
    slab: Slab,
    pieces: Sequence[Rows],
    layout: list[tuple[Tensor, tuple[int, ...], int]],
    raws: Mapping[int, bytes],
    pad: Mapping[str, int],
) -> tuple[Block, ...]:
    total = 0
    for _, _, length in layout:
        total = aligned(total + length)
    data = slab.reserve(total)
    blocks: list[Block] = []
    offset = 0
    for index, (first, shape, length) in enumerate(layout):
        target = data[offset : offset + length]
        if index in raws:
            target[:] = np.frombuffer(raws[index], np.uint8)
        elif length:
            _copy_rows(target.view(first.array.dtype).reshape(shape), pieces, index, pad.get(first.name))
        blocks.append(Block(first.name, first.datatype, shape, offset, length))
        offset = aligned(offset + length)
    return tuple(blocks)


def _copy_rows(target: Array, pieces: Sequence[Rows], index: int, fill: int | None) -> None:
    if all([_is_whole(piece, index, None if fill is None else target.shape[1]) for piece in pieces]):
        if len(pieces) == 1:
            target[...] = pieces[0].tensors[index].array
        else:
            np.concatenate([piece.tensors[index].array for piece in pieces], out=target)
        return
    at = 0
    for tensors, start, count, needed in pieces:
        source = tensors[index].array[start : start + count]
        if fill is None:
            target[at : at + count] = source
        else:
            length = needed or source.shape[1]
            target[at : at + count, :length] = source[:, :length]
            target[at : at + count, length:] = fill
        at += count


def _is_whole(piece: Rows, index: int, length: int | None) -> bool:
    """Whether a piece is all of its tensor, as it is: also without anything to fill up to `length`."""
    array = piece.tensors[index].array
    if piece.start or len(array) != piece.rows:
        return False
    return length is None or array.shape[1] == length == (piece.length or length)


def _join_bytes(pieces: Sequence[Rows], index: int) -> bytes:
    return b"".join(
        pack_raw(list(piece.tensors[index].array[piece.start : piece.start + piece.rows].flat)) for piece in pieces
    )


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
