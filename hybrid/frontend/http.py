"""The HTTP/1.1 server: listens, keeps its connections in time, drains and closes.

Own code instead of a web framework because time per request is what the project is for: a protocol on the C parser,
no task, future or timer per request. Knows HTTP and sockets; must never know models or batches.
"""

import asyncio
import logging
import time
from collections.abc import Callable

from msgspec import Struct

from hybrid.config import HttpLimits, TlsFiles
from hybrid.frontend.connection import NEW_S, Connection
from hybrid.frontend.exchange import Exchange, StreamWriter
from hybrid.frontend.halfclosed import Watcher
from hybrid.frontend.heap import keep_freed_memory
from hybrid.frontend.listen import Listener, affordable_connections, listening_sockets, tls_context
from hybrid.frontend.reply import error_body
from hybrid.frontend.shared import Handler, Shared

__all__ = ["Exchange", "Handler", "HttpServer", "HttpStats", "StreamWriter", "error_body"]

log = logging.getLogger(__name__)

_SWEEP_S = 0.25
_REFUSAL_LOG_S = 10.0
#: At drain, requests that are already in the kernel's buffers of idle connections get this long to be read.
_DRAIN_GRACE_S = 0.02


class StatusCount(Struct, frozen=True):
    """How many answers had this status code."""

    status: int
    n: int


class HttpStats(Struct, frozen=True):
    """Counts of the HTTP server: `_n` are totals since the start, the others are now.

    `responses` has one entry per status code that was sent.
    """

    connections: int
    inflight: int
    body_bytes: int
    requests_n: int
    responses: tuple[StatusCount, ...]
    received_bytes_n: int
    sent_bytes_n: int
    accepted_connections_n: int
    refused_connections_n: int
    refused_bodies_n: int
    timeouts_n: int
    disconnects_n: int
    bad_requests_n: int


class HttpServer:
    """Serves `handler`, which is called with every complete request and must answer it, now or later.

    Args:
        handler: Synchronous. An error of hybrid's tree that it raises becomes the answer, any other a 500.
        limits: What is tolerated from clients.
        clock: Monotonic seconds.
    """

    def __init__(self, handler: Handler, limits: HttpLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._shared = Shared(handler, limits, clock)
        self._watcher = Watcher()
        self._shared.watch_half_closed = self._watcher.watch
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._logged_connections_n = self._logged_bodies_n = 0
        self._refusals_logged_at = float("-inf")

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen on every address of `host` and return the real port.

        Raises:
            StartupError: With one line that says what is wrong with host, port or certificate.
        """
        context = tls_context(tls) if tls is not None else None
        keep_freed_memory()
        shared = self._shared
        sockets = await listening_sockets(host, port)
        real_port = int(sockets[0].getsockname()[1])
        shared.max_connections = affordable_connections(shared.limits.max_connections)
        if shared.max_connections < shared.limits.max_connections:
            log.warning("max_connections is %d: the limit of open files allows no more", shared.max_connections)
        for sock in sockets:
            listener = Listener(sock, lambda: Connection(shared))
            self._listeners.append(listener)
            await listener.open(context, shared.limits.header_timeout_s)
        self._loop = asyncio.get_running_loop()
        shared.call_soon = self._loop.call_soon
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        return real_port

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    def begin_drain(self) -> None:
        """From now on the last answer of every connection says Connection: close; idle connections are closed."""
        self._shared.draining = True
        if self._loop is not None:
            self._loop.call_later(_DRAIN_GRACE_S, self._close_idle)
            self._loop.call_later(_DRAIN_GRACE_S + NEW_S, self._close_idle)

    def unread(self) -> int:
        """How many clients have not read the last answer yet; closing now would cut it."""
        return sum(connection.wire.unread for connection in self._shared.connections)

    async def close(self, timeout_s: float) -> int:
        """Drain, wait for the open requests, then drop the rest. Returns how many requests were dropped."""
        self.stop_accepting()
        self.begin_drain()
        shared = self._shared
        for connection in list(shared.connections):
            connection.end_streams()
        ends_at = shared.clock() + timeout_s
        # Polled, because an event would have to be set on the hot path.
        while any(connection.busy for connection in shared.connections) and shared.clock() < ends_at:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        aborted = shared.inflight
        for connection in [*shared.connections, *shared.overload]:
            connection.abort()
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._watcher.stop()
        await asyncio.sleep(0)  # lets the event loop report the lost connections
        await asyncio.sleep(0)
        return aborted

    def hold(self, nbytes: int) -> None:
        """Count a message of another front end among the bodies, until it is let go.

        Raises:
            NotReady: All together would be more than `max_buffered_bytes`; it is not counted then.
        """
        if not self._shared.has_room(nbytes):
            raise self._shared.refuse_body()
        self._shared.body_bytes += nbytes

    def let_go(self, nbytes: int) -> None:
        """Such a message is done with."""
        self._shared.body_bytes -= nbytes

    def stats(self) -> HttpStats:
        """Return the counts."""
        shared = self._shared
        return HttpStats(
            connections=len(shared.connections),
            inflight=shared.inflight,
            body_bytes=shared.body_bytes,
            requests_n=shared.requests_n,
            responses=tuple(StatusCount(status, n) for status, n in enumerate(shared.responses_n) if n),
            received_bytes_n=shared.traffic.received_bytes_n,
            sent_bytes_n=shared.traffic.sent_bytes_n,
            accepted_connections_n=shared.accepted_connections_n,
            refused_bodies_n=shared.refused_bodies_n,
            refused_connections_n=shared.refused_connections_n,
            timeouts_n=shared.timeouts_n,
            disconnects_n=shared.disconnects_n,
            bad_requests_n=shared.bad_requests_n,
        )

    def sweep(self) -> None:
        """Look at the deadlines of all connections. One timer for all is why a request costs none."""
        shared = self._shared
        now = shared.now = shared.clock()
        for connections in (shared.connections, shared.overload):
            for connection in [c for c in connections if c.deadline <= now]:
                connection.expire(now)
        if now - self._refusals_logged_at >= _REFUSAL_LOG_S:
            self._log_refusals(now)

    def _sweep(self) -> None:
        assert self._loop is not None
        self._sweeper = self._loop.call_later(_SWEEP_S, self._sweep)
        self.sweep()
        for listener in self._listeners:
            listener.revive()

    def _log_refusals(self, now: float) -> None:
        shared = self._shared
        connections_n = shared.refused_connections_n - self._logged_connections_n
        bodies_n = shared.refused_bodies_n - self._logged_bodies_n
        if connections_n:
            log.warning("refused %d connections: max_connections is %d", connections_n, shared.max_connections)
        if bodies_n:
            log.warning("refused %d bodies: max_buffered_bytes is %d", bodies_n, shared.limits.max_buffered_bytes)
        if connections_n or bodies_n:
            self._logged_connections_n += connections_n
            self._logged_bodies_n += bodies_n
            self._refusals_logged_at = now

    def _close_idle(self) -> None:
        for connection in list(self._shared.connections):
            connection.close_if_idle()
