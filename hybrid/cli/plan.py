"""`hybrid plan`: what `hybrid serve` would do with these models on this machine, without serving it."""

import os
from collections.abc import Sequence

import click

from hybrid.cli.ending import polite_end
from hybrid.cli.loading import refuse_unloadable
from hybrid.cli.measuring import measuring, measuring_options
from hybrid.cli.output import print_json
from hybrid.config import ModelSettings
from hybrid.config_file import load_config
from hybrid.models.catalog import builtin_names, resolve_all
from hybrid.planner.explain import plan_json, plan_table
from hybrid.planner.prepare import plan_here
from hybrid.planner.profiles import AUTO
from hybrid.planner.types import Plan


@click.command()
@click.argument("models", nargs=-1, metavar="[MODEL...]")
@click.option("--profile", default=AUTO, show_default=True, help="auto, none, a name or a TOML file.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with fixed keys: one object, or a list for several.")
@measuring_options
def plan(models: tuple[str, ...], profile: str, as_json: bool, measure: str | None, fresh: bool) -> None:
    """Show how each MODEL would run here, with a reason for every number.

    A MODEL is a path to a model file or folder, or a name from `hybrid models`. Without MODEL, the built-in models
    that `hybrid serve` serves by itself. They are planned together, because they share the CPUs. What is not known of
    a model on this machine is measured first, which is done once. A model that cannot be loaded is an error.
    """
    config = load_config(None, os.environ, {"planner.measure": measure})
    wanted = [version for model in models or builtin_names() for version in resolve_all(model)]
    with polite_end(), measuring(config.planner, fresh) as known:
        prepared = plan_here(wanted, profile, measure=known)
        if config.planner.measure == "auto":
            _refuse_broken(wanted, prepared.plans)
    if not as_json:
        click.echo(plan_table(prepared.plans, prepared.machine, prepared.profile))
        return
    objects = [plan_json(one) for one in prepared.plans]
    print_json(objects[0] if len(objects) == 1 else objects)


def _refuse_broken(models: Sequence[ModelSettings], plans: Sequence[Plan]) -> None:
    """Rules make a plan of any file; what could not be measured may be broken, or slow, or fed the wrong rows."""
    for model, one in zip(models, plans, strict=True):
        if not one.alternatives and one.engine != "simulated":
            refuse_unloadable(model, one)
