"""`hybrid serve`: plan, print the plan and how to call it, serve until told to stop."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import click
import uvloop  # noqa: F401 -- the server imports it when signals raise exceptions, which imports do not survive

from hybrid.app import Blueprint, grpc_port
from hybrid.app import serve as run_server
from hybrid.cli.ending import polite_end
from hybrid.cli.example import curl_line
from hybrid.cli.finite import FiniteRange
from hybrid.cli.measuring import measuring, measuring_options
from hybrid.cli.stderr import write_error
from hybrid.config import Config, ModelSettings, ServerSettings
from hybrid.config_file import changed_keys, load_config
from hybrid.errors import StartupError
from hybrid.frontend.listen import check_place
from hybrid.models.catalog import builtin_names
from hybrid.planner.explain import plan_table
from hybrid.planner.prepare import plan_here
from hybrid.planner.types import PlanOverrides
from hybrid.serving.hangup import Reread
from hybrid.serving.opening import Opening, open_sources
from hybrid.serving.replan import Standing
from hybrid.serving.sources import ModelSources
from hybrid.telemetry.logs import setup_logging


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@click.option("--profile", default=None, help="auto, none, a name or a TOML file.")
@click.option("--host", default=None, help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, default=None, help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--grpc-port", type=int, default=None, help="Port for gRPC; 0 takes a free one, -1 none.  [default: 8001]"
)
@click.option("--config", "config_file", type=click.Path(path_type=Path), default=None, help="TOML file with settings.")
@click.option("--repository", default=None, metavar="FOLDER", help="Serve the models in the sub-folders of FOLDER too.")
@click.option(
    "--repository-poll-s",
    type=float,
    default=None,
    help="Look for changed model files this often.  [default: 0, never]",
)
@click.option(
    "--repository-strict",
    is_flag=True,
    default=None,
    help="A model of the repository that cannot start ends the server.",
)
@click.option(
    "--engine",
    type=click.Choice(["onnxruntime", "openvino", "torch"]),
    default=None,
    help="Engine for every model.  [default: the plan's choice]",
)
@measuring_options
@click.option("--workers", type=click.IntRange(1, 1_000_000), default=None, help="Worker processes per model.")
@click.option("--threads", type=click.IntRange(1, 1_000_000), default=None, help="Engine threads per worker.")
@click.option("--max-batch", type=click.IntRange(1, 1_000_000), default=None, help="Most rows of a batch.")
@click.option(
    "--max-wait-ms", type=FiniteRange(min=0, max=86_400_000), default=None, help="Longest wait for a fuller batch."
)
@click.option("--early-trigger", type=click.IntRange(1, 1_000_000), default=None, help="Rows that end the wait early.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default=None)
@click.option("--log-format", type=click.Choice(["text", "json"]), default=None)
def serve(
    models: tuple[str, ...],
    profile: str | None,
    host: str | None,
    port: int | None,
    config_file: Path | None,
    **flags: object,
) -> None:
    """Serve each MODEL over HTTP and gRPC until SIGTERM or Ctrl-C.

    A MODEL is a path to a model file or folder, or a name from `hybrid models`. Without MODEL and repository, the
    built-in models are served.
    """
    overrides = {
        "models": models or None,
        "profile": profile,
        "repository": flags["repository"],
        "repository_poll_s": flags["repository_poll_s"],
        "repository_strict": flags["repository_strict"],
        "planner.measure": flags["measure"],
        "server.host": host,
        "server.port": port,
        "server.grpc_port": flags["grpc_port"],
        "server.log_level": flags["log_level"],
        "server.log_format": flags["log_format"],
    }
    config = load_config(config_file, os.environ, overrides)

    def reread() -> Reread:
        now = load_config(config_file, os.environ, overrides)
        return Reread(now.profile, tuple(key for key in changed_keys(config, now) if key != "profile"))

    try:
        # From here on a signal needs a handler: to process 1 of a container the kernel brings none without.
        with polite_end():
            _serve(config, _plan_overrides(flags), reread, fresh=bool(flags["fresh"]))
    except KeyboardInterrupt:  # before there was a server to drain: told to stop, it stopped
        write_error("stopped before it was ready\n")


def _plan_overrides(flags: dict[str, object]) -> PlanOverrides:
    numbers = {
        "engine": flags["engine"],
        "instances": flags["workers"],
        "threads_per_instance": flags["threads"],
        "max_batch": flags["max_batch"],
        "max_wait_ms": flags["max_wait_ms"],
        "early_trigger": flags["early_trigger"],
    }
    return PlanOverrides(**{key: value for key, value in numbers.items() if value is not None})  # type: ignore[arg-type]


def _warnings(server: ServerSettings, opening: Opening) -> Iterator[str]:
    overlong = _overlong_deadlines(server)
    if overlong is not None:
        yield overlong
    for name, reason in opening.broken.items():
        yield f"{name} is not served: {reason}"


def _overlong_deadlines(server: ServerSettings) -> str | None:
    """Return a warning when requests may be allowed to run for longer than a drain waits."""
    longest = server.default_timeout_s or server.max_timeout_s
    drain = server.drain_timeout_s
    if longest <= drain:
        return None
    return f"default_timeout_s {longest:g} is longer than drain_timeout_s {drain:g}: a drain may cut such requests"


def _serve(config: Config, overrides: PlanOverrides, reread: Callable[[], Reread], fresh: bool) -> None:
    folder = Path(config.repository).expanduser() if config.repository else None
    sources = ModelSources(config.models or (() if folder is not None else builtin_names()), folder)
    server = config.server
    asyncio.run(check_place(server.host, server.port, grpc_port(server), server.tls))
    plan = partial(plan_here, profile=config.profile, flags=overrides)
    with measuring(config.planner, fresh) as measure:
        opening = open_sources(sources, partial(plan, measure=measure), config.repository_strict)
    # Whatever is planned later is planned beside a server at work, which measuring would disturb.
    plan_later = partial(plan, measure=measure.known_only() if measure is not None else None)
    prepared = opening.prepared
    click.echo(plan_table(prepared.plans, prepared.machine, prepared.profile))
    for warning in _warnings(server, opening):
        click.echo(f"warning: {warning}", err=True)
    sys.stdout.flush()

    def announce(port: int, grpc_port: int | None, models: Sequence[ModelSettings]) -> None:
        scheme = "https" if server.tls is not None else "http"
        host = f"[{server.host}]" if ":" in server.host else server.host
        base = f"{scheme}://{host}:{port}"
        names = ", ".join(dict.fromkeys(model.name for model in models)) or "none yet"
        click.echo(f"\nready on {base}  (models: {names})")
        if grpc_port is not None:
            click.echo(f"gRPC on {host}:{grpc_port}")
        if models:
            click.echo(f"try:\n  {curl_line(base, models[0], bool(server.api_keys))}")
        sys.stdout.flush()

    hub = setup_logging(server.log_level, server.log_format)
    try:
        blueprint = Blueprint(
            server,
            sources,
            opening,
            plan_later,
            Standing(config.profile, overrides),
            reread,
            poll_s=config.repository_poll_s,
            strict=config.repository_strict,
        )
        run_server(blueprint, hub, announce)
    except OSError as error:
        raise StartupError(f"cannot start: {error}") from error
    finally:
        hub.close(1.0)
