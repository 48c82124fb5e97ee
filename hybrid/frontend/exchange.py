"""One request and the duty to answer it, and the writer of an answer that comes in pieces.

What a handler sees of HTTP. Must never know sockets or the order in which answers leave: the sink does.
"""

import logging
from collections.abc import Callable
from typing import Protocol

from hybrid.errors import HybridError, MethodNotAllowed
from hybrid.frontend import reply
from hybrid.frontend.reply import Body

log = logging.getLogger(__name__)


class Sink(Protocol):
    """What an exchange needs of its connection."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    def answered(self, exchange: "Exchange") -> None:
        """The exchange got its `answer`."""

    def begin_stream(self, exchange: "Exchange", head: bytes, *, last: bool) -> None:
        """Send the head of an answer in parts; `last` when there are none."""

    def stream(self, exchange: "Exchange", data: bytes, *, last: bool) -> None:
        """Send a part of an answer; `last` ends it."""


class Exchange:
    """One complete request. Exactly one of `reply`, `fail` and `start_stream` must be called, now or later.

    `path` is raw, without the query; header names are lower case, repeated ones are joined. Times are monotonic
    seconds. `on_disconnect` is called once if the client leaves before it got its answer; `disconnected` is then true
    and an answer is dropped.
    """

    __slots__ = (
        "_sink",
        "answer",
        "body",
        "close_after",
        "complete_at",
        "disconnected",
        "done",
        "headers",
        "http10",
        "method",
        "on_disconnect",
        "path",
        "query",
        "received_at",
        "refusal",
        "replied",
        "streaming",
    )

    def __init__(
        self,
        sink: Sink,
        method: str,
        target: str,
        headers: dict[bytes, bytes],
        body: bytes | memoryview,
        received_at: float,
        complete_at: float,
    ) -> None:
        self._sink = sink
        self.method = method
        self.path, _, self.query = target.partition("?")
        self.headers = headers
        self.body = body
        self.received_at = received_at
        self.complete_at = complete_at
        self.on_disconnect: Callable[[], None] | None = None
        self.replied = False
        self.disconnected = False
        # The rest is for the connection: what to send once it is this exchange's turn, and how.
        self.answer: tuple[int, Body, bytes, bytes] | None = None
        self.streaming: list[bytes] | None = None  # pieces that wait for this exchange's turn
        self.done = False
        self.close_after = False
        self.http10 = False
        self.refusal: HybridError | None = None

    @property
    def peer(self) -> str:
        """Address of the client as host:port."""
        return self._sink.peer

    def expect(self, method: str) -> None:
        """Check the method; HEAD is as good as GET.

        Raises:
            MethodNotAllowed: It is another one.
        """
        if self.method != method and not (method == "GET" and self.method == "HEAD"):
            raise MethodNotAllowed(f"{self.path[:200]} takes {method}, got {self.method[:20]}", allow=method)

    def give_to(self, handler: "Callable[[Exchange], None]") -> None:
        """Call whoever answers it; what that raises becomes the answer."""
        try:
            handler(self)
        except HybridError as error:
            if not self.replied:
                self.fail(error)
        except Exception:
            log.exception("handler failed on %s %s", self.method, self.path)
            if not self.replied:
                self.fail(HybridError("internal error"))

    def reply(self, status: int, body: Body, content_type: bytes = reply.JSON, extra: bytes = b"") -> None:
        """Answer. Dropped silently when the client has left.

        Args:
            status: HTTP status.
            body: Bytes, or buffers that follow each other and do not change until they are sent.
            content_type: Value of Content-Type.
            extra: Further encoded header lines, each ended by CR LF.

        Raises:
            RuntimeError: The request was answered before.
        """
        if self.replied:
            raise RuntimeError(f"{self.method} {self.path} was answered twice: this is a bug")
        self.replied = True
        if not self.disconnected:
            self.answer = (status, body, content_type, extra)
            self._sink.answered(self)

    def fail(self, error: HybridError) -> None:
        """Answer with the status, headers and JSON body of an error."""
        self.reply(error.status, reply.error_body(error), extra=reply.error_headers(error))

    def say_disconnected(self) -> None:
        """Tell whoever works on the answer that nobody waits for it any more."""
        if self.on_disconnect is None:
            return
        try:
            self.on_disconnect()
        except Exception:
            log.exception("on_disconnect failed for %s %s", self.method, self.path)

    def start_stream(self, content_type: bytes) -> "StreamWriter":
        """Begin an answer of unknown length (status 200), for example server-sent events.

        Raises:
            RuntimeError: The request was answered before.
        """
        if self.replied:
            raise RuntimeError(f"{self.method} {self.path} was answered twice: this is a bug")
        self.replied = True
        return StreamWriter(self, self._sink, content_type)


class StreamWriter:
    """Writes an answer piece by piece, chunked (HTTP/1.0: until the connection closes).

    `on_close` is called once when the stream ends without `close()` being called: the client left, did not read, or
    the server stops. Writes after the end are dropped.
    """

    __slots__ = ("_bare", "_exchange", "_sink", "closed", "on_close")

    def __init__(self, exchange: Exchange, sink: Sink, content_type: bytes) -> None:
        self._exchange = exchange
        self._sink = sink
        self._bare = exchange.http10
        self.on_close: Callable[[], None] | None = None
        self.closed = exchange.disconnected
        if self.closed:
            return
        exchange.streaming = []
        exchange.on_disconnect = self._lost
        if self._bare:
            exchange.close_after = True
        framing = reply.CLOSE if self._bare else b"Transfer-Encoding: chunked\r\n"
        if exchange.close_after and not self._bare:
            framing += reply.CLOSE
        head_only = exchange.method == "HEAD"
        self.closed = head_only
        sink.begin_stream(exchange, reply.stream_head(content_type, framing), last=head_only)

    def write(self, data: bytes) -> None:
        """Send one piece now."""
        if data and not self.closed:
            piece = data if self._bare else b"%x\r\n%b\r\n" % (len(data), data)
            self._sink.stream(self._exchange, piece, last=False)

    def close(self) -> None:
        """End the answer properly. May be called again."""
        if not self.closed:
            self.closed = True
            self._sink.stream(self._exchange, b"" if self._bare else reply.LAST_CHUNK, last=True)

    def _lost(self) -> None:
        if not self.closed:
            self.closed = True
            if self.on_close is not None:
                self.on_close()
