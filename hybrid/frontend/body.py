"""Request bodies as they arrive: collected, decompressed, and never larger than the limit.

Owns Content-Encoding. Must never know sockets, HTTP framing or what a body means.
"""

import io
import mmap
import zlib
from typing import Final

import numpy as np

from hybrid.errors import BadRequest, TooLarge, UnsupportedEncoding
from hybrid.frontend.heap import KEPT_BYTES

#: Content codings a client may use, and the window bits that zlib wants; deflate is settled by its first bytes.
_CODINGS: Final = {b"gzip": 31, b"x-gzip": 31, b"deflate": 0}
#: Compressed input is inflated in slices, so that what zlib hands back as unused is copied in small pieces only.
_SLICE: Final = 16 * 1024
#: And made into pieces of this size: fresh memory for a larger one would cost more than inflating into it.
_PIECE: Final = 16 * 1024
#: A body of millions of tiny pieces would cost more in object headers than in bytes: they are packed from here on.
_MAX_PIECES: Final = 64
_MAX_MEMBERS: Final = 1024
#: Of a large body, what is received at once: copying that much takes about as long as a small request does.
_MOST_AT_ONCE: Final = 512 * 1024


def coding_of(header: bytes) -> bytes | None:
    """Return the one coding that a Content-Encoding value names, or None for identity.

    Raises:
        UnsupportedEncoding: The coding is unknown, or several are chained.
    """
    coding = header.strip().lower()
    if coding in (b"", b"identity"):
        return None
    if coding not in _CODINGS:
        raise UnsupportedEncoding(
            f"Content-Encoding: expected gzip, deflate or identity, got {header[:60].decode('latin-1')!r}"
        )
    return coding


class Receiving:
    """Bytes of all large bodies of one server that are being received into memory of malloc."""

    __slots__ = ("nbytes",)

    def __init__(self) -> None:
        self.nbytes = 0


class LargeBody:
    """A body of known length that is received in its final place: copying it once more costs more than its HTTP.

    Its memory is not touched before bytes come, so a client that promises many takes none.

    Raises:
        OSError, MemoryError: `size` bytes are not to be had.
    """

    __slots__ = ("_filled", "_memory", "_receiving", "_unfinished")

    def __init__(self, size: int, start: bytes, receiving: Receiving) -> None:
        self._receiving = receiving
        self._unfinished = 0
        if receiving.nbytes + size <= KEPT_BYTES:
            # Not a bytearray, which would be filled with zeros first. Its pages have been touched by bodies before it.
            self._memory = np.empty(size, np.uint8).data
            self._unfinished = size
            receiving.nbytes += size
        else:
            # Pages of its own are dearer, but go back to the system with it. What malloc gives stays touched when it
            # is freed: a crowd whose bodies are refused half-way would leave several times `max_buffered_bytes` behind.
            self._memory = memoryview(mmap.mmap(-1, size))
        self._filled = 0
        self.add(start)

    def __del__(self) -> None:
        self._receiving.nbytes -= self._unfinished

    @property
    def room(self) -> memoryview:
        """Where the next bytes belong: as many as should be received at once."""
        return self._memory[self._filled : self._filled + _MOST_AT_ONCE]

    @property
    def missing(self) -> int:
        """How many bytes have not come yet."""
        return len(self._memory) - self._filled

    def add(self, data: bytes | memoryview) -> None:
        """Copy bytes into it, no more than are missing."""
        end = self._filled + len(data)
        self._memory[self._filled : end] = data
        self._filled = end

    def filled(self, size: int) -> None:
        """So many bytes were written into `room`."""
        self._filled += size

    def finish(self) -> memoryview:
        """Return the whole body, which nobody may write to any more."""
        self._receiving.nbytes -= self._unfinished
        self._unfinished = 0
        return self._memory.toreadonly()


class BodyReader:
    """Collects one body piece by piece; `size` is the number of decoded bytes held so far.

    Args:
        limit: Most decoded bytes that are accepted.
        coding: A value of `coding_of`.
    """

    __slots__ = ("_coding", "_limit", "_members", "_packed", "_pieces", "_start", "_zlib", "size")

    def __init__(self, limit: int, coding: bytes | None = None) -> None:
        self.size = 0
        self._limit = limit
        self._coding = coding
        self._pieces: list[bytes] = []
        self._packed: io.BytesIO | None = None  # unlike other buffers it gives its content away without a copy
        self._zlib: zlib._Decompress | None = None
        self._start = b""  # bytes of a stream too short to tell its kind
        self._members = 0

    @property
    def packed(self) -> bool:
        """Whether it inflates what it is given."""
        return self._coding is not None

    def add(self, piece: bytes) -> None:
        """Take the next bytes as they came over the wire.

        Raises:
            TooLarge: More than `limit` bytes after decoding.
            BadRequest: Not a valid stream of the coding.
        """
        if self._coding is None:
            self._store(piece)
            return
        for offset in range(0, len(piece), _SLICE):
            self._inflate(piece[offset : offset + _SLICE])

    def finish(self) -> bytes:
        """Return the whole body.

        Raises:
            BadRequest: The compressed stream is cut short.
        """
        if self._coding is not None and (self._zlib is not None or self._start):
            raise BadRequest(f"body: {self._coding.decode()} stream ends too early")
        rest = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        if self._packed is None:
            return rest
        self._packed.write(rest)
        return self._packed.getvalue()

    def _store(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.size > self._limit:
            raise TooLarge(f"body: expected at most {self._limit} bytes after decoding, got more")
        self._pieces.append(piece)
        if len(self._pieces) > _MAX_PIECES:
            if self._packed is None:
                self._packed = io.BytesIO()
            self._packed.writelines(self._pieces)
            self._pieces.clear()

    def _inflate(self, data: bytes) -> None:
        data = self._start + data
        full = False  # zlib may have kept back what there was no room for, also when it has taken all input
        while data or full:
            if self._zlib is None:
                if len(data) < 2:
                    break
                self._zlib = self._open(data)
            most = min(_PIECE, self._limit - self.size + 1)
            try:
                out = self._zlib.decompress(data, most)
            except zlib.error as exc:
                raise BadRequest(f"body: not a valid {(self._coding or b'').decode()} stream ({exc})") from None
            full = len(out) == most
            if out:
                self._store(out)
            if self._zlib.eof:
                data, full, self._zlib = self._zlib.unused_data, False, None
            else:
                data = self._zlib.unconsumed_tail
        self._start = data

    def _open(self, head: bytes) -> "zlib._Decompress":
        """Start the next stream. Only gzip may hold several; their number is bounded because an empty one costs CPU."""
        self._members += 1
        if self._members > (1 if self._coding == b"deflate" else _MAX_MEMBERS):
            raise BadRequest("body: data after the end of the compressed stream")
        bits = _CODINGS[self._coding or b""]
        if (
            not bits
        ):  # "deflate" means zlib by the standard and raw deflate to some clients: a zlib header is a multiple of 31
            bits = zlib.MAX_WBITS if head[0] & 15 == 8 and (head[0] * 256 + head[1]) % 31 == 0 else -zlib.MAX_WBITS
        return zlib.decompressobj(bits)
