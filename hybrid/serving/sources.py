"""Where models come from: those named on the command line, and the sub-folders of a model repository.

Owns the names that may be asked for and what each of them means on disk. A name that comes from a client is only ever
compared with the names found here, never made part of a path. Reads files; starts nothing, and must never know what is
served at the moment.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.errors import ConfigError, NotFound, StartupError
from hybrid.models import folder as model_folder
from hybrid.models.catalog import place_of, resolve_all
from hybrid.models.versions import from_folder, version_folders

log = logging.getLogger("hybrid.serving")


class FileStamp(Struct, frozen=True, order=True):
    """One file as it was when somebody looked. The inode tells a file that was put in another one's place."""

    path: str
    modified_ns: int
    size: int
    inode: int


Stamp = tuple[FileStamp, ...]


class ModelSources:
    """What may be served. Every answer is read from disk afresh, so calls belong off the event loop."""

    def __init__(self, arguments: Sequence[str], folder: Path | None = None) -> None:
        """Take what MODEL arguments mean, and a repository folder.

        Raises:
            ConfigError: an argument is no model, or the folder is none.
            StartupError: an argument needs an engine that this build lacks.
        """
        self._arguments: dict[str, list[str]] = {}
        self._folder = folder
        self._passed_over: set[str] = set()
        in_folder = self._folders()
        for argument in arguments:
            name = resolve_all(argument)[0].name
            if name in in_folder:
                raise ConfigError(f"two models are called `{name}`: {argument} and {in_folder[name]}")
            self._arguments.setdefault(name, []).append(argument)

    def required(self, name: str) -> bool:
        """Whether a server must not start without this model: somebody named it."""
        return name in self._arguments

    def names(self) -> tuple[str, ...]:
        """Return every name that may be loaded.

        Raises:
            ConfigError: the repository cannot be read.
        """
        return (*self._arguments, *self._folders())

    def settings(self, name: str) -> tuple[ModelSettings, ...]:
        """Return the settings of every wanted version of a model.

        Raises:
            NotFound: no model of this name, neither named nor in the repository.
            ConfigError: its settings are wrong, or a file cannot be read.
            StartupError: it needs an engine that this build lacks.
        """
        arguments = self._arguments.get(name)
        try:
            if arguments is None:
                path = self._known_folder(name)
                if not self._inside(path):
                    raise ConfigError(f"{path}: leads out of the repository; expected a folder inside it")
                return from_folder(path, name)
            found = tuple(settings for argument in arguments for settings in resolve_all(argument))
        except OSError as error:
            raise ConfigError(f"model {name}: cannot be read: {error}") from error
        other = next((settings.name for settings in found if settings.name != name), None)
        if other is not None:
            raise ConfigError(
                f"model {name} is called {other!r} in its model.toml now: start the server again for that"
            )
        return found

    def stamp(self, name: str) -> Stamp:
        """Return what tells whether the files of a model have changed; empty when it has none, or none any more.

        All files in a model folder count, hidden ones excepted. Of a bare file those count that begin with its name.

        Raises:
            NotFound: no model of this name.
            ConfigError: the repository cannot be read.
        """
        if name in self._arguments:
            return self._stamp(name, None)
        return self._stamp(name, self._known_folder(name))

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all models.

        Raises:
            ConfigError: the repository cannot be read.
        """
        named = {name: self._stamp(name, None) for name in self._arguments}
        return named | {name: self._stamp(name, path) for name, path in self._folders().items()}

    def _stamp(self, name: str, path: Path | None) -> Stamp:
        if path is None:
            places = [place for argument in self._arguments[name] if (place := place_of(argument)) is not None]
            files = [file for place in places for file in _files_of(place)]
        else:
            files = list(_files_below(path)) if self._inside(path) else []
        return tuple(sorted(stamp for file in files if (stamp := _stamp_of(file)) is not None))

    # Repository ----------------------------------------------------------------------------------------------------

    def _known_folder(self, name: str) -> Path:
        path = self._folders().get(name)
        if path is None:
            known = ", ".join(self.names()) or "none"
            raise NotFound(f"no model named {name!r} to load; there are: {known}")
        return path

    def _inside(self, path: Path) -> bool:
        return self._folder is not None and path.resolve().is_relative_to(self._folder.resolve())

    def _folders(self) -> dict[str, Path]:
        """Sub-folders that hold a model, by name."""
        if self._folder is None:
            return {}
        try:
            paths = sorted(path for path in self._folder.iterdir() if not path.name.startswith("."))
        except OSError as error:
            raise ConfigError(f"repository {self._folder}: cannot be read: {error.strerror}") from error
        return {path.name: path for path in paths if path.name not in self._arguments and self._takes(path)}

    def _takes(self, path: Path) -> bool:
        try:
            if not path.is_dir() or not (model_folder.holds_model(path) or version_folders(path)):
                return False
        except OSError:  # say so when it is loaded, not by leaving it out
            pass
        if model_folder.fits_url(path.name):
            return True
        if path.name not in self._passed_over:
            self._passed_over.add(path.name)
            log.warning("%r is passed over: a model's name may have letters, digits and . _ : + -", str(path))
        return False


def read_all(
    sources: ModelSources, strict: bool = False
) -> tuple[dict[str, tuple[ModelSettings, ...]], dict[str, str]]:
    """Return the settings of all models by name, and why others of the repository have none.

    Raises:
        ConfigError, StartupError: the repository cannot be read; a named model is wrong, or any if `strict`.
    """
    found: dict[str, tuple[ModelSettings, ...]] = {}
    broken: dict[str, str] = {}
    for name in sources.names():
        try:
            found[name] = sources.settings(name)
        except StartupError as error:
            if strict or sources.required(name):
                raise
            broken[name] = str(error)
        except NotFound:  # it was removed between two looks
            continue
    return found, broken


def _files_below(folder: Path) -> Iterator[Path]:
    for where, folders, files in os.walk(folder.resolve()):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(where, name) for name in files if not name.startswith("."))


def _files_of(place: Path) -> Iterator[Path]:
    """Files of a model folder, or a model file with what lies beside it: external weights, another format's second."""
    if place.is_dir():
        yield from _files_below(place)
    elif place.parent.is_dir():
        beginnings = (place.name, f"{place.stem}.")
        yield from (path for path in place.parent.iterdir() if path.name.startswith(beginnings))


def _stamp_of(path: Path) -> FileStamp | None:
    try:
        found = path.stat()
    except OSError:  # it went between two looks
        return None
    return FileStamp(str(path), found.st_mtime_ns, found.st_size, found.st_ino)
