"""What all connections of one HTTP server share. The server owns it; connections read the limits and count in it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from hybrid.config import HttpLimits
from hybrid.errors import NotReady
from hybrid.frontend.body import Receiving
from hybrid.frontend.exchange import Exchange
from hybrid.frontend.wire import Traffic

if TYPE_CHECKING:
    from hybrid.frontend.connection import Connection

Handler = Callable[[Exchange], None]

_STATUSES: Final = 600
_MAX_OVERLOAD: Final = 256


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
        self.max_buffered_bytes = limits.max_buffered_bytes
        self.draining = False
        self.connections: set[Connection] = set()
        self.overload: set[Connection] = set()  # over max_connections, being told so
        self.watch_half_closed: Callable[[Connection], None] = lambda connection: None
        self.call_soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self.inflight = 0
        self.body_bytes = 0  # also of messages that another front end holds
        self.receiving = Receiving()
        self.traffic = Traffic()
        self.requests_n = 0
        self.responses_n = [0] * _STATUSES  # by status code
        self.accepted_connections_n = 0
        self.refused_connections_n = 0
        self.refused_bodies_n = 0
        self.timeouts_n = 0
        self.disconnects_n = 0
        self.bad_requests_n = 0

    def take_connection(self, connection: "Connection") -> bool:
        """Whether a new connection is taken. One too many is now in `overload`, to be told so, or is to be dropped."""
        if len(self.connections) < self.max_connections:
            self.connections.add(connection)
            self.accepted_connections_n += 1
            return True
        self.refused_connections_n += 1
        if len(self.overload) < _MAX_OVERLOAD:
            self.overload.add(connection)
        return False

    def has_room(self, nbytes: int) -> bool:
        """Whether a body that takes so much more memory fits beside those of all connections."""
        return self.body_bytes + nbytes <= self.max_buffered_bytes

    def refuse_body(self) -> NotReady:
        """Count a body for which there is no memory, and return what its client is told."""
        self.refused_bodies_n += 1
        return NotReady(f"the server holds as many request bodies as it may: {self.max_buffered_bytes} bytes")
