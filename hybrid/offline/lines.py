"""Bytes to lines with bounded memory, from any file descriptor. Knows nothing of what a line means.

Reads the descriptor itself and not through `io`: a thread that waits in a buffered reader holds its lock, and the
interpreter cannot end while somebody waits for standard input.
"""

import os
import select
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

MAX_LINE_BYTES: Final = 64 << 20
_READ_BYTES: Final = 1 << 18
_BOM: Final = b"\xef\xbb\xbf"


class RawLine(Struct, frozen=True, gc=False):
    """One line without its end; `data` is empty and `oversized` set where it was longer than any line may be.

    `end` is the position in the file behind it.
    """

    data: bytes
    end: int
    oversized: bool = False


def read_lines(descriptor: int, limit: int = MAX_LINE_BYTES) -> Iterator[RawLine | None]:
    """Yield the lines of a file from its present position on. The last one need not end with a newline.

    None comes where the next line is not there yet and waiting for it begins: whoever collects lines hands over those
    that it has.

    A carriage return before the newline goes, and so does a byte order mark before the first line. Of a line that is
    longer than `limit` nothing is kept.
    """
    position, carried, skipping, first = 0, bytearray(), False, True
    readiness = select.poll()
    readiness.register(descriptor, select.POLLIN)
    while True:
        if not readiness.poll(0):
            yield None
        block = os.read(descriptor, _READ_BYTES)
        if not block:
            break
        *whole, rest = block.split(b"\n")
        for part in whole:
            position += len(part) + 1
            oversized = skipping or len(carried) + len(part) > limit
            data = b"" if oversized else bytes(carried) + part if carried else part
            yield RawLine(_cleaned(data, first), position, oversized)
            carried.clear()
            skipping = first = False
        position += len(rest)
        skipping = skipping or len(carried) + len(rest) > limit
        if skipping:
            carried.clear()
        else:
            carried += rest
    if carried or skipping:
        yield RawLine(_cleaned(bytes(carried), first), position, skipping)


def count_lines(descriptor: int, most_bytes: int) -> int | None:
    """Return the number of lines of a file, reading all of it; None when it is larger than `most_bytes`."""
    if os.fstat(descriptor).st_size > most_bytes:
        return None
    lines, position, last = 0, 0, b"\n"
    while block := os.pread(descriptor, _READ_BYTES, position):
        lines += block.count(b"\n")
        last = block[-1:]
        position += len(block)
    return lines + (last != b"\n")


def _cleaned(data: bytes, first: bool) -> bytes:
    return (data.removeprefix(_BOM) if first else data).removesuffix(b"\r")
