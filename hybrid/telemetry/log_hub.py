"""All log records of the server on their way to one stream: a bounded queue and one writer thread.

Owns the root logger's handler while it is open. A log call formats its record and puts it into the queue; it never
writes, never waits, and drops (and counts) when the queue is full, so a stream that nobody reads stops no request.
"""

import logging
import os
import sys
import time
from collections.abc import Callable
from enum import Enum
from queue import Empty, SimpleQueue
from threading import RLock, Thread
from typing import Final, Literal, TextIO

from msgspec import Struct

from hybrid.clock import Clock, MonotonicClock
from hybrid.telemetry.log_flood import FloodKey, FloodLimiter, FloodLimits, flood_key
from hybrid.telemetry.log_line import LogLine, as_json, as_text, from_record
from hybrid.telemetry.log_sink import Sink, open_sink

QUEUE_LINES: Final = 4096
_AT_ONCE: Final = 64
_WATCH_S: Final = 1.0
_LIMITS: Final = FloodLimits()


class LogStats(Struct, frozen=True):
    """Lines written, dropped because the stream did not keep up, and held back by the flood limit."""

    written_n: int
    dropped_n: int
    suppressed_n: int


class _Signal(Enum):
    """What may come through the queue beside lines."""

    WATCH = "look for floods that have ended from now on"
    STOP = "nothing comes after this"


class LogHub:
    """Carries records to a sink. `handler` takes those of this process, `put` lines that are finished already.

    The queue is a SimpleQueue: its `put` may be interrupted by itself (a destructor or signal handler that logs),
    where queue.Queue would wait for its own lock for ever.
    """

    def __init__(
        self, sink: Sink, fmt: Literal["text", "json"], level: str, role: str, limits: FloodLimits, clock: Clock
    ) -> None:
        self.level = level
        self.role = role
        self.handler: logging.Handler = _HubHandler(self)
        self._sink = sink
        self._format: Callable[[LogLine], bytes] = as_json if fmt == "json" else as_text
        self._lock = RLock()  # reentrant for the same reason as the queue
        self._limiter = FloodLimiter(clock, limits)
        self._queue: SimpleQueue[LogLine | _Signal] = SimpleQueue()
        self._watching = False
        self._stopping = False
        self._give_up_at: float | None = None
        self._written_n = self._dropped_n = self._reported_n = 0
        self._blocked = False
        self._restore: Callable[[], None] = _nothing
        self._thread = Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    def accept(self, record: logging.LogRecord) -> None:
        """Take a record of this process."""
        with self._lock:
            earlier = self._limiter.admit(flood_key(record))
            if earlier is None and not self._watching:
                self._watching = True
                self._queue.put(_Signal.WATCH)
        if earlier is not None:
            self.put(from_record(record, self.role, earlier))

    def put(self, line: LogLine) -> None:
        """Queue a line; never blocks. Full or closed: it is dropped and counted."""
        if self._give_up_at is None and self._queue.qsize() < QUEUE_LINES:
            self._queue.put(line)
        else:
            self.count_dropped()

    def count_dropped(self, n: int = 1) -> None:
        """Count lines that will not be written; reported once the stream takes lines again."""
        with self._lock:
            self._dropped_n += n

    def stats(self) -> LogStats:
        """Return the counters."""
        return LogStats(self._written_n, self._dropped_n, self._limiter.suppressed_n)

    def close(self, timeout_s: float = 2.0) -> bool:
        """Write what is queued, for `timeout_s` at most, and give the root logger back. True when all was written.

        When the stream does not take it, the handler stays and drops: the handlers from before would block instead.
        """
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + timeout_s
            self._queue.put(_Signal.STOP)
        self._thread.join(timeout_s + 1.0)
        if self._thread.is_alive() or self._blocked:
            return False
        self._restore()
        self._restore = _nothing
        return True

    def install(self) -> None:
        """Make the root logger, and warnings, write here; `close` undoes it."""
        self._restore = take_root(self.handler, self.level)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._write(self._take())
        finally:
            self._sink.close()

    def _take(self) -> list[LogLine]:
        """Wait for at least one line or, while a flood is on, for the time to look whether it has ended."""
        lines: list[LogLine] = []
        try:
            item = self._queue.get(timeout=_WATCH_S if self._watching else None)
            while item is not _Signal.STOP and len(lines) < _AT_ONCE:
                if isinstance(item, LogLine):
                    lines.append(item)
                item = self._queue.get_nowait()
            self._stopping = item is _Signal.STOP
            if isinstance(item, LogLine):
                lines.append(item)
        except Empty:
            pass
        if self._watching or self._stopping:
            lines += self._ended_floods()
        return lines

    def _ended_floods(self) -> list[LogLine]:
        with self._lock:
            ended = self._limiter.take_quiet(everything=self._stopping)
            self._watching = self._limiter.pending
        return [flood_line(key, n, self.role) for key, n in ended]

    def _write(self, lines: list[LogLine]) -> None:
        for line in lines:
            if self._write_line(line):
                self._written_n += 1
            else:
                self.count_dropped()
        missing = self._dropped_n - self._reported_n
        if missing and self._write_line(_dropped_line(missing, self.role)):
            self._reported_n += missing

    def _write_line(self, line: LogLine) -> bool:
        if self._blocked and self._is_hopeless():
            return False  # given up on: what is left in the queue must not be waited for line by line
        written = self._sink.write(self._format(line), self._is_hopeless)
        self._blocked = not written
        return written

    def _is_hopeless(self) -> bool:
        return self._give_up_at is not None and time.monotonic() > self._give_up_at


class _HubHandler(logging.Handler):
    """The root logger's way into the hub."""

    def __init__(self, hub: LogHub) -> None:
        super().__init__()
        self._hub = hub

    def emit(self, record: logging.LogRecord) -> None:
        """Hand the record to the hub."""
        self._hub.accept(record)


def setup_logging(
    level: str = "info",
    fmt: Literal["text", "json"] = "text",
    stream: TextIO | None = None,
    role: str = "server",
    limits: FloodLimits = _LIMITS,
) -> LogHub:
    """Send every record of this process, and warnings, to `stream` (standard error) until the hub is closed."""
    hub = LogHub(open_sink(stream or sys.stderr), fmt, level, role, limits, MonotonicClock())
    hub.install()
    return hub


def flood_line(key: FloodKey, n: int, role: str) -> LogLine:
    """Return the line that stands for the last `n` records of a flood."""
    return LogLine(time.time(), key.level, key.logger, key.template, role, os.getpid(), suppressed=n)


def take_root(handler: logging.Handler, level: str) -> Callable[[], None]:
    """Make `handler` the only one of the root logger, at this level; returns the function that undoes it."""
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)

    def restore() -> None:
        logging.captureWarnings(False)
        root.handlers[:] = before
        root.setLevel(level_before)

    return restore


def _dropped_line(n: int, role: str) -> LogLine:
    message = f"{n} log records dropped: the log stream did not keep up"
    return LogLine(time.time(), logging.WARNING, __name__, message, role, os.getpid())


def _nothing() -> None:
    """Undo nothing."""
