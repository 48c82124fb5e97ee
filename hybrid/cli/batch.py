"""`hybrid batch`: a whole file through a model, in order, in full batches, resumable."""

import os
from pathlib import Path

import click

from hybrid.cli.output import print_json
from hybrid.cli.stderr import write_error
from hybrid.config import ModelSettings
from hybrid.errors import ConfigError
from hybrid.models.catalog import resolve
from hybrid.offline import progress
from hybrid.offline.fingerprint import Kind
from hybrid.offline.identity import identity_of
from hybrid.offline.job import Order, run_job
from hybrid.offline.report import JobFailed, Report
from hybrid.offline.results import Results, open_results
from hybrid.offline.source import Source, open_source
from hybrid.planner.prepare import plan_here
from hybrid.planner.profiles import NONE
from hybrid.planner.types import Plan, PlanOverrides
from hybrid.telemetry.logs import setup_logging

_FORMATS = ["jsonl", "text", "images", "npy"]


@click.command()
@click.argument("model")
@click.argument("input_name", metavar="INPUT")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="Results: .jsonl, or .npy for one tensor."
)
@click.option(
    "--format", "kind", type=click.Choice(_FORMATS), default=None, help="What INPUT is.  [default: by suffix]"
)
@click.option("--fresh", is_flag=True, help="Start over instead of continuing what is there.")
@click.option("--max-errors", type=click.IntRange(min=0), default=None, help="Fail when more rows than this fail.")
@click.option(
    "--batching", type=click.Choice(["dynamic", "static"]), default=None, help="Batches of any shape, or of one."
)
@click.option("--max-batch", type=click.IntRange(1, 1_000_000), default=None, help="Most rows of a batch.")
@click.option("--workers", type=click.IntRange(1, 1_000_000), default=None, help="Worker processes.")
@click.option("--threads", type=click.IntRange(1, 1_000_000), default=None, help="Engine threads per worker.")
@click.option("--profile", default=NONE, show_default=True, help="auto, none, a name or a TOML file.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="warning")
def batch(model: str, input_name: str, output: Path, kind: Kind | None, fresh: bool, **options: object) -> int:
    """Run every row of INPUT through MODEL and write the results to a file, in the same order.

    INPUT is JSONL with {"id"?, "text" | "image" | "inputs"} per line, a .txt file with a text per line, a folder of
    images, a .npy array with a row per item, or - for JSONL on standard input. Run again after an interruption, it
    continues where it stopped. Rows that fail are listed in OUTPUT.errors.jsonl.
    """
    settings = resolve(model)
    plan = _plan(settings, options)
    source = open_source(input_name, kind)
    try:
        results = _open_results(settings, input_name, source, output, fresh)
        try:
            return _run(settings, plan, source, results, options)
        finally:
            results.close()
    finally:
        source.close()


def _plan(settings: ModelSettings, options: dict[str, object]) -> Plan:
    numbers = {
        "instances": options["workers"],
        "threads_per_instance": options["threads"],
        "max_batch": options["max_batch"],
        "batching": options["batching"],
    }
    flags = PlanOverrides(**{key: value for key, value in numbers.items() if value is not None})  # type: ignore[arg-type]
    return plan_here([settings], str(options["profile"]), flags, "throughput").plans[0]


def _open_results(settings: ModelSettings, input_name: str, source: Source, output: Path, fresh: bool) -> Results:
    if output.exists() and os.path.exists(input_name) and output.samefile(input_name):
        raise ConfigError(f"{output}: is the input; expected another file for the results")
    results = open_results(output)
    try:
        facts = source.facts()
        results.begin(identity_of(facts, results.output.format, settings) if facts is not None else None, fresh)
    except OSError as error:
        results.close()
        raise ConfigError(f"{output}: cannot be written: {error.strerror}") from error
    except ConfigError:
        results.close()
        raise
    return results


def _run(settings: ModelSettings, plan: Plan, source: Source, results: Results, options: dict[str, object]) -> int:
    if results.complete:
        click.echo(f"{results.path}: complete already, {results.start} rows; --fresh starts over", err=True)
        return 0
    most = options["max_errors"]
    order = Order(settings, plan, source, results, most if isinstance(most, int) else None)
    if results.start and not options["quiet"]:
        click.echo(f"{results.path}: {results.start} rows are there already, continuing behind them", err=True)
    hub = setup_logging(str(options["log_level"]), "text")
    show = progress.choose(bool(options["quiet"]))
    try:
        report = run_job(order, hub, show.show)
        show.show(report.counts)
    finally:
        show.close()
        hub.close(1.0)
    return _finish(report, results, settings, bool(options["as_json"]))


def _finish(report: Report, results: Results, settings: ModelSettings, as_json: bool) -> int:
    counts = report.counts
    if as_json:
        print_json(_summary(report, results, settings))
    else:
        click.echo(_sentence(report, results))
    if report.signal:
        again = "run the same command again to continue" if results.resumable else "standard input cannot be resumed"
        write_error(f"stopped by signal {report.signal}; {again}\n")
        return 128 + report.signal
    if counts.done_n and counts.faults_n == counts.done_n:
        raise JobFailed(f"every row failed; {results.errors_path} says why")
    return 0


def _summary(report: Report, results: Results, settings: ModelSettings) -> dict[str, object]:
    counts, work = report.counts, report.work
    rows = counts.done_n - counts.start
    return {
        "model": settings.name,
        "output": str(results.path),
        "errors_file": str(results.errors_path) if counts.faults_n else None,
        "complete": not report.signal,
        "rows": rows,
        "rows_total": counts.done_n,
        "resumed_at": counts.start,
        "errors": counts.faults_n,
        "seconds": round(counts.elapsed_s, 3),
        "startup_s": round(report.startup_s, 3),
        "rows_per_s": round(rows / counts.elapsed_s, 2) if counts.elapsed_s else 0.0,
        "batches": work.batches_n,
        "mean_batch": round(work.rows_n / work.batches_n, 2) if work.batches_n else 0.0,
        "padding": round(work.padding, 4),
        "released": work.released,
    }


def _sentence(report: Report, results: Results) -> str:
    counts, work = report.counts, report.work
    rows = counts.done_n - counts.start
    rate = rows / counts.elapsed_s if counts.elapsed_s else 0.0
    text = f"{rows:,} rows in {progress.readable_s(counts.elapsed_s)} ({rate:,.0f} rows/s) to {results.path}"
    if counts.start:
        text += f", behind {counts.start:,} of earlier runs"
    if counts.faults_n:
        text += f"; {counts.faults_n:,} failed, see {results.errors_path}"
    mean = work.rows_n / work.batches_n if work.batches_n else 0.0
    return f"{text}; {work.batches_n:,} batches of {mean:.1f} rows, {work.padding:.1%} padding"
