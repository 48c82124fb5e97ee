"""One HTTP/1.1 connection of the generator: sends a request as bytes, says when the answer is complete.

Owns the socket and the response parser. One request at a time: pipelined ones would wait for each other, and that wait
would pass for the server's. Must never know times, rates or results.
"""

import asyncio
from typing import Final, Protocol, cast

import httptools

_KEPT_OF_ERROR: Final = 300


class Owner(Protocol):
    """Who is told."""

    def connected(self, connection: "Connection") -> None:
        """It may be used."""

    def answered(self, connection: "Connection", status: int, error: str) -> None:
        """The answer is complete; `error` is the beginning of its body where the status is no success."""

    def lost(self, connection: "Connection", why: str) -> None:
        """It is gone, with the answer of the request that was on it, if any."""


class Connection(asyncio.Protocol):
    """A keep-alive connection. `reusable` turns false when it may not be sent on again."""

    __slots__ = ("_body", "_owner", "_parser", "_transport", "_why", "reusable")

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._body = b""
        self._why = ""
        self.reusable = True

    def send(self, data: bytes) -> None:
        """Send one complete request."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """Close at once; nobody is told any more."""
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self._owner.connected(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came; what is not HTTP ends the connection."""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._why = f"the answer is not HTTP/1.1: {error}"
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the owner."""
        self.reusable = False
        self._transport = None
        self._owner.lost(self, self._why or (str(exc) if exc is not None else "the server closed the connection"))

    # httptools -----------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Forget the answer before."""
        self._body = b""

    def on_body(self, body: bytes) -> None:
        """Keep the beginning of an error's body, and nothing of any other."""
        if len(self._body) < _KEPT_OF_ERROR and self._parser.get_status_code() >= 300:
            self._body += body[: _KEPT_OF_ERROR - len(self._body)]

    def on_message_complete(self) -> None:
        """Hand the status on; the owner may send the next request from within."""
        status = self._parser.get_status_code()
        if status < 200:  # 100 Continue and the like: the answer is still to come
            return
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self._owner.answered(self, status, self._body.decode(errors="replace"))
