"""What all connections of one HTTP server share. The server owns it; connections read the limits and count in it."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from hybrid.config import HttpLimits
from hybrid.frontend.exchange import Exchange

if TYPE_CHECKING:
    from hybrid.frontend.connection import Connection

Handler = Callable[[Exchange], None]


class Shared:
    """Handler, limits, clock, the live connections and the counters of `HttpStats`.

    `now` is the clock as of the last sweep: precise enough for limits of seconds, and free to read.
    """

    def __init__(self, handler: Handler, limits: HttpLimits, clock: Callable[[], float]) -> None:
        self.handler = handler
        self.limits = limits
        self.clock = clock
        self.now = clock()
        self.max_connections = limits.max_connections  # less when the process may not open so many files
        self.draining = False
        self.connections: set[Connection] = set()
        self.overload: set[Connection] = set()  # over max_connections, being told so
        self.watch_half_closed: Callable[[Connection], None] = lambda connection: None
        self.inflight = 0
        self.body_bytes = 0
        self.requests_n = 0
        self.refused_connections_n = 0
        self.timeouts_n = 0
        self.disconnects_n = 0
        self.bad_requests_n = 0
