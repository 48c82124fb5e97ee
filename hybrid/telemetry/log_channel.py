"""Log records of a child process, carried to the hub of its parent.

One channel per child: a pair of connected sockets that keep packets apart. The library `multiprocessing-logging` does
the receiving; its own queue is replaced. A multiprocessing.Queue needs semaphores: those need /dev/shm to start, a
child that is killed while it holds one stops all others, and they are left behind. Here a packet is sent whole or not
at all, nobody holds anything, and the end of the child is the end of the stream.

Records travel as msgpack, never pickled: what a child sends must not be able to run code in the server.
"""

import logging
import os
import socket
import threading
from logging.handlers import QueueHandler
from typing import Any, Final

import msgspec
from multiprocessing_logging import MultiProcessingHandler

from hybrid.clock import MonotonicClock
from hybrid.telemetry.log_flood import FloodLimiter, flood_key
from hybrid.telemetry.log_hub import LogHub, flood_line, take_root
from hybrid.telemetry.log_line import LogLine, from_record

MAX_PACKET: Final = 65_536
_SEND_BUFFER: Final = 1 << 20  # as much as the kernel grants of it

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(LogLine)


class WorkerLogChannel:
    """The parent's end of one child's log, and until the child is spawned the child's end too.

    Pass `child_fd` to the child, then call `spawned()` whether or not that went well; `close()` when it is gone.
    """

    def __init__(self, handler: "_ReceivingHandler", theirs: socket.socket) -> None:
        self._handler = handler
        self._theirs = theirs

    @classmethod
    def open(cls, hub: LogHub, role: str) -> "WorkerLogChannel":
        """Make a channel whose records appear in `hub`. `role` only names the thread; a child names itself.

        Raises:
            OSError: no descriptors left.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        return cls(_ReceivingHandler(f"log-{role}", _HubSink(hub), PacketQueue(ours)), theirs)

    @property
    def child_fd(self) -> int:
        """The descriptor to be inherited; -1 after `spawned()`."""
        return self._theirs.fileno()

    def spawned(self) -> None:
        """Close the parent's copy of the child's end, so that the end of the child ends the stream."""
        self._theirs.close()

    def close(self) -> None:
        """Take what the child has sent and stop; at once when the child is gone, and nothing waits if it is not."""
        self._theirs.close()
        self._handler.close()


def install_child_logging(fd: int, role: str, level: str) -> None:
    """Send every record of this process through the inherited descriptor `fd`, in the name of `role`.

    No log call ever blocks: what does not fit is dropped, and counted in the next record that does.
    """
    os.set_inheritable(fd, False)
    take_root(_SendingHandler(PacketQueue(socket.socket(fileno=fd)), role), level)


class PacketQueue:
    """The small part of a queue's interface that both handlers use, over one end of the pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._lost_n = 0

    def put_nowait(self, line: LogLine) -> None:
        """Send a line, or count it as lost when the other side does not keep up or is gone."""
        if self._lost_n:
            line = msgspec.structs.replace(line, lost=self._lost_n)
        try:
            self._sock.send(_encoder.encode(line), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except OSError:
            self._lost_n += 1
        else:
            self._lost_n = 0

    def get(self, block: bool = True, timeout: float | None = None) -> "WireRecord":
        """Wait for the next record.

        `timeout` is not used: it is the library's way to notice `close`, and costs five wake-ups a second. Here `stop`
        ends the wait.

        Raises:
            EOFError: the child is gone, or `stop` was called, and everything it sent was taken.
        """
        while True:
            packet = self._sock.recv(MAX_PACKET)
            if not packet:
                raise EOFError
            try:
                return WireRecord(_decoder.decode(packet))
            except msgspec.DecodeError:
                continue  # not ours: a library in the child wrote to a descriptor that it does not own

    def qsize(self) -> int:
        """Return 1 when something waits, else 0; sockets do not tell more."""
        try:
            return 1 if self._sock.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK) else 0
        except OSError:
            return 0

    def empty(self) -> bool:
        """Return whether nothing waits; what earlier releases of the library ask instead of `qsize`."""
        return self.qsize() == 0

    def stop(self) -> None:
        """End the stream after what was sent already."""
        try:
            self._sock.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # it has ended by itself, and the receiving thread has closed it

    def close(self) -> None:
        """Close this end."""
        self._sock.close()

    def join_thread(self) -> None:
        """Do nothing: there is no feeder thread."""


class WireRecord(logging.LogRecord):
    """A record of another process, with its pid and time, as any handler understands it."""

    def __init__(self, line: LogLine) -> None:
        super().__init__(line.logger, line.level, "", 0, line.message, None, None)
        self.line = line
        self.created = line.created_s
        self.process = line.pid
        self.processName = line.role
        self.exc_text = line.exception or None


class _ReceivingHandler(MultiProcessingHandler):
    """The library's handler with its thread and loop, on our queue.

    Its constructor is left out because it would make a multiprocessing.Queue; the rest of it is repeated here.
    """

    queue: Any

    def __init__(self, name: str, sub_handler: logging.Handler, queue: PacketQueue) -> None:
        logging.Handler.__init__(self)
        self.sub_handler = sub_handler
        self.queue = queue
        self._is_closed = False
        self._receive_thread = threading.Thread(target=self._receive, name=name, daemon=True)
        self._receive_thread.start()

    def close(self) -> None:
        """Take what has arrived, then end the thread and release the socket."""
        self.queue.stop()
        super().close()  # type: ignore[no-untyped-call]


class _HubSink(logging.Handler):
    """Where the receiving handler puts its records: the hub. The flood limit was applied in the child already."""

    def __init__(self, hub: LogHub) -> None:
        super().__init__()
        self._hub = hub

    def emit(self, record: logging.LogRecord) -> None:
        """Hand a record that arrived to the hub."""
        if isinstance(record, WireRecord):
            self._hub.put(record.line)


class _SendingHandler(QueueHandler):
    """The child's side: the stdlib's queue handler with a flood limit and without pickle.

    The limit works here because a flood must not cost the server anything, not even the reading of it.
    """

    def __init__(self, queue: Any, role: str) -> None:
        super().__init__(queue)
        self._role = role
        self._limiter = FloodLimiter(MonotonicClock())

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record if it is not part of a flood, and what is to be said of floods that have ended."""
        earlier = self._limiter.admit(flood_key(record))
        if earlier is not None:
            self.queue.put_nowait(from_record(record, self._role, earlier))
            self._send_floods()

    def close(self) -> None:
        """Send what is still to be said; logging calls this at exit."""
        self._send_floods(everything=True)
        super().close()

    def _send_floods(self, everything: bool = False) -> None:
        if self._limiter.pending:
            for key, n in self._limiter.take_quiet(everything):
                self.queue.put_nowait(flood_line(key, n, self._role))
