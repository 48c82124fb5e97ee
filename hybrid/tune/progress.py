"""A bar on stderr that says what is being tried and how long the rest takes. Silent where nobody looks on."""

import sys
import time
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hybrid.tune.report import setting_text
from hybrid.tune.values import Ask, Seen


class Show(Protocol):
    """Is told what is asked, then what was seen."""

    def __call__(self, ask: Ask, seen: Seen | None) -> None:
        """`seen` is None when the trial begins."""

    def close(self) -> None:
        """Take the bar away."""


class Silent:
    """Shows nothing."""

    def __call__(self, ask: Ask, seen: Seen | None) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Bar:
    """The bar. Its end is the budget or what the search expects to need, whichever comes first."""

    def __init__(self, budget_s: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(30), TextColumn("{task.fields[rest]}"))
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._progress.add_task("starting the server", total=budget_s, rest="")
        self._began_s = time.monotonic()
        self._budget_s = budget_s
        self._progress.start()

    def __call__(self, ask: Ask, seen: Seen | None) -> None:
        """Show a trial that begins."""
        if seen is not None:
            return
        gone_s = time.monotonic() - self._began_s
        left_s = max(0.0, min(ask.left_s, self._budget_s - gone_s)) + ask.load.seconds
        text = f"{ask.text}: {setting_text(ask.setting)}"
        rest = f"{left_s / 60.0:.0f} min left" if left_s >= 90.0 else f"{left_s:.0f} s left"
        self._progress.update(self._task, description=text, completed=gone_s, total=gone_s + left_s, rest=rest)

    def close(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def choose(budget_s: float) -> Show:
    """Return a bar where a person looks on."""
    return Bar(budget_s) if sys.stderr.isatty() else Silent()
