"""The transport of a connection: what is sent is collected and written once per turn, and how the socket ends.

Must never know requests or their order.
"""

import asyncio
import contextlib
import fcntl
import socket
import termios
from abc import ABC, abstractmethod
from collections.abc import Sequence

#: Up to this size buffers are joined: one copy is cheaper than several buffers. Beyond it they are sent at once, so
#: that a client which does not read is felt while its pipelined requests are still being handed out.
_JOIN_BYTES = 64 * 1024
_HIGH_BYTES = 256 * 1024
_LOW_BYTES = 64 * 1024


class Traffic:
    """Bytes of all connections since the start, without what TLS adds."""

    __slots__ = ("received_bytes_n", "sent_bytes_n")

    def __init__(self) -> None:
        self.received_bytes_n = 0
        self.sent_bytes_n = 0


class Receiver(asyncio.Protocol, ABC):
    """A protocol that can also have bytes written to where it wants them."""

    @property
    @abstractmethod
    def room(self) -> memoryview | None:
        """Where the next bytes belong, None when they should come as objects."""

    @abstractmethod
    def room_filled(self, size: int) -> None:
        """So many bytes were written into `room`."""


class InPlace(asyncio.BufferedProtocol):
    """Stands before a receiver while a large body comes, which the kernel writes to where it will stay.

    Only then: a small request costs two calls and a copy this way, instead of one call.
    """

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return where to write."""
        room = self._receiver.room
        assert room is not None
        return room

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on."""
        self._receiver.room_filled(nbytes)

    def eof_received(self) -> bool:
        """Pass on."""
        return bool(self._receiver.eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on."""
        self._receiver.connection_lost(exc)

    def pause_writing(self) -> None:
        """Pass on."""
        self._receiver.pause_writing()

    def resume_writing(self) -> None:
        """Pass on."""
        self._receiver.resume_writing()


class Wire:
    """One client's transport. `blocked`: the client does not read its answers. `paused`: nothing is read from it.

    `streamed`: what it got last was a stream, which has no end.
    """

    __slots__ = (
        "_in_place", "_parts", "_peer", "_size", "_traffic", "_transport", "_unsent_bytes", "blocked", "paused",
        "streamed",
    )  # fmt: skip

    def __init__(self, transport: asyncio.Transport, traffic: Traffic) -> None:
        transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)
        self._transport = transport
        self._traffic = traffic
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._unsent_bytes = 0
        self._peer = ""
        self._in_place = False
        self.blocked = False
        self.paused = False
        self.streamed = False

    @property
    def peer(self) -> str:
        """Address of the client as host:port."""
        if not self._peer:
            host, port = (self._transport.get_extra_info("peername") or ("unknown", 0))[:2]
            self._peer = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return self._peer

    @property
    def can_half_close(self) -> bool:
        """Whether one direction can end alone; TLS ends both."""
        return self._transport.get_extra_info("sslcontext") is None

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

    @property
    def unread(self) -> bool:
        """Whether the client has not read its last answer yet. What is left of a stream is none."""
        return not self.streamed and (self.unsent_bytes > 0 or self._unsent_under_tls())

    def _unsent_under_tls(self) -> bool:
        """Whether encrypted bytes wait: they are not counted where they do, but what the kernel holds is."""
        if self.can_half_close:
            return False
        sock: socket.socket = self._transport.get_extra_info("socket")
        waiting = bytearray(4)
        with contextlib.suppress(OSError, ValueError):  # it has just been lost
            fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, waiting)
        return any(waiting)

    def add(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send with the next flush."""
        self._parts += parts
        self._size += sum(map(len, parts))
        if self._size > _JOIN_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected; dropped when the transport is closed."""
        parts = self._parts
        if not parts:
            return
        self._parts = []
        size, self._size = self._size, 0
        if self._transport.is_closing():
            return
        self._traffic.sent_bytes_n += size
        if len(parts) == 1:
            self._transport.write(parts[0])
        elif size <= _JOIN_BYTES:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def shrank(self) -> bool:
        """Whether the client has read anything since the last call."""
        before, self._unsent_bytes = self._unsent_bytes, self.unsent_bytes
        return self._unsent_bytes < before

    def pause(self, paused: bool) -> bool:
        """Stop or go on reading. True when that is a change to going on."""
        if paused is self.paused or self._transport.is_closing():
            return False
        self.paused = paused
        if paused:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()
        return not paused

    def receive_in_place(self, in_place: bool, connection: Receiver) -> None:
        """Have what comes written into the connection's `room`, or handed to it as objects again."""
        if in_place is not self._in_place and not self._transport.is_closing():
            self._in_place = in_place
            self._transport.set_protocol(InPlace(connection) if in_place else connection)

    def end(self, *, linger: bool) -> None:
        """Close once all is sent. Lingering ends only the sending half: closing with unread input would reset it."""
        self.flush()
        if self._transport.is_closing():
            return
        if not linger:
            self._transport.close()
            return
        self.pause(False)
        if self._transport.can_write_eof():
            self._transport.write_eof()

    def was_reset(self) -> bool:
        """Whether the client's kernel has reset the connection."""
        sock: socket.socket = self._transport.get_extra_info("socket")
        return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0

    def abort(self) -> None:
        """Drop the client and everything unsent."""
        self._transport.abort()
