"""A client of a `Connection` without sockets: bytes in, bytes out, a clock that moves by hand."""

import asyncio
from collections.abc import Callable
from typing import Any

from hybrid.clock import ManualClock
from hybrid.config import HttpLimits
from hybrid.frontend.connection import Connection
from hybrid.frontend.http import Exchange, HttpServer


class FakeTransport(asyncio.Transport):
    """Records what the connection does with it. `unsent` stands for bytes that the client does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.unsent = 0
        self.closed = self.aborted = self.eof = self.paused = False
        self.extra: dict[str, Any] = {"peername": ("127.0.0.1", 5555)}
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert not self.is_closing()
        self.protocol = protocol

    def receive(self, data: bytes) -> None:
        """Hand bytes to the protocol as an event loop does, which asks some for memory to put them into."""
        while data and isinstance(self.protocol, asyncio.BufferedProtocol) and not self.is_closing():
            room = memoryview(self.protocol.get_buffer(-1))
            size = min(len(room), len(data))
            assert size
            room[:size] = data[:size]
            data = data[size:]
            self.protocol.buffer_updated(size)
        if data and not self.is_closing():
            assert isinstance(self.protocol, asyncio.Protocol)
            self.protocol.data_received(data)

    def write(self, data: Any) -> None:
        assert not self.eof, "write after write_eof"
        assert not self.closed, "write after close"
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.eof = True

    def pause_reading(self) -> None:
        assert not self.paused
        self.paused = True

    def resume_reading(self) -> None:
        assert self.paused
        self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.extra.get(name, default)


class Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


def parse_responses(data: bytes, *, head: bool = False) -> list[Response]:
    """Strictly parse a sequence of answers; fails on anything left over."""
    responses = []
    while data:
        top, found, data = data.partition(b"\r\n\r\n")
        assert found, f"no end of headers in {top!r}"
        first, *lines = top.decode("ascii").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version == "HTTP/1.1"
        pairs = [line.split(": ", 1) for line in lines]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), f"repeated header in {lines}"
        body = b""
        if int(status) >= 200 and not head:
            if headers.get("transfer-encoding") == "chunked":
                body, data = _dechunk(data)
            elif "content-length" in headers:
                size = int(headers["content-length"])
                body, data = data[:size], data[size:]
                assert len(body) == size, "cut body"
            else:
                body, data = data, b""
        responses.append(Response(int(status), headers, body))
    return responses


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    body = b""
    while True:
        size, found, data = data.partition(b"\r\n")
        assert found
        count = int(size, 16)
        body += data[:count]
        assert data[count : count + 2] == b"\r\n"
        data = data[count + 2 :]
        if not count:
            return body, data


def echo(exchange: Exchange) -> None:
    exchange.reply(200, b"%b %b" % (exchange.path.encode(), exchange.body), b"text/plain")


class Client:
    """One connection of a server. Without a handler the exchanges are kept in `waiting`."""

    def __init__(
        self,
        handler: Callable[[Exchange], None] | None = None,
        *,
        server: HttpServer | None = None,
        clock: ManualClock | None = None,
        **limits: Any,
    ) -> None:
        self.waiting: list[Exchange] = []
        self.clock = clock or ManualClock()
        self.server = server or HttpServer(handler or self.waiting.append, HttpLimits(**limits), self.clock)
        self.transport = FakeTransport()
        self.connection = Connection(self.server._shared)
        self.transport.protocol = self.connection
        self.connection.connection_made(self.transport)

    def send(self, *data: bytes) -> "Client":
        for piece in data:
            if not self.transport.is_closing():
                self.transport.receive(piece)
        return self

    def tick(self, seconds: float) -> "Client":
        """Let time pass, a sweep every quarter second at most."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.advance(min(0.25, end - self.clock.now))
            self.server.sweep()
        return self

    def lose(self, error: Exception | None = None) -> None:
        self.transport.aborted = True
        self.connection.connection_lost(error)

    @property
    def sent(self) -> bytes:
        return b"".join(self.transport.writes)

    @property
    def responses(self) -> list[Response]:
        return parse_responses(self.sent)

    @property
    def statuses(self) -> list[int]:
        return [response.status for response in self.responses]

    @property
    def lingers(self) -> bool:
        return self.transport.eof and not self.transport.is_closing()


def get(path: str = "/", *headers: str, version: str = "1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", "Host: h", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def post(body: bytes, *headers: str, path: str = "/p") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def chunked(*chunks: bytes, headers: tuple[str, ...] = (), trailers: bytes = b"", path: str = "/c") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: h", "Transfer-Encoding: chunked", *headers]
    head = "\r\n".join([*lines, "", ""]).encode("latin-1")
    return head + b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in chunks) + b"0\r\n" + trailers + b"\r\n"
