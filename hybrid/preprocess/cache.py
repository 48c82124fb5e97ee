"""Rows that were made before, by the content of what the client sent: bounded in bytes, the least recent go first.

Pure. Knows neither what an item is nor what made its row: both are bytes and arrays here.
"""

import hashlib
from collections import OrderedDict
from typing import Final

from msgspec import Struct

from hybrid.preprocess.base import Row

#: Hashing runs in the server's event loop; an item of this size takes it about 4 ms.
_MAX_ITEM_BYTES: Final = 4 * 1024 * 1024
_DIGEST_BYTES: Final = 20
#: What an entry takes besides key and pixels: its place in the table, a tuple, and the head of each array.
_ENTRY_BYTES: Final = 300
_ARRAY_BYTES: Final = 150


class CacheStats(Struct, frozen=True):
    """What the cache holds, and how often rows were found in it since the start."""

    entries: int = 0
    nbytes: int = 0
    hits_n: int = 0
    misses_n: int = 0


class RowCache:
    """Least-recently-used rows within `limit_bytes`, keys and bookkeeping included.

    `salt` stands for everything that a row depends on besides its item, so that two caches share no key by chance.
    """

    def __init__(self, limit_bytes: int, salt: bytes) -> None:
        self._limit_bytes = limit_bytes
        self._salt = hashlib.blake2b(salt, digest_size=32).digest()
        self._rows: OrderedDict[bytes, Row] = OrderedDict()
        self._bytes = 0
        self._hits_n = 0
        self._misses_n = 0

    def key(self, item: bytes) -> bytes:
        """Return what the item is called here; empty when it is too large to be hashed beside other work."""
        if len(item) > _MAX_ITEM_BYTES:
            return b""
        return hashlib.blake2b(item, digest_size=_DIGEST_BYTES, key=self._salt).digest()

    def get(self, key: bytes) -> Row | None:
        """Return the row, which nobody may change, or None."""
        row = self._rows.get(key)
        if row is None:
            self._misses_n += 1
            return None
        self._hits_n += 1
        self._rows.move_to_end(key)
        return row

    def put(self, key: bytes, row: Row) -> None:
        """Keep a copy of a row; others leave for it. One that is larger than the whole cache is not kept."""
        size = _size(row)
        if not key or key in self._rows or size > self._limit_bytes:
            return
        # Copied, because a small row is a view of the message it came in, with all its neighbours.
        kept = tuple([array.copy() for array in row])
        for array in kept:
            array.flags.writeable = False
        self._rows[key] = kept
        self._bytes += size
        while self._bytes > self._limit_bytes:
            _, oldest = self._rows.popitem(last=False)
            self._bytes -= _size(oldest)

    def stats(self) -> CacheStats:
        """Return what telemetry shows."""
        return CacheStats(len(self._rows), self._bytes, self._hits_n, self._misses_n)


def _size(row: Row) -> int:
    return _ENTRY_BYTES + sum([array.nbytes + _ARRAY_BYTES for array in row])
