"""Where a user's files lie: folders of hybrid by the XDG standard. Creates nothing and knows no file in them."""

import os
from collections.abc import Mapping
from pathlib import Path


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where what can be made again is kept: `hybrid` below `$XDG_CACHE_HOME`, else below `~/.cache`.

    None for a user without a home, as in a container that runs under a number that nobody has.
    """
    return _folder("XDG_CACHE_HOME", ".cache", environ)


def config_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where settings are kept: `hybrid` below `$XDG_CONFIG_HOME`, else below `~/.config`; None as above."""
    return _folder("XDG_CONFIG_HOME", ".config", environ)


def _folder(variable: str, usual: str, environ: Mapping[str, str]) -> Path | None:
    base = environ.get(variable, "")
    if os.path.isabs(base):  # a relative one is to be ignored, says the standard that names the variable
        return Path(base) / "hybrid"
    try:
        home = Path(environ.get("HOME") or Path.home())
    except RuntimeError:
        return None
    return home / usual / "hybrid"
