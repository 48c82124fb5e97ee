"""How a job's progress looks: a bar on a terminal, a line now and then elsewhere. Knows counts and no job."""

import sys
import time
from collections import deque
from typing import Final, Protocol

from hybrid.offline.report import Counts

_LINE_S: Final = 10.0
_RATE_S: Final = 10.0


class Progress(Protocol):
    """Shows counts as they come."""

    def show(self, counts: Counts) -> None:
        """Show where the job is."""

    def close(self) -> None:
        """Leave the screen as it should stay."""


class Silent:
    """Shows nothing."""

    def show(self, counts: Counts) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Rate:
    """Rows per second over the last seconds, and what is left at that rate."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def observe(self, counts: Counts) -> tuple[float, float | None]:
        """Return (rows per second, seconds left); the latter None while it is not known."""
        seen = self._seen
        seen.append((counts.elapsed_s, counts.done_n))
        while len(seen) > 2 and seen[-1][0] - seen[0][0] > _RATE_S:
            seen.popleft()
        seconds, rows = seen[-1][0] - seen[0][0], seen[-1][1] - seen[0][1]
        if len(seen) == 1:
            seconds, rows = counts.elapsed_s, counts.done_n - counts.start
        rate = rows / seconds if seconds > 0 else 0.0
        total = total_rows(counts)
        return rate, (total - counts.done_n) / rate if total is not None and rate > 0 else None


class Lines:
    """A line every ten seconds on standard error, for logs and pipes."""

    def __init__(self) -> None:
        self._rate = Rate()
        self._last_at = float("-inf")

    def show(self, counts: Counts) -> None:
        """Print a line if the last one is old enough; the first comes at once."""
        rate, left_s = self._rate.observe(counts)
        now = time.monotonic()
        if now - self._last_at >= _LINE_S:
            self._last_at = now
            print(as_text(counts, rate, left_s), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Nothing stays open."""


class Bar:
    """A progress bar of rich on standard error."""

    def __init__(self) -> None:
        # Imported here: who pipes the output, or wants none, need not pay for it.
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        self._rate = Rate()
        self._progress = Progress(
            SpinnerColumn(), BarColumn(), TextColumn("{task.description}"), console=Console(stderr=True)
        )
        self._task = self._progress.add_task("loading the model", total=None)
        self._progress.start()

    def show(self, counts: Counts) -> None:
        """Draw it."""
        rate, left_s = self._rate.observe(counts)
        text = as_text(counts, rate, left_s)
        self._progress.update(self._task, description=text, completed=counts.done_n, total=total_rows(counts))

    def close(self) -> None:
        """Leave the bar as it is and give the cursor back."""
        self._progress.stop()


def choose(quiet: bool) -> Progress:
    """Return the progress for this terminal."""
    if quiet:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()


def total_rows(counts: Counts) -> int | None:
    """Return the rows of the input: known, or estimated from the bytes that were read; None when neither can be."""
    if counts.rows_n is not None:
        return counts.rows_n
    if not counts.size or not counts.position or not counts.done_n:
        return None
    return max(counts.done_n, round(counts.done_n * counts.size / counts.position))


def as_text(counts: Counts, rate: float, left_s: float | None) -> str:
    """Return progress as words, as in "4,096 of 20,000 rows (20 %), 312 rows/s, 51 s left, 3 errors"."""
    total = total_rows(counts)
    text = f"{counts.done_n:,} rows"
    if total is not None:
        about = "" if counts.rows_n is not None else "about "
        share = 100.0 * counts.done_n / total if total else 100.0
        text = f"{counts.done_n:,} of {about}{total:,} rows ({share:.0f} %)"
    text += f", {rate:,.0f} rows/s"
    if left_s is not None:
        text += f", {readable_s(left_s)} left"
    return text + (f", {counts.faults_n:,} errors" if counts.faults_n else "")


def readable_s(seconds: float) -> str:
    """Return a duration as in "51 s", "12 min 5 s" or "3 h 20 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
