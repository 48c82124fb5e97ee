"""`hybrid baseline`: how a model performs now, what limits it, and whether batching would help."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hybrid.cli.finite import FiniteRange
from hybrid.cli.keys import api_key_option, check_api_key
from hybrid.cli.output import print_columns, print_json
from hybrid.load.baseline import STEPS, Baseline, Prober, baseline_json
from hybrid.load.payloads import PayloadSettings
from hybrid.load.target import Target, local
from hybrid.models.catalog import resolve

_MIB = 1024 * 1024
_DEFAULT_S = 3.0


@click.command()
@click.argument("model", metavar="MODEL")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with fixed keys.")
@click.option("--url", default=None, metavar="URL", help="Measure a running server (http://HOST:PORT) that has MODEL.")
@api_key_option
@click.option(
    "--seconds",
    type=FiniteRange(min=0.1, max=600),
    default=_DEFAULT_S,
    show_default=True,
    help="Time for each number of clients.",
)
def baseline(model: str, as_json: bool, url: str | None, api_key: str, seconds: float) -> None:
    """Measure MODEL as it is served now: single requests, then 1, 2, 4, 8 and 16 clients.

    Starts a server of its own on a free port, unless --url names one. Requests are made up from what the model takes.
    """
    check_api_key(api_key, url)
    with _target(model, url, api_key) as (target, name, settings), _progress() as step:
        measured = Prober(target, name, settings, seconds, step).measure()
    if as_json:
        print_json(baseline_json(measured))
    else:
        _print(measured)


@contextlib.contextmanager
def _target(model: str, url: str | None, api_key: str) -> Iterator[tuple[Target, str, PayloadSettings]]:
    if url is not None:
        target = Target(url, api_key=api_key)
        yield target, model, PayloadSettings(headers=target.headers)
        return
    found = resolve(model)
    image = found.preprocess.image
    settings = PayloadSettings(image_inputs=(image.input,) if image is not None else ())
    with local(model) as target:
        yield target, found.name, settings


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """A bar on stderr where a person looks on; stdout stays for the result."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=STEPS)
        begun = 0

        def step(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, completed=begun)
            begun += 1

        yield step


def _print(measured: Baseline) -> None:
    found = baseline_json(measured)
    single = found["single"]
    click.echo(f"{measured.model}, single requests ({single['runs']}): ", nl=False)
    click.echo(f"p50 {_cell(single['p50_ms'])} ms, p95 {_cell(single['p95_ms'])} ms\n")
    header = ("clients", "rps", "p50 ms", "p95 ms", "p99 ms", "errors", "mean batch", "CPUs", "memory MiB", "busy")
    print_columns(header, [_row(level) for level in found["concurrency"]])
    if found["batch_times"]:
        times = ", ".join(f"{point['rows']:.3g}: {_cell(point['ms'])} ms" for point in found["batch_times"])
        click.echo(f"\nbatch times by rows  {times}")
    helps = {True: "yes", False: "no", None: "not known"}[found["batching_helps"]]
    click.echo(f"\nbottleneck: {found['bottleneck'] or 'not known'}; does batching help: {helps}")
    click.echo(found["advice"])


def _row(level: dict[str, Any]) -> list[str]:
    memory = level["memory_bytes"]
    busy = ", ".join(f"{name} {100 * share:.0f} %" for name, share in level["utilisation"].items())
    numbers = [_cell(level[key]) for key in ("rps", "p50_ms", "p95_ms", "p99_ms")]
    rest = [str(level["errors"]), _cell(level["mean_batch"]), _cell(level["cpus"])]
    return [str(level["concurrency"]), *numbers, *rest, "-" if memory is None else f"{memory / _MIB:.0f}", busy or "-"]


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"
