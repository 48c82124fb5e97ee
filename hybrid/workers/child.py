"""What every child process does around its job: dies with its parent, says that it lives, logs without blocking.

Runs in the child. A job is a module with `main` that calls `enter()` and then serves commands until `Stop`.
"""

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from hybrid.engines.base import MemoryFacts
from hybrid.group_signals import leave_to_parent
from hybrid.telemetry.logs import install_child_logging
from hybrid.workers import wire

_PR_SET_PDEATHSIG = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")

log = logging.getLogger("hybrid.child")


def enter() -> socket.socket:
    """Set the process up from its arguments (socket, log descriptor, role, parent, log level) and return its socket."""
    descriptor, log_descriptor, role, parent, level = sys.argv[1:6]
    _die_with_parent(int(parent))
    leave_to_parent()
    install_child_logging(int(log_descriptor), role, level)
    sock = socket.socket(fileno=int(descriptor))
    sock.setblocking(True)
    return sock


def serve(sock: socket.socket, handle: Callable[[Any], wire.Event]) -> None:
    """Answer commands one by one until `Stop` or until the server is gone."""
    while True:
        try:
            command = wire.decode_command(wire.receive(sock))
            if type(command) is wire.Stop:
                return
            wire.send(sock, handle(command))
        except wire.PeerGone:
            return


def start_beating(sock: socket.socket, memory: Callable[[], MemoryFacts], every_s: float = 1.0) -> None:
    """Send a `Beat` regularly from a thread of its own, so that a long batch is not taken for a stopped process."""
    threading.Thread(target=_beat, args=(sock, memory, every_s), name="beat", daemon=True).start()


def pin(cores: tuple[int, ...]) -> None:
    """Keep this process on these CPUs; a refusal (a cpuset changed under us) is logged and not fatal."""
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as error:
        log.warning("cannot pin to CPUs %s: %s", cores, error.strerror)


def rss_bytes() -> int:
    """Return this process's resident memory."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * _PAGE


def _beat(sock: socket.socket, memory: Callable[[], MemoryFacts], every_s: float) -> None:
    while True:
        try:
            wire.send(sock, wire.Beat(rss_bytes(), time.process_time(), memory()))
        except (wire.PeerGone, OSError):
            return
        time.sleep(every_s)


def _die_with_parent(parent: int) -> None:
    """Have the kernel kill us when the server dies, also while we compute; leave if it died before this call."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
