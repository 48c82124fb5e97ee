"""A real `HttpServer` on a uvloop thread, for tests with blocking client sockets."""

import asyncio
import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvloop

from hybrid.config import HttpLimits, TlsFiles
from hybrid.frontend.http import Exchange, HttpServer


class Serving:
    """Runs a server; `waiting` holds the exchanges when no handler is given."""

    def __init__(self, handler: Callable[[Exchange], None] | None, limits: HttpLimits) -> None:
        self.waiting: list[Exchange] = []
        self.server = HttpServer(handler or self.waiting.append, limits)
        self.loop = uvloop.new_event_loop()
        self.port = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def run(self, coroutine: Any) -> Any:
        """Run a coroutine on the server's loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run a function on the server's loop and wait for it."""

        async def call() -> Any:
            return function()

        return self.run(call())

    def start(self, host: str = "127.0.0.1", port: int = 0, tls: TlsFiles | None = None) -> int:
        self.port = self.run(self.server.start(host, port, tls))
        return self.port

    def stop(self) -> None:
        self.run(self.server.close(0.0))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        assert not self._thread.is_alive()

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock

    def wait_waiting(self, count: int) -> None:
        wait_until(lambda: len(self.waiting) >= count)

    def answer(self, index: int, body: bytes = b"late") -> None:
        self.call(lambda: self.waiting[index].reply(200, body))


@contextlib.contextmanager
def serving(
    handler: Callable[[Exchange], None] | None = None, *, start: bool = True, **limits: Any
) -> Iterator[Serving]:
    """Yield a running server; nothing of it is left afterwards."""
    service = Serving(handler, HttpLimits(**limits))
    try:
        if start:
            service.start()
        yield service
    finally:
        service.stop()


def echo(exchange: Exchange) -> None:
    exchange.reply(200, exchange.path.encode() + b" " + exchange.body, b"text/plain")


def read_all(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    data = b""
    while piece := sock.recv(65536):
        data += piece
    return data


def read_answer(sock: socket.socket) -> tuple[int, bytes, bytes]:
    """One answer with a length: status, head, body."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = sock.recv(65536)
        assert piece, f"closed after {data!r}"
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ", 2)[1])
    if status == 100:
        assert not body
        return status, head, b""
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < size:
        piece = sock.recv(65536)
        assert piece, "closed within the body"
        body += piece
    assert len(body) == size
    return status, head, body


def reset(sock: socket.socket) -> None:
    """Close with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> float:
    """Wait for a condition; returns the seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < timeout_s, "did not happen in time"
        time.sleep(0.001)
    return time.monotonic() - start
