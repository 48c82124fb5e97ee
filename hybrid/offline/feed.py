"""The thread that reads the input, one chunk ahead of what is asked for. The event loop never waits for a file or pipe.

A daemon thread: one that waits for standard input cannot be told to stop, and must not keep the process from ending.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from hybrid.offline.rows import InputRow
from hybrid.offline.source import Source

log = logging.getLogger("hybrid.offline")

_CHUNK_ROWS: Final = 64
_CHUNK_BYTES: Final = 1 << 20


class Feed:
    """Reads a source from row `start` on. Calls `on_rows`, and at the end `on_end` once, on the event loop."""

    def __init__(
        self,
        source: Source,
        start: int,
        loop: asyncio.AbstractEventLoop,
        on_rows: Callable[[Sequence[InputRow]], None],
        on_end: Callable[[Exception | None], None],
    ) -> None:
        self.position = 0  # bytes of the input that the rows handed over so far have taken
        self.asked_n = 0  # chunks that were asked for and have not come
        self.ended = False
        self._source = source
        self._loop = loop
        self._on_rows = on_rows
        self._on_end = on_end
        self._wanted = threading.Semaphore(0)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, args=(start,), name="input", daemon=True)

    def start(self) -> None:
        """Start the thread; it reads nothing before it is asked to."""
        self._thread.start()

    def more(self) -> None:
        """Ask for one more chunk."""
        self.asked_n += 1
        self._wanted.release()

    def stop(self) -> None:
        """Nothing that is still read will be handed over."""
        self._stopped = True
        self._wanted.release()

    def _run(self, start: int) -> None:
        error: Exception | None = None
        try:
            rows = self._source.read(start)
            while not self._stopped:
                self._wanted.acquire()
                chunk, position = _chunk(rows)
                if not chunk or self._stopped:
                    break
                self._call(self._hand_over, chunk, position)
        except (OSError, MemoryError) as failure:
            error = failure
        except Exception as failure:
            log.exception("cannot read the input")  # not foreseen; without an end the job would wait for ever
            error = failure
        self._call(self._end, error)

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            self._stopped = True  # the loop is closed already

    def _hand_over(self, chunk: Sequence[InputRow], position: int) -> None:
        self.asked_n -= 1
        self.position = position
        if not self._stopped:
            self._on_rows(chunk)

    def _end(self, error: Exception | None) -> None:
        self.asked_n = 0
        self.ended = True
        if not self._stopped:
            self._on_end(error)


def _chunk(rows: Iterator[tuple[InputRow, int] | None]) -> tuple[list[InputRow], int]:
    """Return the next rows, at least one of them, and the position behind; none at the end."""
    chunk: list[InputRow] = []
    nbytes = position = 0
    for found in rows:
        if found is None:
            if chunk:
                break
            continue
        row, end = found
        chunk.append(row)
        nbytes += row.nbytes
        position = end
        if len(chunk) >= _CHUNK_ROWS or nbytes >= _CHUNK_BYTES:
            break
    return chunk, position
