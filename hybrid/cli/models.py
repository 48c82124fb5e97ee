"""`hybrid models`: the names that `hybrid serve` and `hybrid plan` take on this machine."""

import click
from msgspec import structs

from hybrid.cli.output import print_columns, print_json
from hybrid.models.catalog import list_models


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON: a list of objects.")
def models(as_json: bool) -> None:
    """List the models that can be served by name; a path to a model file or folder is taken, too."""
    rows = list_models()
    if as_json:
        print_json([structs.asdict(row) for row in rows])
        return
    table = [(row.name, row.task, row.engine, "yes" if row.available else "no", row.note) for row in rows]
    print_columns(("NAME", "TASK", "ENGINE", "AVAILABLE", "NOTE"), table)
