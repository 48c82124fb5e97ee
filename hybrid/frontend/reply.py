"""Bytes of answers: heads that are encoded once per status and content type, and the one JSON shape of errors.

Must never know sockets or requests.
"""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final, cast

import msgspec

from hybrid.errors import HybridError

JSON: Final = b"application/json"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CLOSE: Final = b"Connection: close\r\n"
KEEP_ALIVE: Final = b"Connection: keep-alive\r\n"  # only HTTP/1.0 clients need to be told

#: Bodies up to this size are joined with their head: copying them is cheaper than a second buffer in the transport.
_JOIN_BYTES: Final = 64 * 1024
_MAX_PREFIXES: Final = 256

Body = bytes | Sequence[bytes | memoryview]

_STATUS_LINES: Final = {
    int(status): f"HTTP/1.1 {int(status)} {status.phrase}\r\nContent-Type: ".encode() for status in HTTPStatus
}
_prefixes: dict[tuple[int, bytes], bytes] = {}


def encode(status: int, body: Body, content_type: bytes, extra: bytes, *, head_only: bool) -> list[bytes | memoryview]:
    """Return the buffers of one answer. `extra` holds whole header lines, each with its line end."""
    prefix = _prefixes.get((status, content_type)) or _prefix(status, content_type)
    if type(body) is bytes:
        size = len(body)
        if size <= _JOIN_BYTES and not head_only:
            return [b"%b%d\r\n%b\r\n%b" % (prefix, size, extra, body)]
        parts: list[bytes | memoryview] = [body]
    else:
        pieces = cast(Sequence[bytes | memoryview], body)
        parts = [memoryview(part).cast("B") for part in pieces if memoryview(part).nbytes]
        size = sum(map(len, parts))
    head = b"%b%d\r\n%b\r\n" % (prefix, size, extra)
    if head_only:
        return [head]
    return [b"".join((head, *parts))] if size <= _JOIN_BYTES else [head, *parts]


def stream_head(content_type: bytes, extra: bytes) -> bytes:
    """Return the head of an answer without a length; `extra` says how its end is found."""
    return b"%b%b\r\nCache-Control: no-store\r\n%b\r\n" % (_STATUS_LINES[200], content_type, extra)


def error_body(error: HybridError) -> bytes:
    """Return the JSON body that every error answer has: `{"error": message, "code": stable name}`."""
    message = str(error).encode("utf-8", "replace").decode()  # a lone surrogate must not break the answer
    return msgspec.json.encode({"error": message, "code": error.code})


def error_headers(error: HybridError) -> bytes:
    """Return the header lines that an error asks for."""
    return "".join(f"{name}: {value}\r\n" for name, value in error.headers.items()).encode("latin-1", "replace")


def _prefix(status: int, content_type: bytes) -> bytes:
    prefix = _STATUS_LINES[status] + content_type + b"\r\nContent-Length: "
    if len(_prefixes) < _MAX_PREFIXES:
        _prefixes[status, content_type] = prefix
    return prefix
