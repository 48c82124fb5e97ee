"""Tells clients that have left from clients that only closed their sending half: the same bytes on the wire.

A client that waits and closes its socket must be noticed soon, so that its work is dropped; one that shuts down its
sending half (RFC 9112, 9.6) must get its answer. Only sending tells them apart: the kernel of a closed client answers
with a reset. What can be sent is "100 Continue", which every HTTP/1.1 client has to skip; and only after a short
while, so that simple clients of quick answers never see it. The event loop does not report the reset, because it no
longer reads from such a connection: the socket is asked.
"""

import asyncio
from typing import Protocol

#: A client that has closed is noticed after two to three of these.
TICK_S = 0.015


class HalfClosed(Protocol):
    """What the watcher needs of a connection."""

    def waits_half_closed(self) -> bool:
        """Whether the client, which has ended its stream, still waits for an answer."""

    def probe(self) -> bool:
        """Send an interim answer if HTTP allows one now; true when it was sent."""

    def was_reset(self) -> bool:
        """Whether the client's kernel has reset the connection."""

    def abort(self) -> None:
        """Drop the connection."""


class Watcher:
    """Watches half-closed connections until they are answered or gone. Its timer runs only while there are any."""

    def __init__(self) -> None:
        self._probed: dict[HalfClosed, bool] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, connection: HalfClosed) -> None:
        """Begin to watch."""
        self._probed[connection] = False
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def stop(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()

    def _tick(self) -> None:
        watched, self._probed = self._probed, {}
        for connection, probed in watched.items():
            if not connection.waits_half_closed():
                continue
            if connection.was_reset():
                connection.abort()
                continue
            self._probed[connection] = probed or connection.probe()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick) if self._probed else None
