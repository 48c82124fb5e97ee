"""Keys and tokens on the command line: what takes them, and how it is shown to others."""

from collections.abc import Iterator, Sequence
from typing import Final

import click

_SECRETS: Final = ("--admin-token", "--api-key")

api_key_option = click.option("--api-key", default="", help="What --url wants, where it asks for a key.")


def check_api_key(api_key: str, url: str | None) -> None:
    """Refuse a key that nobody would be given.

    Raises:
        click.UsageError: there is no server at a URL.
    """
    if api_key and url is None:
        raise click.UsageError("--api-key is for the server at --url; one of its own asks for none")


def without_secrets(arguments: Sequence[str]) -> Iterator[str]:
    """The arguments of a command as they may be passed on."""
    follows = False
    for argument in arguments:
        if follows:
            yield "***"
        elif argument.startswith(_SECRETS) and "=" in argument:
            yield f"{argument.partition('=')[0]}=***"
        else:
            yield argument
        follows = argument in _SECRETS and not follows
