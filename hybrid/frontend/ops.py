"""What operators and scrapers read: metrics, snapshot, stream, plan. All under the same keys as inference."""

import asyncio
from collections.abc import Callable
from typing import Final

from hybrid.errors import MethodNotAllowed, NotReady
from hybrid.frontend.exchange import Exchange, StreamWriter

_PROMETHEUS: Final = b"text/plain; version=0.0.4; charset=utf-8"
_EVENTS: Final = b"text/event-stream"
_MAX_STREAMS: Final = 16


class Operations:
    """Answers the operations paths from three functions that the application hands in."""

    def __init__(
        self,
        snapshot: Callable[[], bytes],
        metrics: Callable[[], bytes],
        plan: Callable[[], bytes],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._snapshot = snapshot
        self._metrics = metrics
        self._plan = plan
        self._loop = loop
        self._streams: set[StreamWriter] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def handle(self, exchange: Exchange, segments: list[str]) -> bool:
        """Answer if the path is one of ours; return whether it was.

        Raises:
            MethodNotAllowed: not a GET.
            NotReady: too many streams are open, or the server is stopping.
        """
        path = "/".join(segments)
        if path not in ("metrics", "hybrid/v1/snapshot", "hybrid/v1/plan", "hybrid/v1/stream"):
            return False
        if exchange.method not in ("GET", "HEAD"):
            allow = "GET, POST" if path == "hybrid/v1/plan" else "GET"  # a POST of a plan is not ours
            raise MethodNotAllowed(f"/{path} takes {allow}, got {exchange.method[:20]}", allow)
        if path == "metrics":
            exchange.reply(200, self._metrics(), _PROMETHEUS)
        elif path == "hybrid/v1/snapshot":
            exchange.reply(200, self._snapshot())
        elif path == "hybrid/v1/plan":
            exchange.reply(200, self._plan())
        else:
            self._stream(exchange)
        return True

    def close(self) -> None:
        """End every open stream and begin none: it would last until the server may drain no longer."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for stream in list(self._streams):
            stream.close()
        self._streams.clear()

    def _stream(self, exchange: Exchange) -> None:
        if self._closed:
            raise NotReady("the server is draining and begins no stream")
        if len(self._streams) >= _MAX_STREAMS:
            raise NotReady(f"{_MAX_STREAMS} streams are open already")
        writer = exchange.start_stream(_EVENTS)
        if writer.closed:
            return
        writer.on_close = lambda: self._streams.discard(writer)
        self._streams.add(writer)
        writer.write(_event(self._snapshot()))
        if self._timer is None:
            self._timer = self._loop.call_later(1.0, self._tick)

    def _tick(self) -> None:
        """Build one Snapshot for all listeners; none is built while nobody listens."""
        self._timer = None
        if not self._streams:
            return
        event = _event(self._snapshot())
        for writer in list(self._streams):
            writer.write(event)
        self._timer = self._loop.call_later(1.0, self._tick)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"
