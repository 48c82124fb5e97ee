"""`hybrid`: the command group, and the one place where an error becomes a line and an exit code.

Each verb lives in its own module, which is imported only when that verb runs: `hybrid --help` must not pay for numpy,
and a broken engine must not break `hybrid machine`. Exit codes: 0 fine, 1 failed at run time, 2 bad usage or
configuration, 128 + the number of the signal that interrupted it.
"""

import errno
import os
import sys
import traceback
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Final

import click

from hybrid.cli.ending import ends_at_once, exit_code
from hybrid.cli.stderr import write_error
from hybrid.compiled import COMPILED
from hybrid.errors import HybridError

#: Verb -> (module, one line of help). The help stands here so that listing the verbs imports none of them.
COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "serve": ("hybrid.cli.serve", "Serve models over HTTP and gRPC."),
    "batch": ("hybrid.cli.batch", "Run a whole file through a model."),
    "infer": ("hybrid.cli.infer", "Send a text, an image or JSON to a running server."),
    "plan": ("hybrid.cli.plan", "Show how models would run on this machine, and why."),
    "baseline": ("hybrid.cli.baseline", "Measure a model as it is served now, and name what limits it."),
    "tune": ("hybrid.cli.tune", "Find the setting that serves most within a latency objective."),
    "models": ("hybrid.cli.models", "List what can be served here."),
    "profile": ("hybrid.cli.profile", "List, show, choose and make profiles for kinds of machines."),
    "machine": ("hybrid.cli.machine", "Show what this machine offers to hybrid."),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the verb's module and return its command, which is named like the verb."""
        if cmd_name not in COMMANDS:
            return None
        with ends_at_once():
            command = getattr(import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but an unknown verb is answered with the nearest known one."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = get_close_matches(args[0], COMMANDS, n=1)
            hint = f"did you mean `{near[0]}`?" if near else f"known: {', '.join(COMMANDS)}"
            ctx.fail(f"unknown command `{args[0]}`; {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of verbs from the table instead of importing every module."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # which takes longer to load than all the rest

        click.echo(f"hybrid {version('hybrid-serve')} ({'compiled' if COMPILED else 'not compiled'})")
        context.exit()


@click.command(
    cls=LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
def cli() -> None:
    """An inference server that measures the machine and the model and picks the batching policy per device."""


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; every foreseen error ends as one line on stderr."""
    try:
        result = cli.main(
            args=None if arguments is None else list(arguments), prog_name="hybrid", standalone_mode=False
        )
    except HybridError as error:
        return _fail(error, str(error), error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "hybrid"
        return _fail(error, f"{_lower(error.format_message()).rstrip('.')} (see `{command} --help`)", error.exit_code)
    except click.ClickException as error:
        return _fail(error, error.format_message(), error.exit_code)
    except click.Abort as abort:
        return exit_code(abort.__cause__)
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        return _unwritten(error)  # every file that we write has a handler of its own
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of `hybrid.__main__` and so of the installed command."""
    _open_streams()
    _pin_children()
    code = run()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`head`, a pager) left. Python would complain again when it closes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except OSError as error:
        code = _unwritten(error)
    sys.exit(code)


def _pin_children() -> None:
    """Have every process that is started from here import this very hybrid, and nothing from the working directory.

    `python -m` looks there first: a checkout would run half installed and half as it lies there, and a user's
    `random.py` would end each worker.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    home = str(Path(__file__).parents[2])
    if home not in sys.path[1:]:  # found by way of the working directory, or by an editable install's hook
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))


def _open_streams() -> None:
    """Open what a caller has closed (`>&-`): what is printed would go to the next socket."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115  # as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115


def _unwritten(error: OSError) -> int:
    """Say that the output is lost, and keep Python from trying again when it closes stdout at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return _fail(error, f"the output cannot be written: {error.strerror}", 1)


def _fail(error: Exception, text: str, code: int) -> int:
    if os.environ.get("HYBRID_DEBUG") == "1":
        traceback.print_exception(error)
    line = "; ".join(part.strip() for part in text.splitlines() if part.strip()).rstrip(".")
    write_error(f"hybrid: error: {line or type(error).__name__}\n")
    return code


def _lower(text: str) -> str:
    """Click's messages begin with a capital; ours follow a colon."""
    return text[:1].lower() + text[1:]
