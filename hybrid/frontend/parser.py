"""Bytes of one connection to complete requests: HTTP/1.1 framing on top of llhttp, with every limit.

A request is refused whenever two parties could read its framing differently. llhttp in its strict default finds most
of that (both lengths, repeated lengths, folded lines, bare line feeds, control characters, bad chunk sizes); the rest
is in here. Must never know sockets, timers or who answers.
"""

import logging
from collections.abc import Callable
from typing import Final

import httptools

from hybrid.config import HttpLimits
from hybrid.errors import BadRequest, ExpectationFailed, HeadersTooLarge, HybridError, MethodNotAllowed, TooLarge
from hybrid.frontend.body import BodyReader, LargeBody, Receiving, coding_of
from hybrid.frontend.exchange import Exchange, Sink

log = logging.getLogger(__name__)

# Where the parser is. Plain ints: they are compared several times per request.
IDLE: Final = 0  # between requests
HEAD: Final = 1  # inside a request line or headers
BODY: Final = 2  # inside a body
DROP: Final = 3  # no more requests will be read

#: How much to parse at once: it bounds what one call may hand out beyond `max_pipelined`, and what it may inflate to
#: is a thousand times as much. A head mostly fits into the first, so a compressed body is known before the second.
_FIRST_SLICE: Final = 4 * 1024
_SLICE: Final = 16 * 1024
_PACKED_SLICE: Final = 1024
#: Bodies of which so much is missing are received in place: below, one more copy costs less than changing over.
_LARGE: Final = 64 * 1024
#: Framing bytes allowed per body byte of a chunked request (one-byte chunks need 5): chunk extensions are unbounded.
_CHUNK_OVERHEAD: Final = 16
#: Headers that must not be repeated: two parties could believe different ones.
_SINGLE: Final = frozenset(
    (b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization", b"expect")
)
_METHODS: Final = {name.encode(): name for name in ("GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH")}


class _Stopped(Exception):
    """The connection was closed by the answer to an earlier request of the same segment."""


class RequestParser:
    """Parses what one client sends and hands each complete request to `emit`.

    `phase` tells where it stands, `started_at` when the current phase began, `held_bytes` how much of an unfinished
    body it keeps, `wants_continue` that the client waits for "100 Continue", `unpacked_bytes` how much of all bodies
    that came compressed was inflated.
    """

    __slots__ = (
        "_body", "_chunked", "_emit", "_fed", "_head_bytes", "_head_count", "_headers", "_http10", "_large", "_limits",
        "_max_head_bytes", "_max_head_count", "_parser", "_raw_bytes", "_reader", "_received_at", "_receiving", "_sink",
        "_upgrade", "_url", "held_bytes", "now", "phase", "started_at", "unpacked_bytes", "wants_continue",
    )  # fmt: skip

    def __init__(self, limits: HttpLimits, sink: Sink, emit: Callable[[Exchange], None], receiving: Receiving) -> None:
        self._limits = limits
        self._max_head_bytes = limits.max_header_bytes
        self._max_head_count = limits.max_header_count
        self._sink = sink
        self._emit = emit
        self._receiving = receiving
        self.now = 0.0
        self.held_bytes = self.unpacked_bytes = 0
        self._upgrade = False
        self._reader: BodyReader | None = None
        self._large: LargeBody | None = None  # beside the C parser, which is left standing inside this body
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self.phase = IDLE
        self.on_message_begin()
        self.phase = IDLE

    def feed(self, data: bytes | memoryview, now: float) -> HybridError | None:
        """Parse the next bytes, received at `now`. Returns the error that ends this connection, if any."""
        self.now = now
        if self._large is not None:
            missing = self._large.missing
            self._large.add(data[:missing])
            self._go_on_with_large(min(missing, len(data)))
            data = data[missing:]
            if not data:
                return None
        if self.phase:
            self._fed += len(data)
        while self._parser is not None and self.phase != DROP:
            try:
                self._parser.feed_data(data)
            except httptools.HttpParserUpgrade as stop:
                data = data[stop.args[0] :]
                self._go_on_after_upgrade()
                continue
            except httptools.HttpParserError as error:
                if self.phase == DROP and isinstance(error.__context__, _Stopped | None):
                    break  # bytes behind a request that asked to close, or after which we closed
                return self._end(_cause(error))
            return self._check_unfinished() if self.phase else None
        return None

    @property
    def room(self) -> memoryview | None:
        """Where the next bytes of a large body belong, None while there is none."""
        return None if self._large is None else self._large.room

    def filled(self, size: int, now: float) -> None:
        """So many bytes, received at `now`, were written into `room`."""
        assert self._large is not None
        self.now = now
        self._large.filled(size)
        self._go_on_with_large(size)

    @property
    def slice_bytes(self) -> int:
        """How many bytes to feed next, so that no call takes long."""
        if self.phase != BODY:
            return _FIRST_SLICE
        if self._large is not None:
            return len(self._large.room)
        return _PACKED_SLICE if self._reader is not None and self._reader.packed else _SLICE

    @property
    def missing_bytes(self) -> int:
        """How much of an unfinished body has not come yet; 0 when its length was not declared."""
        return max(0, int(self._headers.get(b"content-length", b"0")) - self._raw_bytes)

    def refusal(self, error: HybridError) -> Exchange:
        """Return an exchange that answers the unfinished request with `error`; nothing more will be read."""
        self._end(error)
        exchange = Exchange(self._sink, "", "", {}, b"", self._received_at, self.now)
        exchange.close_after = True
        exchange.refusal = error
        return exchange

    def close(self) -> None:
        """Forget everything and break the reference cycle with the C parser."""
        self._parser = None
        self._reader = self._large = None
        self.phase = DROP
        self.held_bytes = 0
        self._body = b""

    # Callbacks of the C parser, in the order in which they come.

    def on_message_begin(self) -> None:
        """The first byte of a request line."""
        if self.phase == DROP:
            raise _Stopped
        self.phase = HEAD
        self.started_at = self._received_at = self.now
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = self._head_count = self._fed = self._raw_bytes = 0
        self._body = b""
        self._reader = None
        self._chunked = False
        self.wants_continue = False

    def on_url(self, piece: bytes) -> None:
        """A piece of the request target."""
        self._url = self._url + piece if self._url else piece
        self._head_bytes += len(piece)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A complete header, or a trailer behind a chunked body: that is counted and dropped."""
        self._head_count += 1
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > self._max_head_bytes or self._head_count > self._max_head_count:
            raise self._head_too_large()
        if self.phase == HEAD:
            name = name.lower()
            value = value.rstrip(b" \t")
            if name in self._headers:
                if name in _SINGLE:
                    raise BadRequest(f"header {name.decode('latin-1')}: expected once, got it twice")
                value = self._headers[name] + b", " + value
            self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The empty line: everything that can be refused without the body is refused here."""
        headers = self._headers
        assert self._parser is not None
        version = self._parser.get_http_version()
        self._http10 = version == "1.0"
        if self._head_bytes > self._max_head_bytes:
            raise self._head_too_large()
        if b"host" not in headers and not self._http10:
            raise BadRequest("header host: missing")
        if b"content-length" in headers:
            length = int(headers[b"content-length"])
            if length > self._limits.max_body_bytes:
                raise TooLarge(f"body: expected at most {self._limits.max_body_bytes} bytes, got {length}")
        elif b"transfer-encoding" in headers:
            self._check_transfer_encoding(headers[b"transfer-encoding"])
        if b"content-encoding" in headers:
            coding = coding_of(headers[b"content-encoding"])
            if coding is not None:
                self._reader = BodyReader(self._limits.max_body_bytes, coding)
        if b"expect" in headers:
            self._check_expect(headers[b"expect"])
        if self._parser.should_upgrade():
            self._check_upgrade()
        if version not in ("1.1", "1.0"):
            raise BadRequest(f"HTTP version: expected 1.1 or 1.0, got {version}")
        self.phase = BODY
        self.started_at = self.now
        self._fed = 0

    def on_body(self, piece: bytes) -> None:
        """A piece of the body, with chunk framing already taken away."""
        self._raw_bytes += len(piece)
        reader = self._reader
        if reader is None:
            if not self._body and len(piece) <= self._limits.max_body_bytes:
                self._body = piece
                self.held_bytes = len(piece)
                return
            reader = self._reader = BodyReader(self._limits.max_body_bytes)
            reader.add(self._body)
        before = reader.size
        reader.add(piece)
        self.held_bytes = reader.size
        if reader.packed:
            self.unpacked_bytes += reader.size - before

    def on_message_complete(self) -> None:
        """The end of a request."""
        if self._upgrade:
            return
        assert self._parser is not None
        self._complete(self._parser, self._body if self._reader is None else self._reader.finish())

    def _complete(self, parser: httptools.HttpRequestParser, body: bytes | memoryview) -> None:
        name = parser.get_method()
        method = _METHODS.get(name) or name.decode()
        received_at, now = self._received_at, self.now
        exchange = Exchange(self._sink, method, self._target(), self._headers, body, received_at, now)
        exchange.http10 = self._http10
        self._body = b""
        self._reader = None
        self.held_bytes = 0
        self.wants_continue = False
        if parser.should_keep_alive():
            self.phase = IDLE
        else:
            self.phase = DROP
            exchange.close_after = True
        self._emit(exchange)

    def _target(self) -> str:
        """The request target in origin form; a proxy may send it with scheme and host in front."""
        target = self._url.decode("latin-1")
        if target.startswith(("http://", "https://")):
            _, slash, rest = target.partition("://")[2].partition("/")
            return slash + rest or "/"
        return target

    def _check_transfer_encoding(self, value: bytes) -> None:
        # llhttp takes "gzip, chunked" as chunked and would hand out the compressed bytes as the body.
        if self._http10 or value.lower() != b"chunked":
            raise BadRequest(
                f"header transfer-encoding: expected chunked on HTTP/1.1, got {value[:60].decode('latin-1')!r}"
            )
        self._chunked = True

    def _check_expect(self, value: bytes) -> None:
        if self._http10:
            return
        if value.lower() != b"100-continue":
            raise ExpectationFailed(f"header expect: expected 100-continue, got {value[:60].decode('latin-1')!r}")
        self.wants_continue = True

    def _check_upgrade(self) -> None:
        assert self._parser is not None
        if self._parser.get_method() == b"CONNECT":
            raise MethodNotAllowed("CONNECT: this server is not a proxy", allow="GET, HEAD, POST")
        # llhttp stops behind the head of such a request. With a body it must be read by a second parser.
        self._upgrade = self._chunked or int(self._headers.get(b"content-length", b"0")) > 0

    def _go_on_after_upgrade(self) -> None:
        """Ignore an Upgrade, as the standard allows (Java's HTTP client offers h2c with every first request).

        The body still has to be read: a new parser gets a head with the same framing, without the Upgrade.
        """
        old = self._parser
        self._parser = httptools.HttpRequestParser(self)
        if not self._upgrade or old is None:
            return
        self._upgrade = False
        kept = self._headers, self._url, self._received_at, self.wants_continue
        head = [old.get_method() + b" / HTTP/1.1\r\nhost: -"]
        names = (b"content-length", b"transfer-encoding", b"content-encoding")
        head += [name + b": " + kept[0][name] for name in names if name in kept[0]]
        if b"close" in kept[0].get(b"connection", b"").lower():
            head.append(b"connection: close")
        self._parser.feed_data(b"\r\n".join(head) + b"\r\n\r\n")
        self._headers, self._url, self._received_at, self.wants_continue = kept

    def _check_unfinished(self) -> HybridError | None:
        """Bound what the C parser may swallow without a callback: a header without end, chunk extensions."""
        if self.phase == HEAD and self._fed > self._limits.max_header_bytes:
            return self._end(self._head_too_large())
        if self._chunked and self._fed > _CHUNK_OVERHEAD * self._raw_bytes + self._limits.max_header_bytes:
            return self._end(BadRequest("body: chunk extensions are too long"))
        if self.phase == BODY and self._reader is None and self.missing_bytes >= _LARGE:
            self._receive_in_place()
        return None

    def _receive_in_place(self) -> None:
        try:
            self._large = LargeBody(self._raw_bytes + self.missing_bytes, self._body, self._receiving)
        except (OSError, MemoryError):
            return  # piece by piece it may still fit
        self._body = b""

    def _go_on_with_large(self, size: int) -> None:
        """Take note of more bytes of a large body; with the last of them the request is complete."""
        large, parser = self._large, self._parser
        assert large is not None
        assert parser is not None
        self._raw_bytes += size
        self.held_bytes = self._raw_bytes
        if not large.missing:
            self._large = None
            # The old one still waits for this body and cannot be told that it has come.
            self._parser = httptools.HttpRequestParser(self)
            self._complete(parser, large.finish())

    def _head_too_large(self) -> HybridError:
        return HeadersTooLarge(
            f"headers: expected at most {self._limits.max_header_bytes} bytes"
            f" in {self._limits.max_header_count} fields, got more"
        )

    def _end(self, error: HybridError) -> HybridError:
        self.phase = DROP
        self.held_bytes = 0
        self._body = b""
        self._reader = self._large = None
        return error


def _cause(error: httptools.HttpParserError) -> HybridError:
    """The error that one of our callbacks raised, or what llhttp did not like."""
    cause = error.__context__
    if isinstance(cause, HybridError):
        return cause
    if cause is None:
        return BadRequest(f"malformed HTTP request: {error}")
    log.error("HTTP parser callback failed: this is a bug", exc_info=cause)
    return HybridError("internal error")
