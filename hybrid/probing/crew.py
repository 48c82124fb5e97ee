"""Some probe processes that load one model and obey together: started, asked, ended.

Owns the processes: none outlives its crew, and a crew ends with its `with` block, also on Ctrl-C. Blocks while it
waits; nothing else goes on in a process that measures. Must never know what is asked or why.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

import msgspec

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.group_signals import kept_from_children
from hybrid.probing import messages
from hybrid.workers import wire
from hybrid.workers.environment import engine_environment
from hybrid.workers.process import describe_exit

_END_S: Final = 1.0

A = TypeVar("A", bound=messages.Answer)


class ProbeFailed(Exception):
    """A probe process could not do what it was told, died or took too long; `memory` when memory did not suffice."""

    def __init__(self, text: str, memory: bool = False, late: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.memory = memory
        self.late = late


class Crew:
    """One process per element of `cores`, each pinned to its CPUs, or free where there are none.

    What to load comes as a file, since examples of pictures are larger than a packet of the socket may be.

    Raises:
        OSError: no process or descriptor to be had.
    """

    def __init__(
        self, model: ModelSettings, engine: EngineSettings, cores: Sequence[tuple[int, ...]], length: int
    ) -> None:
        self._members: list[tuple[subprocess.Popen[bytes], socket.socket]] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            for own in cores:
                self._spawn(messages.StartProbe(model, engine, own, length))
        except OSError:
            self.close()
            raise

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether its processes have been ended."""
        return not self._members

    def loaded(self, timeout_s: float) -> list[messages.Loaded]:
        """Wait until all have loaded the model.

        Raises:
            ProbeFailed: one cannot, is gone, or the time is over.
        """
        return self._collect(messages.Loaded, timeout_s)

    def ask(self, command: messages.Command, expected: type[A], timeout_s: float) -> list[A]:
        """Have all do the same and return their answers.

        Raises:
            ProbeFailed: as `loaded`.
        """
        for _, sock in self._members:
            _send(sock, command)
        return self._collect(expected, timeout_s)

    def close(self) -> None:
        """End all processes. They hold nothing that is worth a farewell, so nobody waits for a batch in hand."""
        for process, sock in self._members:
            sock.close()
            process.kill()
        for process, _ in self._members:
            process.wait()
        self._members.clear()
        self._errors.close()

    def _spawn(self, start: messages.StartProbe) -> None:
        ours, theirs = wire.pair()
        # A probe's log has no reader: what matters comes as an answer. A closed stream counts it as lost.
        log_end, log_other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        log_other.close()
        command = [sys.executable, "-m", "hybrid.probing.process", str(theirs.fileno()), str(log_end.fileno())]
        try:
            with tempfile.TemporaryFile() as first, kept_from_children():
                first.write(messages.encode(start))
                first.seek(0)
                process = subprocess.Popen(
                    [*command, "probe", str(os.getpid()), "error"],
                    pass_fds=(theirs.fileno(), log_end.fileno()),
                    stdin=first,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    env=os.environ | engine_environment(start.engine.threads, os.environ),
                )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            log_end.close()
        self._members.append((process, ours))

    def _collect(self, expected: type[A], timeout_s: float) -> list[A]:
        ends_at = time.monotonic() + timeout_s
        return [self._answer(process, sock, expected, ends_at) for process, sock in self._members]

    def _answer(self, process: subprocess.Popen[bytes], sock: socket.socket, expected: type[A], ends_at: float) -> A:
        sock.settimeout(max(0.001, ends_at - time.monotonic()))
        try:
            answer: Any = messages.decode_answer(wire.receive(sock))
        except TimeoutError:
            raise ProbeFailed("it took too long", late=True) from None
        except wire.PeerGone:
            raise self._death(process) from None
        except msgspec.DecodeError as error:
            raise ProbeFailed(f"its answer cannot be read: {error}") from error
        if isinstance(answer, messages.Failed):
            raise ProbeFailed(answer.text, answer.memory)
        assert isinstance(answer, expected)
        return answer

    def _death(self, process: subprocess.Popen[bytes]) -> ProbeFailed:
        try:
            code = process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        said = os.pread(self._errors.fileno(), 65_536, 0).decode(errors="replace").strip().splitlines()[-1:]
        text = f"the process ended: {describe_exit(code)}" + (f" ({said[0][:200]})" if said else "")
        # Whoever runs out of memory is killed, or aborts where an allocator's exception has nobody to catch it.
        return ProbeFailed(text, memory=describe_exit(code) in ("killed by SIGKILL", "killed by SIGABRT"))


def _send(sock: socket.socket, command: messages.Command) -> None:
    try:
        sock.setblocking(True)
        sock.send(messages.encode(command))
    except ConnectionError:
        pass  # the answer that does not come says why
