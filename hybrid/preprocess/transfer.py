"""How items travel to a preprocess process and rows come back: small ones in the packet, large ones in the slabs.

A text and its ids are smaller than the bookkeeping of shared memory, so they ride along in the message. Knows no
process and no queue; one pair of functions per direction.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hybrid.messages import DTYPES
from hybrid.preprocess.base import Row
from hybrid.preprocess.job import Refused
from hybrid.workers import wire
from hybrid.workers.arena import Slab, aligned, read_array
from hybrid.workers.wire import Block

#: Payload bytes up to which a message carries them itself: a third of a packet, and the cost of copying them is small.
INLINE_BYTES: Final = 1 << 16
_MAX_TEXT: Final = 1000
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items() if name not in ("BYTES", "BF16")}

Array = np.ndarray[Any, Any]


def pack_items(job_id: int, items: Sequence[bytes], slab: Slab, *, cheap: bool = False) -> wire.Transform:
    """Make the message for a task, writing large items into the input slab.

    Raises:
        MemoryError: no shared memory for them.
    """
    total = sum(map(len, items))
    if total <= INLINE_BYTES:
        return wire.Transform(job_id, 0, (), tuple(items), cheap)
    target = slab.reserve(total)
    places: list[tuple[int, int]] = []
    offset = 0
    for item in items:
        end = offset + len(item)
        target[offset:end] = np.frombuffer(item, np.uint8)
        places.append((offset, len(item)))
        offset = end
    return wire.Transform(job_id, slab.size, tuple(places), (), cheap)


def unpack_items(command: wire.Transform, slab: Slab) -> Sequence[bytes]:
    """Return the items of a task."""
    if not command.items:
        return command.inline
    data = slab.view(command.mapped)
    return [data[offset : offset + length].tobytes() for offset, length in command.items]


def pack_rows(job_id: int, rows: Sequence[Row | Refused], slab: Slab, seconds: float) -> wire.Transformed:
    """Make the answer to a task, writing large rows into the output slab.

    Raises:
        MemoryError: no shared memory for them.
    """
    described: list[wire.Row] = []
    arrays: list[Array] = []
    end = 0
    for row in rows:
        if isinstance(row, Refused):
            described.append(wire.Row((), row.text[:_MAX_TEXT], row.ours))
            continue
        blocks: list[Block] = []
        for array in row:
            blocks.append(Block("", _NAMES[array.dtype], array.shape, end, array.nbytes))
            arrays.append(array)
            end = aligned(end + array.nbytes)
        described.append(wire.Row(tuple(blocks)))
    places = [block for row in described for block in row.blocks]
    if end <= INLINE_BYTES:
        parts = [array.tobytes().ljust(aligned(array.nbytes), b"\0") for array in arrays]
        return wire.Transformed(job_id, 0, tuple(described), seconds, b"".join(parts))
    target = slab.reserve(end)
    for array, block in zip(arrays, places, strict=True):
        part = target[block.offset : block.offset + block.length]
        np.copyto(part.view(array.dtype).reshape(array.shape), array)
    return wire.Transformed(job_id, slab.size, tuple(described), seconds)


def unpack_rows(event: wire.Transformed, slab: Slab) -> list[Row | Refused]:
    """Return the rows of a task, none of which lies in the slab any more."""
    inline = not event.mapped
    data = np.frombuffer(event.data, np.uint8) if inline else slab.view(event.mapped)
    rows: list[Row | Refused] = []
    for row in event.rows:
        if row.error is not None:
            rows.append(Refused(row.error, row.ours))
        elif inline:
            # Views of the packet, which they keep alive: at most 64 KiB, for as long as the request waits.
            rows.append(tuple([read_array(data, block) for block in row.blocks]))
        else:
            rows.append(tuple([read_array(data, block).copy() for block in row.blocks]))
    return rows
