"""`hybrid profile`: which profiles there are, which one suits this machine and why, and which one it is to use."""

import os
from pathlib import Path

import click
from msgspec import structs

from hybrid.cli.ending import polite_end
from hybrid.cli.measuring import measuring
from hybrid.cli.output import print_columns, print_json
from hybrid.config_file import load_config
from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.models.catalog import resolve_all
from hybrid.planner.machine import read_machine
from hybrid.planner.matching import conditions
from hybrid.planner.prepare import plan_here
from hybrid.planner.profile_files import AUTO, NONE, choose
from hybrid.planner.profile_text import overrides_of
from hybrid.planner.profiles import (
    Listed,
    ProfileFile,
    check_free,
    known_profiles,
    listed_profiles,
    load_profile,
    profile_path,
    read_profile,
    save_profile,
)
from hybrid.planner.types import PlanOverrides


@click.group(invoke_without_command=True)
@click.pass_context
def profile(context: click.Context) -> None:
    """List, show, choose and make profiles: TOML files with the numbers that suit one kind of machine."""
    if context.invoked_subcommand is None:
        context.invoke(list_)


@profile.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of objects.")
def list_(as_json: bool = False) -> None:
    """List the profiles that can be named, which of them fit this machine, and which one is in use."""
    machine = read_machine()
    used, why = _in_use(machine)
    listed = [(one, one.path.resolve() == used) for one in listed_profiles(machine)]
    if as_json:
        print_json([structs.asdict(one) | {"path": str(one.path), "in_use": in_use} for one, in_use in listed])
        return
    table = [("*" if in_use else "", one.name, _fits(one), one.description or one.error) for one, in_use in listed]
    print_columns(("", "NAME", "FITS HERE", "DESCRIPTION"), table)
    click.echo(f"\n{why}")


@profile.command()
@click.argument("name")
def show(name: str) -> None:
    """Show the file of a profile, where it lies, and condition by condition whether it fits this machine.

    NAME is a name from `hybrid profile list` or a path to a TOML file.
    """
    path = profile_path(name)
    content = read_profile(path)
    machine = read_machine()
    click.echo(f"{path.stem}: {path}\n")
    _show_match(content, machine)
    used, why = _in_use(machine)
    click.echo(why if used == path.resolve() else f"Not in use. {why}")
    click.echo(f"\n{path.read_text(encoding='utf-8').rstrip()}")


@profile.command()
@click.argument("name")
def use(name: str) -> None:
    """Make a profile this machine's choice wherever `--profile` says `auto`, as it does by itself.

    NAME is a name from `hybrid profile list`, or `none` for no profile. `auto` takes the choice back. A server that
    runs goes on with its own until it is told to plan anew.
    """
    if name == AUTO:
        path = choose(None)
        click.echo(f"nothing is chosen any more ({path})")
    else:
        if name != NONE:
            read_profile(_path_from_anywhere(name))
        path = choose(name)
        click.echo(f"this machine uses {'no profile' if name == NONE else f'profile {name}'} from now on ({path})")
    click.echo(_in_use(read_machine())[1])


@profile.command()
@click.argument("name")
@click.option("--from-plan", "model", metavar="MODEL", default=None, help="Fix the numbers that the plan of MODEL has.")
@click.option("--force", is_flag=True, help="Replace a profile of that name.")
def new(name: str, model: str | None, force: bool) -> None:
    """Write a profile of this machine into your own folder, to be taken by NAME.

    Without MODEL it fixes nothing and explains every key.
    """
    check_free(name, force)
    if model is None:
        machine = read_machine()
        path = save_profile(name, PlanOverrides(), machine, "A profile to be filled in.", force=force)
    else:
        with polite_end(), measuring(load_config(None, os.environ).planner, fresh=False) as known:
            prepared = plan_here(resolve_all(model)[:1], NONE, measure=known)
        plan = prepared.plans[0]
        path = save_profile(
            name,
            overrides_of(plan),
            prepared.machine,
            f"The plan of {plan.model} on this machine",
            model=plan.model,
            reasons=plan.reasons,
            force=force,
        )
    click.echo(
        f"wrote {path}\nhybrid serve --profile {name} takes it; hybrid profile use {name} makes it the default here"
    )


def _in_use(machine: MachineFacts) -> tuple[Path | None, str]:
    """Path of the profile that `auto` stands for here, if there is one, and a sentence about it."""
    try:
        found = load_profile(AUTO, machine)
    except ConfigError as error:
        return None, f"`auto` fails here: {error}"
    if found is None:
        return None, "`auto` takes no profile here: none fits, or `hybrid profile use none` said so."
    return Path(found.source).resolve(), f"`auto` takes {found.name} here: {found.why}."


def _fits(one: Listed) -> str:
    if one.error:
        return "broken"
    return "by name" if one.fits is None else "yes" if one.fits else "no"


def _show_match(content: ProfileFile, machine: MachineFacts) -> None:
    if content.match is None:
        click.echo("It has no [match], so it is taken by name only.")
        return
    found = conditions(content.match, machine)
    rows = [("yes" if one.holds else "no", one.text, one.here) for one in found]
    print_columns(("FITS", "CONDITION", "HERE"), rows)
    holds = all(one.holds for one in found)
    click.echo(f"\nIt {'fits' if holds else 'does not fit'} this machine.")


def _path_from_anywhere(name: str) -> Path:
    """The file behind a name, wherever a server is started later."""
    if os.sep in name or name.endswith(".toml"):
        raise ConfigError(f"`{name}` is a path; expected a name from `hybrid profile list`")
    local = known_profiles().get(name)
    if local is not None and name not in known_profiles(here=False):
        raise ConfigError(
            f"profile `{name}` lies in the current directory ({local}), where a server that is started elsewhere does "
            "not look; copy it to the folder that `hybrid profile new` writes to"
        )
    return profile_path(name, here=False)
