"""Where log lines end: a descriptor that may be a full pipe, or any text stream.

Owns the promise that a reader who has stopped reading can always be given up on.
"""

import os
import select
from collections.abc import Callable
from typing import Final, Protocol, TextIO

_PIECE: Final = 4096  # a pipe that polls writable takes this much (PIPE_BUF) without blocking
_RETRY_MS: Final = 100


class Sink(Protocol):
    """Takes whole lines, in order, from one thread."""

    def write(self, data: bytes, give_up: Callable[[], bool]) -> bool:
        """Write everything; False when the reader is gone, or `give_up()` turned true while it did not read."""

    def close(self) -> None:
        """Release what the sink holds; the stream it was made from stays open."""


def open_sink(stream: TextIO) -> Sink:
    """Return a sink for a stream: its descriptor when it has one, else its `write`."""
    try:
        return DescriptorSink(os.dup(stream.fileno()))
    except (OSError, ValueError, AttributeError):
        return StreamSink(stream)


class DescriptorSink:
    """Writes to a descriptor of its own, polling first.

    Not through the stream: a thread that blocks inside a buffered stream holds its lock, and the interpreter aborts
    when it wants that lock at exit. Not by O_NONBLOCK: that flag belongs to everybody who shares the terminal.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)

    def write(self, data: bytes, give_up: Callable[[], bool]) -> bool:
        """See `Sink`."""
        rest = memoryview(data)
        while rest:
            while not self._poll.poll(_RETRY_MS):
                if give_up():
                    return False
            try:
                rest = rest[os.write(self._descriptor, rest[:_PIECE]) :]
            except BlockingIOError:  # somebody else's O_NONBLOCK, and the room was taken meanwhile
                if give_up():
                    return False
            except OSError:
                return False
        return True

    def close(self) -> None:
        """See `Sink`."""
        os.close(self._descriptor)


class StreamSink:
    """Writes to a stream without a descriptor, such as StringIO."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, data: bytes, give_up: Callable[[], bool]) -> bool:
        """See `Sink`."""
        try:
            self._stream.write(data.decode("utf-8", "replace"))
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed
            return False
        return True

    def close(self) -> None:
        """See `Sink`."""
