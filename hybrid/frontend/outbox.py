"""What a connection sends: collected, and written once per turn of the event loop."""

import asyncio
from collections.abc import Sequence

#: Up to this size buffers are joined: one copy is cheaper than several buffers. Beyond it they are sent at once, so
#: that a client which does not read is felt while its pipelined requests are still being handed out.
_JOIN_BYTES = 64 * 1024
_HIGH_BYTES = 256 * 1024
_LOW_BYTES = 64 * 1024


class Outbox:
    """Buffers for one transport. `blocked` is set while the client does not read its answers."""

    __slots__ = ("_parts", "_size", "_transport", "_unsent_bytes", "blocked")

    def __init__(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(_HIGH_BYTES, _LOW_BYTES)
        self._transport = transport
        self._parts: list[bytes | memoryview] = []
        self._size = 0
        self._unsent_bytes = 0
        self.blocked = False

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the kernel has not taken yet."""
        return self._transport.get_write_buffer_size()

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
