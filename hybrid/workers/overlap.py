"""Two batches at once on a device whose copies run beside its computing.

Runs in the child, in place of `child.serve`. Owns the order of receiving, beginning and finishing; knows no engine.
The device cannot wake a wait on the socket, nor the socket one on the device, so both are asked in turns while a batch
is on its way: waiting for either alone would let the other stand still, and with it the overlap.
"""

import select
import socket
from collections import deque
from typing import Any, Final, Protocol

from hybrid.workers import wire

_DEPTH: Final = 2  # one that computes and one that is copied; more would only wait in front of the device
_LOOK_S: Final = 100e-6


class Started(Protocol):
    """A batch on its way."""

    def done(self) -> bool:
        """Whether finishing it would not wait."""


class Worker(Protocol):
    """Who begins and finishes batches."""

    def begin(self, command: wire.Run) -> Any:
        """Return a `Started`, or the event that says why there is none."""

    def finish(self, started: Any) -> wire.Event:
        """Wait for it and return its event."""


def serve(sock: socket.socket, worker: Worker) -> None:
    """Answer commands, in order, until `Stop` or until the server is gone. A batch in hand is finished first."""
    flying: deque[Any] = deque()
    try:
        while True:
            if flying and (len(flying) == _DEPTH or flying[0].done()):
                wire.send(sock, worker.finish(flying.popleft()))
            elif not flying or select.select([sock], [], [], _LOOK_S)[0]:
                command = wire.decode_command(wire.receive(sock))
                if type(command) is wire.Stop:
                    break
                started = worker.begin(command)
                if isinstance(started, wire.Event):
                    wire.send(sock, started)
                else:
                    flying.append(started)
        while flying:
            wire.send(sock, worker.finish(flying.popleft()))
    except wire.PeerGone:
        return
