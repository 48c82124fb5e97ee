"""Slabs: nameless shared memory between the server and one child, and how tensors lie in it.

A slab is a `memfd` (or an unlinked temporary file where the kernel has none), passed on as a descriptor. It has no
name, so nothing can be left behind when somebody is killed, and it does not count against the size of /dev/shm. One
side writes and grows a slab, the other only maps it; a message carries the size to map, so neither ever guesses.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from hybrid.messages import DTYPES
from hybrid.workers.wire import Block

_ALIGN = 64
_FIRST = 1 << 16
_KEEP = 64 << 20  # a slab that one large batch grew beyond this is cut back after it

Array = np.ndarray[Any, Any]


class Slab:
    """One mapped region. The writing side calls `reserve` and `release`, the reading side `view`."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.size = 0
        self._map: mmap.mmap | None = None
        self._bytes: Array = np.empty(0, np.uint8)

    @classmethod
    def create(cls) -> "Slab":
        """Make a new, empty slab; the descriptor is close-on-exec."""
        if hasattr(os, "memfd_create"):
            return cls(os.memfd_create("hybrid", os.MFD_CLOEXEC))
        with tempfile.TemporaryFile() as file:
            return cls(os.dup(file.fileno()))

    def reserve(self, length: int) -> Array:
        """Return writable bytes [length or more], growing the file when needed.

        Raises:
            MemoryError: the memory is not to be had. Asked of the kernel now, since touching it later would kill us.
        """
        if length > self.size:
            step = max(_FIRST, 1 << length.bit_length() >> 3)
            size = -(-length // step) * step
            try:
                os.ftruncate(self.fd, size)
                os.posix_fallocate(self.fd, 0, size)
                self._remap(size)
            except OSError as error:
                os.ftruncate(self.fd, self.size)
                raise MemoryError(f"no shared memory for a batch of {length} bytes: {error.strerror}") from error
        return self._bytes

    def view(self, size: int) -> Array:
        """Return the bytes of a slab that the other side wrote and declared to be `size` long.

        Raises:
            MemoryError: there is no room to map it.
        """
        if size > self.size:
            try:
                self._remap(size)
            except OSError as error:
                raise MemoryError(f"cannot map a batch of {size} bytes: {error.strerror}") from error
        return self._bytes

    def release(self) -> None:
        """Give back what only an unusually large batch needed. No view of it may be in use."""
        if self.size > _KEEP:
            os.ftruncate(self.fd, _KEEP)
            self._remap(_KEEP)

    def close(self) -> None:
        """Unmap (once the last view is gone) and close the descriptor."""
        self._bytes = np.empty(0, np.uint8)
        self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _remap(self, size: int) -> None:
        # A new mapping and not mmap.resize: views of the old one may still be alive, and they stay valid.
        self._map = mmap.mmap(self.fd, size)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.size = size


def pack_raw(elements: Sequence[bytes]) -> bytes:
    """Return BYTES elements as one run of 4-byte little-endian lengths and contents."""
    parts: list[bytes] = []
    for element in elements:
        parts.append(len(element).to_bytes(4, "little"))
        parts.append(element)
    return b"".join(parts)


def unpack_raw(raw: bytes, shape: tuple[int, ...]) -> Array:
    """Inverse of `pack_raw`: an object array of `shape`."""
    elements: list[bytes] = []
    at = 0
    while at < len(raw):
        length = int.from_bytes(raw[at : at + 4], "little")
        elements.append(raw[at + 4 : at + 4 + length])
        at += 4 + length
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def aligned(offset: int) -> int:
    """Return the next offset at which a tensor may start."""
    return (offset + _ALIGN - 1) & -_ALIGN


def write_arrays(slab: Slab, arrays: Sequence[tuple[str, str, Array]]) -> tuple[Block, ...]:
    """Copy (name, datatype, array) into a slab, one after the other, and describe where they lie."""
    encoded = [pack_raw(list(array.flat)) if datatype == "BYTES" else array for _, datatype, array in arrays]
    offsets: list[int] = []
    end = 0
    for item in encoded:
        offsets.append(end)
        end = aligned(end + (len(item) if isinstance(item, bytes) else item.nbytes))
    target = slab.reserve(end)
    blocks: list[Block] = []
    for (name, datatype, array), item, offset in zip(arrays, encoded, offsets, strict=True):
        length = len(item) if isinstance(item, bytes) else item.nbytes
        if isinstance(item, bytes):
            target[offset : offset + length] = np.frombuffer(item, np.uint8)
        elif length:
            np.copyto(target[offset : offset + length].view(item.dtype).reshape(item.shape), item)
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        blocks.append(Block(name, datatype, array.shape, offset, length, finite))
    return tuple(blocks)


def read_array(data: Array, block: Block) -> Array:
    """Return a block as an array: a view of the slab, except BYTES, which is a copy."""
    raw = data[block.offset : block.offset + block.length]
    if block.datatype == "BYTES":
        return unpack_raw(raw.tobytes(), block.shape)
    return raw.view(DTYPES[block.datatype]).reshape(block.shape)
