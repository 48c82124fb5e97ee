"""What `serve` and `plan` share: the options about measuring, and showing on stderr that it is under way."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import click

from hybrid.config import PlannerSettings
from hybrid.errors import ConfigError
from hybrid.probing.measuring import Measuring

C = TypeVar("C", bound=Callable[..., Any])

_WIDTH: Final = 78


def measuring_options(command: C) -> C:
    """Add --measure and --fresh to a command."""
    measure = click.option(
        "--measure",
        type=click.Choice(["auto", "cached", "never"]),
        default=None,
        help="Measure models first, use only what is known of them, or neither.  [default: auto]",
    )
    fresh = click.option("--fresh", is_flag=True, help="Measure again what was measured before.")
    return measure(fresh(command))


@contextmanager
def measuring(settings: PlannerSettings, fresh: bool) -> Iterator[Measuring | None]:
    """What is known of models; None where nobody is to ask. On a terminal the step under way has a line of its own.

    Raises:
        ConfigError: everything is to be measured again, and nothing measured.
    """
    if fresh and settings.measure != "auto":
        raise ConfigError(
            f"--fresh measures again, but planner.measure is `{settings.measure}`, by which nothing is measured; "
            "add --measure auto"
        )
    if settings.measure == "never":
        yield None
        return
    live = sys.stderr.isatty()

    def step(text: str) -> None:
        if live:
            click.echo(f"\r{text[:_WIDTH]:<{_WIDTH}}", nl=False, err=True)

    def clear() -> None:
        if live:
            click.echo(f"\r{'':<{_WIDTH}}\r", nl=False, err=True)

    def say(text: str) -> None:
        clear()
        click.echo(text, err=True)

    try:
        yield Measuring(settings, fresh=fresh, step=step, say=say)
    finally:
        clear()
