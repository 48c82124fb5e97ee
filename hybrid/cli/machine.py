"""`hybrid machine`: the facts that a plan is made from."""

import sys

import click

from hybrid.cli.output import print_json
from hybrid.planner.explain import machine_json, machine_table
from hybrid.planner.machine import read_machine
from hybrid.planner.speed import measure_speed


@click.command()
@click.option("--quick", is_flag=True, help="Only look, do not measure.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON with fixed keys.")
def machine(quick: bool, as_json: bool) -> None:
    """Show what this machine offers: CPUs, memory, instruction sets, GPUs, and which limit decided.

    Measures for a few seconds how much CPU time it really gives, and how fast it multiplies and copies.
    """
    facts = read_machine()
    if not quick and sys.stderr.isatty():
        click.echo("measuring for a few seconds; --quick leaves it out", err=True)
    speed = None if quick else measure_speed(facts)
    if as_json:
        print_json(machine_json(facts, speed))
    else:
        click.echo(machine_table(facts, speed))
