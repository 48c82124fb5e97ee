"""JSON and tables on stdout, the same for every verb."""

from collections.abc import Sequence

import click
import msgspec


def print_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under a header, each column as wide as its widest cell; the last one is left ragged."""
    table = [header, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(header) - 1)]
    for row in table:
        cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())
