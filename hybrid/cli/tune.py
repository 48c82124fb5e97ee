"""`hybrid tune`: find the setting that serves most within an objective, by load tests on a real server."""

import contextlib
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hybrid.cli.ending import exit_code, polite_end
from hybrid.cli.finite import FiniteRange
from hybrid.cli.keys import api_key_option, check_api_key, without_secrets
from hybrid.cli.output import print_columns, print_json
from hybrid.cli.stderr import write_error
from hybrid.config import ModelSettings, engines_for
from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.models.catalog import resolve
from hybrid.planner.guess import front_end_cpus
from hybrid.planner.machine import read_machine
from hybrid.planner.profiles import check_free, save_profile
from hybrid.probing.fingerprint import engine_version, model_files
from hybrid.tune.html import Context, report_html
from hybrid.tune.journal import Journal, Subject, cache_folder
from hybrid.tune.progress import choose
from hybrid.tune.report import overrides_of, rejections, sentences, setting_text, tune_json, why
from hybrid.tune.run import alike, bounds_of, own_lab, run_search, running_lab
from hybrid.tune.seeds import BATCHES, MOST, Bounds
from hybrid.tune.trial import Lab
from hybrid.tune.values import Outcome, Terms


class _Wanted(Struct, frozen=True, kw_only=True):
    """The options, checked."""

    model: str
    url: str | None
    terms: Terms
    budget_s: float
    most: int
    largest: int
    resume: bool
    save: str | None
    force: bool
    report: Path | None
    admin_token: str
    api_key: str


@click.command()
@click.argument("model", metavar="MODEL")
@click.option(
    "--slo-p99-ms",
    type=FiniteRange(min=0, min_open=True),
    default=None,
    metavar="N",
    help="99 % of the answers within N ms.  [default: 10 times a single request]",
)
@click.option(
    "--objective",
    type=click.Choice(["latency", "throughput"]),
    default="latency",
    show_default=True,
    help="Most requests/s within the objective, or most of all.",
)
@click.option("--save", metavar="NAME", default=None, help="Write the result as a profile, to be taken by NAME.")
@click.option("--force", is_flag=True, help="Replace a profile of that name.")
@click.option("--resume", is_flag=True, help="Go on where the last run of the same search was stopped.")
@click.option("--url", default=None, metavar="URL", help="Tune a running server (http://HOST:PORT) that has MODEL.")
@click.option("--admin-token", default=None, envvar="HYBRID_ADMIN_TOKEN", help="What --url wants before it plans anew.")
@api_key_option
@click.option(
    "--seconds-per-trial",
    type=FiniteRange(min=0.1, max=600),
    default=1.5,
    show_default=True,
    help="Length of the first trials; later ones are longer.",
)
@click.option("--budget-s", type=FiniteRange(min=1), default=240.0, show_default=True, help="Time for all of it.")
@click.option(
    "--settings",
    "most",
    type=click.IntRange(2, 1_000_000),
    default=MOST,
    show_default=True,
    help="Most settings that get a load test.",
)
@click.option(
    "--max-batch",
    "largest",
    type=click.IntRange(1, 1_000_000),
    default=BATCHES[-1],
    show_default=True,
    help="Largest batch to try on a CPU.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, dir_okay=False),
    default=None,
    metavar="FILE",
    help="Write an HTML report.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON with fixed keys.")
def tune(model: str, as_json: bool, **options: Any) -> int:
    """Find the workers, threads, batch, wait and engine with which MODEL serves most here, within an objective.

    Puts settings in force on a server, of its own unless --url names one, and tests each under load: all that a model
    of the queue finds promising for a moment, the better half again for longer, the best until it is certain.
    """
    wanted = _wanted(model, options)
    try:
        with polite_end(), _lab(wanted) as (lab, engines):
            outcome = _tuned(lab, engines, wanted)
    except KeyboardInterrupt as interrupt:
        return exit_code(interrupt)
    try:
        _write(outcome, wanted)
    finally:  # minutes of measuring are not lost for a folder that cannot be written
        if as_json:
            print_json(tune_json(outcome))
        else:
            _print(outcome, wanted)
    return 0


def _wanted(model: str, options: dict[str, Any]) -> _Wanted:
    slo_ms, objective, save, report = (options[key] for key in ("slo_p99_ms", "objective", "save", "report"))
    if objective == "throughput" and slo_ms is not None:
        raise click.UsageError("--slo-p99-ms is for --objective latency; throughput looks at no latency")
    check_api_key(options["api_key"], options["url"])
    if save is not None:
        check_free(save, options["force"])
    if report is not None and not report.resolve().parent.is_dir():
        raise ConfigError(f"--report {report}: its folder does not exist")
    terms = Terms(objective, None if slo_ms is None else slo_ms / 1000.0, options["seconds_per_trial"])
    return _Wanted(
        model=model,
        url=options["url"],
        terms=terms,
        budget_s=options["budget_s"],
        most=options["most"],
        largest=options["largest"],
        resume=options["resume"],
        save=save,
        force=options["force"],
        report=report,
        admin_token=options["admin_token"] or "",
        api_key=options["api_key"],
    )


@contextlib.contextmanager
def _lab(wanted: _Wanted) -> Iterator[tuple[Lab, tuple[str, ...]]]:
    """The server to measure on, and the engines that may be tried there: what is installed elsewhere is not known."""
    if wanted.url is not None:
        with running_lab(wanted.url, wanted.model, wanted.admin_token, wanted.api_key) as lab:
            yield lab, (str(lab.served.plan["engine"]),)
        return
    settings = resolve(wanted.model)
    with own_lab(wanted.model, settings, wanted.admin_token) as lab:
        # In the order of choice, not that of the plan: what a result is compared with must be the same in every run.
        installed = [name for name in engines_for(settings) if engine_version(name)]
        yield lab, tuple(dict.fromkeys((*installed, str(lab.served.plan["engine"]))))


def _cpus(lab: Lab) -> int:
    usable = lab.served.usable_cpus
    return max(1, usable - front_end_cpus(usable))


def _subject(wanted: _Wanted, bounds: Bounds) -> Subject:
    machine = read_machine()
    facts = f"{machine.model_name}, {machine.cpu.usable} CPUs, {machine.memory_limit_bytes} bytes"
    digest = "" if wanted.url is not None else _digest(resolve(wanted.model))
    return Subject(wanted.model, facts, digest, wanted.url or "", bounds, wanted.terms, wanted.most)


def _digest(settings: ModelSettings) -> str:
    """What tells one state of a model from another; a file by its size and time, since reading it takes seconds."""
    found = [msgspec.json.encode(settings, order="deterministic").decode()]
    found += [f"{name} {engine_version(name)}" for name in engines_for(settings)]
    for path in model_files(settings):
        with contextlib.suppress(OSError):  # the server that loads it says what is wrong with it
            seen = path.stat()
            found.append(f"{path.resolve()} {seen.st_size} {seen.st_mtime_ns}")
    return "\n".join(found)


def _tuned(lab: Lab, engines: tuple[str, ...], wanted: _Wanted) -> Outcome:
    """Find out what may be tried, then search."""
    agreeing, notes = alike(lab, engines)
    bounds = bounds_of(lab, agreeing, _cpus(lab), wanted.largest)
    journal = Journal(cache_folder(), _subject(wanted, bounds), wanted.resume)
    if wanted.resume and not journal.resumed_n:
        click.echo("nothing to resume: this search has not been begun here; starting it", err=True)
    outcome = _search(lab, bounds, wanted, journal)
    return replace(outcome, found=replace(outcome.found, notes=(*notes, *outcome.found.notes)))


def _search(lab: Lab, bounds: Bounds, wanted: _Wanted, journal: Journal) -> Outcome:
    show = choose(wanted.budget_s)
    try:
        return run_search(lab, bounds, wanted.terms, journal, (wanted.budget_s, wanted.most), show)
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be what is gone
            show.close()
            write_error(f"stopped; what was measured is kept in {journal.path}; add --resume to go on\n")
        raise
    finally:
        journal.close()
        with contextlib.suppress(OSError):
            show.close()


def _write(outcome: Outcome, wanted: _Wanted) -> None:
    """Write profile and report, those that were asked for."""
    machine = read_machine()
    if wanted.save is not None:
        elsewhere = f"\nIt was the server at {wanted.url}, whichever machine that is on." if wanted.url else ""
        path = save_profile(
            wanted.save,
            overrides_of(outcome.found.setting),
            machine,
            why(outcome) + elsewhere,
            model=str(outcome.plan["model"]),
            force=wanted.force,
        )
        click.echo(f"wrote {path}", err=True)
    if wanted.report is not None:
        command = shlex.join(["hybrid", *without_secrets(sys.argv[1:])])
        now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
        context = Context(command, now, _machine(machine, wanted.url), tuple(_use(outcome, wanted)))
        try:
            wanted.report.write_text(report_html(outcome, context), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--report {wanted.report}: cannot be written: {error.strerror}") from error


def _machine(machine: MachineFacts, url: str | None) -> tuple[tuple[str, str], ...]:
    gpus = ", ".join(gpu.name for gpu in machine.gpus)
    server = [("server", f"{url}; below is the machine that hybrid tune ran on")] if url is not None else []
    return (
        *server,
        ("CPU", machine.model_name or "unknown"),
        ("usable CPUs", f"{machine.cpu.usable} ({machine.cpu.reason})"),
        ("memory", f"{machine.memory_limit_bytes / 2**30:.1f} GiB ({machine.memory_source})"),
        ("instruction sets", " ".join(machine.isa)),
        ("GPUs", gpus or "none"),
    )


def _use(outcome: Outcome, wanted: _Wanted) -> Iterator[str]:
    """How to serve by the result."""
    model, setting = shlex.quote(wanted.model), outcome.found.setting
    if wanted.save is not None:
        yield f"hybrid serve {model} --profile {wanted.save}"
    line = f"hybrid serve {model} --workers {setting.instances} --threads {setting.threads}"
    line += f" --max-batch {setting.max_batch} --max-wait-ms {setting.max_wait_ms:g}"
    # As in the trials. A model or a profile may fix another, which may be more than a full batch and then refused.
    line += f" --early-trigger {setting.max_batch}"
    yield line if setting.engine == "simulated" else f"{line} --engine {setting.engine}"


def _print(outcome: Outcome, wanted: _Wanted) -> None:
    for sentence in sentences(outcome):
        click.echo(sentence)
    if outcome.found.curve.trials:
        click.echo("")
        rows = [
            [f"{t.ask.load.rate_rps:.4g}", *(_ms(value) for value in (t.seen.p50_s, t.seen.p95_s, t.seen.p99_s))]
            for t in outcome.found.curve.trials
        ]
        print_columns(("requests/s", "p50 ms", "p95 ms", "p99 ms"), rows)
    out = rejections(outcome.found.trials)
    if out:
        click.echo("")
        print_columns(("REJECTED", "IN", "WHY"), [(setting_text(setting), place, text) for setting, place, text in out])
    click.echo("\nserve by it:")
    for line in _use(outcome, wanted):
        click.echo(f"  {line}")


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000.0 * seconds:.3g}"
