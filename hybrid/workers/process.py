"""One child process: spawned, spoken to over its socket, watched, and gone without a trace.

Owns the process, the server's end of the socket and the child's log channel. Children are started by exec, never by a
bare fork of this process (which has threads), and without `multiprocessing`, whose named semaphores need /dev/shm,
whose tracker is one more process, and which runs the caller's script again in every child.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from hybrid.engines.base import MemoryFacts
from hybrid.group_signals import kept_from_children
from hybrid.telemetry.logs import LogHub, WorkerLogChannel
from hybrid.workers import oom, wire
from hybrid.workers.wire import PeerGone

_REAP_EVERY_S = 0.005
_REAP_GRACE_S = 0.5  # from the end of its stream to its own end: killing it in between would hide why it ended
#: Signals that a process gets for what its own code did. All others are sent by somebody, also SIGKILL by the kernel
#: that runs out of memory: it takes the largest process, whoever asked for more.
_OWN_SIGNALS: Final = (
    signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS, signal.SIGTRAP,
)  # fmt: skip


class End(Struct, frozen=True):
    """How a child ended. `own` when what it was executing brought it about, and not somebody outside."""

    cause: str
    own: bool = False


class ChildProcess:
    """A running child. Callbacks come from the event loop: `on_event` per message, `on_gone` once, with the end."""

    def __init__(
        self,
        role: str,
        on_event: Callable[[Any], None],
        on_gone: Callable[[End], None],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.role = role
        self.pid = 0
        self.heard_at = 0.0  # monotonic time of the last message
        self.rss_bytes = 0
        self.cpu_s = 0.0
        self.memory = MemoryFacts()
        self.on_deaf: Callable[[], None] | None = None  # told when its stream has ended, before the process is gone
        self._on_event = on_event
        self._on_gone = on_gone
        self._loop = loop
        self._socket: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._log: WorkerLogChannel | None = None
        self._kill_at = 0.0
        self._killed_before: dict[Path, int] = {}
        self._end: End | None = None  # known before the process is gone when we bring it about

    def spawn(
        self,
        module: str,
        start: wire.Command,
        descriptors: Sequence[int],
        environment: dict[str, str],
        hub: LogHub,
    ) -> None:
        """Start `python -m module` and send it its first message. `descriptors` are inherited under the same numbers.

        Raises:
            OSError: no process or descriptor to be had.
        """
        ours, theirs = wire.pair()
        channel: WorkerLogChannel | None = None
        self._killed_before = oom.kill_counts()
        try:
            channel = WorkerLogChannel.open(hub, self.role)
            command = [sys.executable, "-m", module, str(theirs.fileno()), str(channel.child_fd), self.role]
            with kept_from_children():
                self._process = subprocess.Popen(
                    [*command, str(os.getpid()), hub.level],
                    pass_fds=(theirs.fileno(), channel.child_fd, *descriptors),
                    stdin=subprocess.DEVNULL,
                    env=os.environ | environment,
                )
        except OSError:
            ours.close()
            if channel is not None:
                channel.close()
            raise
        finally:
            theirs.close()
        channel.spawned()
        self._log = channel
        self.pid = self._process.pid
        self.heard_at = time.monotonic()
        self._socket = ours
        self._loop.add_reader(ours.fileno(), self._readable)
        self.send(start)

    @property
    def alive(self) -> bool:
        """Whether the socket is open; the process may already be dying."""
        return self._socket is not None

    @property
    def suspended(self) -> bool:
        """Whether somebody has stopped the process (SIGSTOP, a debugger): it is not to blame for being slow."""
        with contextlib.suppress(OSError, IndexError), open(f"/proc/{self.pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"Tt"
        return False

    def send(self, message: wire.Command) -> None:
        """Send without blocking. To a child that is gone or does not read, nothing is sent: it is reported as gone."""
        if self._socket is None:
            return
        try:
            wire.send(self._socket, message)
        except PeerGone:
            pass  # the reader sees the end of the stream next and tells the owner
        except BlockingIOError:
            self.kill("stopped reading its socket")
        except OSError as error:
            self.kill(f"cannot be sent a message: {error.strerror}")

    def kill(self, why: str, *, own: bool = False) -> None:
        """End the process at once. `on_gone` follows with `why` as the cause; `own` as in `End`."""
        self._end = self._end or End(why, own)
        if self._process is not None:
            self._process.kill()

    def stop(self) -> None:
        """Ask the child to leave after the batch in hand."""
        self._end = self._end or End("stopped")
        self.send(wire.Stop())

    def _readable(self) -> None:
        """Take one packet. The loop calls again while there are more, so reading until empty would cost a call each."""
        if self._socket is None:
            return
        try:
            packet = self._socket.recv(wire.MAX_PACKET + 1)
        except BlockingIOError:
            return
        except OSError:
            packet = b""
        if not packet:
            self._ended()
            return
        self.heard_at = time.monotonic()
        event = wire.decode_event(packet)
        if type(event) is wire.Beat:
            self.rss_bytes, self.cpu_s, self.memory = event.rss_bytes, event.cpu_s, event.memory
        else:
            self._on_event(event)

    def _ended(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
            self._kill_at = time.monotonic() + _REAP_GRACE_S
            if self.on_deaf is not None:
                self.on_deaf()
        self._reap()

    def _reap(self) -> None:
        """Wait, without blocking the loop, until the process is gone for good, then tell the owner why."""
        process = self._process
        if process is None:
            return
        code = process.poll()
        if code is None:
            if time.monotonic() >= self._kill_at:
                process.kill()  # closed its socket but lives: it can do no more work
            self._loop.call_later(_REAP_EVERY_S, self._reap)
            return
        self._process = None
        if self._log is not None:
            self._log.close()
        self._on_gone(self._end or End(self._cause(code), code >= 0 or -code in _OWN_SIGNALS))

    def _cause(self, code: int) -> str:
        """An exit code as words; where the kernel may have killed it for memory, which it says nowhere, with a hint."""
        cause = describe_exit(code)
        if code == -signal.SIGKILL and oom.has_killed(self._killed_before, oom.kill_counts()):
            return f"{cause}; {oom.HINT}"
        return cause


def describe_exit(code: int) -> str:
    """Return an exit code as words: `exit code 3`, `killed by SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
