"""What a user may write for MODEL, and what that means.

Everything here happens before any engine is loaded, so that a wrong name or path is one clear line at once.
"""

import importlib.util
import os
from difflib import get_close_matches
from pathlib import Path

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.errors import ConfigError
from hybrid.models import builtin, folder, simulated, versions


class ModelRow(Struct, frozen=True):
    """One line of `hybrid models`. `note` describes the model, or says what is missing when it is not available."""

    name: str
    task: str
    engine: str
    available: bool
    note: str


def builtin_names() -> tuple[str, ...]:
    """Return the names of the real models that are served when no model is named."""
    return tuple(builtin.MODELS)


def resolve(argument: str) -> ModelSettings:
    """Return the settings of a model; of a folder with several versions those of the highest that is wanted.

    Raises:
        ConfigError, StartupError: as `resolve_all`.
    """
    return resolve_all(argument)[-1]


def resolve_all(argument: str) -> tuple[ModelSettings, ...]:
    """Return the settings of a built-in, `simulated:NAME`, a model file or a model folder: one for each version.

    A built-in name wins over a file of the same name; `./minilm` means the file.

    Raises:
        ConfigError: no such model; the message says what was expected and names the nearest known.
        StartupError: the model needs an engine that this build lacks.
    """
    path = place_of(argument)
    if path is None:
        return (_by_name(argument),)
    try:
        if argument and path.is_dir():
            return versions.from_folder(path)
        if argument and path.exists():
            return (folder.from_file(path),)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if path.suffix or len(path.parts) > 1:
        raise ConfigError(f"{path}: no such file; expected a model file, a model folder, or one of {_all_names()}")
    known = (*builtin.MODELS, *(simulated.PREFIX + name for name in simulated.DEVICES))
    raise ConfigError(
        f"unknown model `{argument}`; {_nearest(argument, known)}; also taken: a path to a model file or model folder"
    )


def place_of(argument: str) -> Path | None:
    """Return the file or folder that an argument means, there or not; None for a name that is known here."""
    if argument.startswith(simulated.PREFIX) or argument in builtin.MODELS:
        return None
    path = Path(argument).expanduser()
    return path.parent if path.name == folder.MODEL_FILE and os.path.isfile(path) else path


def list_models() -> tuple[ModelRow, ...]:
    """Return every model that can be served by name, available or not."""
    rows = [_builtin_row(name) for name in builtin.MODELS]
    for name, (note, _) in simulated.DEVICES.items():
        rows.append(ModelRow(simulated.PREFIX + name, "simulated", "simulated", True, note))
    return tuple(rows)


def _by_name(argument: str) -> ModelSettings:
    if argument in builtin.MODELS:
        return builtin.MODELS[argument]()
    name = argument.removeprefix(simulated.PREFIX)
    if name not in simulated.DEVICES:
        raise ConfigError(f"unknown simulated device `{name}`; {_nearest(name, tuple(simulated.DEVICES))}")
    return simulated.settings_of(name)


def _builtin_row(name: str) -> ModelRow:
    task, engine = builtin.KINDS[name]
    try:
        settings = builtin.MODELS[name]()
    except ConfigError as error:
        return ModelRow(name, task, engine, False, str(error))
    if importlib.util.find_spec(engine) is None:
        note = f"engine {engine} is not installed; pip install {engine}"
        return ModelRow(name, task, engine, False, note)
    return ModelRow(name, task, engine, True, settings.description)


def _nearest(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, n=2)
    return f"did you mean {' or '.join(f'`{n}`' for n in near)}?" if near else f"expected one of {', '.join(known)}"


def _all_names() -> str:
    return f"{', '.join(builtin.MODELS)}, {simulated.PREFIX}NAME"
