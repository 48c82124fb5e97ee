"""A measuring child process: lines in, lines out, killed when its time is over.

Owns the processes that `spin` and `speed` start. Knows nothing of what they measure. They end when their stdin does, so
none outlives who asked.
"""

import os
import subprocess
import sys
import threading
from types import TracebackType
from typing import Final

from hybrid.group_signals import kept_from_children

#: One thread per caller of BLAS, whichever library numpy was built with: who measures k cores starts k threads itself.
_ONE_THREAD: Final = dict.fromkeys(
    ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"), "1"
)


class Children:
    """`count` processes of `python -m module`, to be used as a context.

    Once `limit_s` is over they are killed, whatever they do: reading gives None then, as after any other end.
    """

    def __init__(self, module: str, count: int, limit_s: float) -> None:
        self._processes: list[subprocess.Popen[str]] = []
        self._watch = threading.Timer(limit_s, self._kill)
        self._watch.daemon = True
        try:
            for _ in range(count):
                self._processes.append(_start(module))
        except OSError:
            self._end()
            raise

    def __enter__(self) -> "Children":
        self._watch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        self._end()

    def tell(self, line: str, first: int) -> None:
        """Send one line to each of the `first` children; those that have ended are passed over."""
        for process in self._processes[:first]:
            assert process.stdin is not None
            try:
                process.stdin.write(line + "\n")
                process.stdin.flush()
            except OSError:
                continue

    def hear(self, first: int) -> list[str | None]:
        """Wait for one line of each of the `first` children; None for one that ended instead."""
        return [_line(process) for process in self._processes[:first]]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def _end(self) -> None:
        self._kill()
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                assert stream is not None
                try:
                    stream.close()
                except OSError:  # what was not sent yet has no reader any more
                    continue


def children(module: str, count: int, limit_s: float) -> Children | None:
    """Start them; None where this machine refuses to start processes."""
    try:
        return Children(module, count, limit_s)
    except OSError:
        return None


def _start(module: str) -> subprocess.Popen[str]:
    with kept_from_children():
        return subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=os.environ | _ONE_THREAD,
        )


def _line(process: subprocess.Popen[str]) -> str | None:
    assert process.stdout is not None
    line = process.stdout.readline()
    return line.rstrip("\n") if line.endswith("\n") else None
