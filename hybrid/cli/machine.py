"""`hybrid machine`: the facts that a plan is made from."""

import click

from hybrid.cli.output import print_json
from hybrid.planner.explain import machine_json, machine_table
from hybrid.planner.machine import read_machine


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON with fixed keys.")
def machine(as_json: bool) -> None:
    """Show what this machine offers: CPUs, memory, instruction sets, and which limit decided."""
    facts = read_machine()
    if as_json:
        print_json(machine_json(facts))
    else:
        click.echo(machine_table(facts))
