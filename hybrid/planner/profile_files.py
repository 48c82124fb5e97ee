"""Where profiles lie, how one is written, and which one this machine was told to use.

Owns folders, names and the small file that `hybrid profile use` writes. Knows no number of a plan.
"""

import os
import platform
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

from hybrid import folders as xdg
from hybrid.config import Settings
from hybrid.config_file import load_settings, load_toml
from hybrid.errors import ConfigError
from hybrid.planner.profile_text import toml_value

AUTO: Final = "auto"
NONE: Final = "none"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Chosen(Settings, frozen=True):
    """What stands in the file of `hybrid profile use`."""

    profile: str


def folders(here: bool = True) -> tuple[Path, ...]:
    """Where named profiles are looked for, the strongest first.

    The current directory (unless not `here`), the user's, beside the package in a checkout, where a wheel puts them.
    """
    package = Path(__file__).resolve().parent.parent
    user = config_folder()
    found = [Path("profiles")] if here else []
    found += [user / "profiles"] if user is not None else []
    return *found, package.parent / "profiles", Path(sys.prefix) / "share" / "hybrid" / "profiles"


def config_folder() -> Path | None:
    """The user's folder for settings of hybrid; None for a user without a home."""
    return xdg.config_folder(os.environ)


def check_name(name: str) -> str:
    """Return a name that a profile may be saved under.

    Raises:
        ConfigError: it would leave the folder, hide the file, or mean something else on the command line.
    """
    if name in (AUTO, NONE) or name.endswith(".toml") or not _NAME.fullmatch(name):
        raise ConfigError(
            f"`{name}` cannot be the name of a profile; expected up to 64 letters, digits, `.`, `_` and `-`, "
            f"beginning with a letter or digit, not `{AUTO}` or `{NONE}` and without `.toml`"
        )
    return name


def write_profile(name: str, text: str, force: bool = False) -> Path:
    """Write one of the user's profiles, whole or not at all, and return its path.

    Raises:
        ConfigError: it exists (without `force`), or cannot be written.
    """
    path = _user_folder("profiles") / f"{check_name(name)}.toml"
    _write(path, text, force)
    return path


def chosen() -> Chosen | None:
    """What this machine was told to use, or None. A folder that this user cannot read cannot hold a choice of theirs.

    Raises:
        ConfigError: the file is there and wrong.
    """
    base = config_folder()
    if base is None:
        return None
    path = _choice_path(base / "machines")
    try:
        if not path.is_file():
            return None
    except PermissionError:
        return None
    return load_settings(Chosen, load_toml(path), str(path))


def choose(profile: str | None) -> Path:
    """Make a profile this machine's choice, or take the choice back (None); returns the file that says so.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = _choice_path(_user_folder("machines"))
    if profile is not None:
        how = "# Written by `hybrid profile use`; `hybrid profile use auto` removes it.\n"
        _write(path, f"{how}profile = {toml_value(profile)}\n")
        return path
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise _refused(path, error) from error
    return path


def _choice_path(folder: Path) -> Path:
    """One file per machine: a home may be shared by many. By host name, as people tell their machines apart.

    A fingerprint of the hardware would lose the choice with every container that is given another number of CPUs.
    """
    host = re.sub(r"[^A-Za-z0-9._-]", "_", platform.node()).strip(".") or "localhost"
    return folder / f"{host}.toml"


def _user_folder(name: str) -> Path:
    base = config_folder()
    if base is None:
        raise ConfigError("there is no home folder to keep profiles in; set XDG_CONFIG_HOME to a folder")
    return base / name


def _write(path: Path, text: str, force: bool = True) -> None:
    """Write beside the place, then move there, so that no reader ever sees half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(path.parent, error) from error
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            if force:
                os.replace(temporary, path)
            else:
                _move_to_free(temporary, path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except UnicodeEncodeError as error:
        raise ConfigError(f"{path}: cannot be written: {error.object!r} is not Unicode") from error
    except FileExistsError:
        raise ConfigError(f"{path}: exists already; --force replaces it") from None
    except OSError as error:
        raise _refused(path, error) from error


def _move_to_free(temporary: str, path: Path) -> None:
    """Move a file to a name that must be free, which a rename does not look at."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # shared and removable disks may have no links: there the name is taken for a moment by nothing
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        os.replace(temporary, path)


def _refused(path: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"{path}: cannot be written: {error.strerror}; set XDG_CONFIG_HOME to a folder that can be, "
        "or name a profile with --profile"
    )
