"""The connections of one generator: as many as are needed at once, up to a bound; each request on one that is free.

Owns every connection and what is under way on it. A request that finds none free waits, and its wait is part of its
latency. Must never know when the next request is due, or how results are counted.
"""

import asyncio
from collections import deque
from typing import Final, Protocol

from hybrid.load.connection import Connection
from hybrid.load.spec import Address

_RETRY_S: Final = 0.05
_CONNECT_S: Final = 5.0


class Shot:
    """One request under way: when it was to be sent, its bytes, and whether it counts."""

    __slots__ = ("counts", "data", "intended_s")

    def __init__(self, intended_s: float, data: bytes, counts: bool) -> None:
        self.intended_s = intended_s
        self.data = data
        self.counts = counts


class Listener(Protocol):
    """Who is told what became of a shot; each shot ends in exactly one of these."""

    def answered(self, shot: Shot, status: int, error: str) -> None:
        """It was answered."""

    def broken(self, shot: Shot, why: str) -> None:
        """Its connection was lost, or there was none."""

    def timed_out(self, shot: Shot) -> None:
        """Its time was over; it is not waited for any more."""


class Carriers:
    """Sends shots. `most` bounds the connections; shots must come in the order of their intended times."""

    def __init__(self, address: Address, most: int, listener: Listener) -> None:
        self._address = address
        self._most = most
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._free: list[Connection] = []
        self._waiting: deque[Shot] = deque()
        self._flying: dict[Connection, Shot] = {}  # in the order of their intended times
        self._opening: set[asyncio.Task[None]] = set()
        self._open: set[Connection] = set()
        self._closed = False
        self._connect_error = ""

    async def connect(self, wanted: int) -> str:
        """Open the first connections, within five seconds; return why none could be, or an empty string."""
        for _ in range(max(1, wanted)):
            self._open_one()
        await asyncio.wait(self._opening, timeout=_CONNECT_S)
        return "" if self._open else self._connect_error or "no answer"

    def launch(self, shot: Shot) -> None:
        """Send a shot, at once if a connection is free."""
        while self._free:
            connection = self._free.pop()
            if connection.reusable:
                self._send(connection, shot)
                return
        self._waiting.append(shot)
        if len(self._opening) < len(self._waiting):
            self._open_one()

    def expire(self, limit_s: float) -> None:
        """Give up on shots that were to be sent before `limit_s`; HTTP/1.1 has no other way than to hang up."""
        while self._waiting and self._waiting[0].intended_s < limit_s:
            self._listener.timed_out(self._waiting.popleft())
        for connection, shot in list(self._flying.items()):
            if shot.intended_s >= limit_s:
                break
            del self._flying[connection]
            connection.close()
            self._listener.timed_out(shot)

    def under_way(self) -> list[Shot]:
        """Return the shots that have not ended."""
        return [*self._flying.values(), *self._waiting]

    @property
    def idle(self) -> bool:
        """Whether nothing is under way."""
        return not self._flying and not self._waiting

    @property
    def open_n(self) -> int:
        """How many connections there are."""
        return len(self._open)

    def close(self) -> None:
        """Close everything at once; nobody is told any more."""
        self._closed = True
        for task in self._opening:
            task.cancel()
        for connection in list(self._open):
            connection.close()

    # What connections tell -----------------------------------------------------------------------------------------

    def connected(self, connection: Connection) -> None:
        """A connection may be used: by who has waited longest, if anybody."""
        if self._closed:
            connection.close()
            return
        self._open.add(connection)
        self._use(connection)

    def answered(self, connection: Connection, status: int, error: str) -> None:
        """An answer is complete; one to nothing, such as a 408 to an idle connection, ends the connection."""
        shot = self._flying.pop(connection, None)
        if shot is None or self._closed:
            connection.close()
            return
        if connection.reusable:
            self._use(connection)
        else:
            connection.close()
        self._listener.answered(shot, status, error)

    def lost(self, connection: Connection, why: str) -> None:
        """A connection is gone, with what was on it."""
        self._open.discard(connection)
        shot = self._flying.pop(connection, None)
        if self._closed:
            return
        if shot is not None:
            self._listener.broken(shot, why)
        self._retry()

    def _use(self, connection: Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def _send(self, connection: Connection, shot: Shot) -> None:
        self._flying[connection] = shot
        connection.send(shot.data)

    # Opening -------------------------------------------------------------------------------------------------------

    def _open_one(self) -> None:
        if self._closed or len(self._open) + len(self._opening) >= self._most:
            return
        task = self._loop.create_task(self._connecting())
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _retry(self) -> None:
        if self._waiting:
            self._open_one()

    async def _connecting(self) -> None:
        address = self._address
        try:
            await self._loop.create_connection(
                lambda: Connection(self), address.host, address.port, ssl=address.tls, server_hostname=address.tls_name
            )
        except OSError as error:
            self._connect_error = str(error)
            if self._waiting and not self._closed:
                self._listener.broken(self._waiting.popleft(), f"cannot connect: {error}")
                self._loop.call_later(_RETRY_S, self._retry)
