"""A model folder with one sub-folder per version: `1/`, `2/`, beside the `model.toml` that applies to all.

Owns which sub-folders are versions and which of them are wanted.
"""

import re
from pathlib import Path
from typing import Final

from msgspec import structs

from hybrid.config import ModelSettings
from hybrid.errors import ConfigError
from hybrid.models import folder

_NUMBER: Final = re.compile(r"[1-9][0-9]{0,17}")


def from_folder(path: Path, name: str | None = None) -> tuple[ModelSettings, ...]:
    """Return the settings of every version of a model folder that is wanted, oldest first.

    A folder without version sub-folders is one version. A file named in `model.toml` is looked for in the folder of
    the version, then beside `model.toml`. `name` is what the model must be called, if that is given.

    Raises:
        ConfigError: anything in `model.toml` is wrong, a wanted version is missing, or a file cannot be read.
        StartupError: the engine for the model is not part of this build.
    """
    settings = folder.described(path, name)
    toml = path / folder.MODEL_FILE
    there = version_folders(path)
    if not there:
        if settings.versions != "latest":
            raise ConfigError(f"{toml}: `versions`: expected sub-folders 1, 2, ... with the versions, found none")
        return (folder.located(settings, path, path),)
    if settings.version != "1":
        raise ConfigError(f"{toml}: `version`: expected none, the sub-folders are the versions: {', '.join(there)}")
    return tuple(
        structs.replace(folder.located(settings, path, path / version), version=version)
        for version in _wanted(settings, there, toml)
    )


def version_folders(path: Path) -> tuple[str, ...]:
    """Return the names of the version sub-folders in the order of their numbers.

    Raises:
        OSError: the folder cannot be read.
    """
    return tuple(sorted((p.name for p in path.iterdir() if _NUMBER.fullmatch(p.name) and p.is_dir()), key=int))


def _wanted(settings: ModelSettings, there: tuple[str, ...], toml: Path) -> tuple[str, ...]:
    if settings.versions == "latest":
        return there[-1:]
    if settings.versions == "all":
        return there
    missing = [version for version in settings.versions if version not in there]
    if missing or not settings.versions:
        what = f"no sub-folder for {', '.join(missing)}" if missing else "an empty list"
        raise ConfigError(f"{toml}: `versions`: expected some of {', '.join(there)}, got {what}")
    return tuple(version for version in there if version in settings.versions)
