"""A model on disk: a bare model file, or a folder with a `model.toml`.

Owns the checks on files before anything is loaded. Reads no model file; knows no engine but by its name.
"""

import os
import re
from pathlib import Path
from typing import Final

from msgspec import structs

from hybrid.config import ModelSettings, PreprocessSettings
from hybrid.config_file import load_settings, load_toml
from hybrid.engines.registry import MODEL_SUFFIXES, engine_name
from hybrid.errors import ConfigError

MODEL_FILE: Final = "model.toml"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,127}")


def from_file(path: Path) -> ModelSettings:
    """Return the settings for a bare model file; its stem becomes the name.

    Raises:
        ConfigError: the file cannot be read, is empty, or is of no kind that an engine takes.
        StartupError: the engine for it is not part of this build.
    """
    check_file(path, "model file")
    settings = ModelSettings(name=_made_name(path.stem), file=str(path.resolve()))
    engine_name(settings)
    return settings


def from_folder(folder: Path) -> ModelSettings:
    """Return the settings that `model.toml` in this folder describes, with absolute paths.

    Files named in it are relative to the folder and may not lead out of it, neither by `..` nor by a symlink: a folder
    from a stranger must not make the server read the rest of the disk. `name` defaults to the folder's name, `file` to
    the only model file in the folder.

    Raises:
        ConfigError: anything in `model.toml` is wrong, or a file that it names cannot be read.
        StartupError: the engine for the model is not part of this build.
    """
    return located(described(folder), folder, folder)


def described(folder: Path, name: str | None = None) -> ModelSettings:
    """Return what `model.toml` says, with files as it names them.

    With `name` the model is called so: a `model.toml` may then be missing, but must not say another name.

    Raises:
        ConfigError: anything in it is wrong.
    """
    toml = folder / MODEL_FILE
    if toml.is_file():
        data = load_toml(toml)
    elif name is None:
        raise ConfigError(f"{folder}: no {MODEL_FILE} in this folder; expected one beside the model file")
    else:
        data = {}
    settings = load_settings(ModelSettings, {"name": name or _made_name(folder.resolve().name), **data}, str(toml))
    if name is not None and settings.name != name:
        raise ConfigError(f"{toml}: `name`: expected {name!r}, the name of the folder, got {settings.name!r}")
    _check(settings, toml)
    return settings


def located(settings: ModelSettings, folder: Path, place: Path) -> ModelSettings:
    """Return the settings with absolute paths. Files are looked for in `place`, a folder inside, then in `folder`.

    Raises:
        ConfigError: a file cannot be read, or leads out of the folder.
        StartupError: the engine for the model is not part of this build.
    """
    toml = folder / MODEL_FILE
    if settings.engine == "simulated" or (settings.engine == "auto" and settings.simulated is not None):
        return settings
    file = _inside((place, folder), settings.file or _only_model(place, toml), toml, "file")
    preprocess = _preprocess(settings.preprocess, (place, folder), toml)
    settings = structs.replace(settings, file=file, preprocess=preprocess)
    engine_name(settings)
    return settings


def holds_model(folder: Path) -> bool:
    """Whether a folder has a `model.toml` or a file that looks like a model.

    Raises:
        OSError: it cannot be read.
    """
    return any(path.name == MODEL_FILE or path.suffix.lower() in MODEL_SUFFIXES for path in folder.iterdir())


def fits_url(name: str) -> bool:
    """Whether a model or version may be called so."""
    return _NAME.fullmatch(name) is not None


def check_file(path: Path, what: str) -> None:
    """Refuse a file that is missing, no regular file, unreadable or empty.

    Raises:
        ConfigError: which of these it is.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such file; expected a {what}")
    if not path.is_file():
        raise ConfigError(f"{path}: not a regular file; expected a {what}")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{path}: may not be read by this user; expected a readable {what}")
    if path.stat().st_size == 0:
        raise ConfigError(f"{path}: is empty; expected a {what}")


def _check(settings: ModelSettings, toml: Path) -> None:
    """What the types of the settings cannot say."""
    if not fits_url(settings.name):
        raise ConfigError(
            f"{toml}: `name`: expected letters, digits and . _ : + - (it is part of an URL), got {settings.name!r}"
        )
    if not fits_url(settings.version):
        raise ConfigError(f"{toml}: `version`: expected letters, digits and . _ : + -, got {settings.version!r}")
    image = settings.preprocess.image
    if settings.preprocess.text and image:
        raise ConfigError(f"{toml}: `preprocess`: expected `text` or `image`, got both")
    for key in ("mean", "std") if image else ():
        if len(getattr(image, key)) != 3:
            raise ConfigError(f"{toml}: `preprocess.image.{key}`: expected 3 numbers, got {len(getattr(image, key))}")
    if image and 0.0 in image.std:
        raise ConfigError(f"{toml}: `preprocess.image.std`: expected numbers other than 0, got {list(image.std)}")


def _preprocess(settings: PreprocessSettings, places: tuple[Path, Path], toml: Path) -> PreprocessSettings:
    if settings.text is None:
        return settings
    tokenizer = _inside(places, settings.text.tokenizer, toml, "preprocess.text.tokenizer")
    return structs.replace(settings, text=structs.replace(settings.text, tokenizer=tokenizer))


def _inside(places: tuple[Path, Path], value: str, toml: Path, key: str) -> str:
    place, folder = places
    path = place / value if (place / value).exists() else folder / value
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ConfigError(f'{toml}: `{key}`: "{value}" leads out of the model folder; expected a file inside it')
    try:
        check_file(path, "model file" if key == "file" else "tokenizer.json")
    except ConfigError as error:
        raise ConfigError(f"{toml}: `{key}`: {error}") from None
    return str(path.resolve())


def _only_model(folder: Path, toml: Path) -> str:
    found = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in MODEL_SUFFIXES)
    if len(found) == 1:
        return found[0]
    there = f"the folder has {', '.join(found)}" if found else "the folder has no model file"
    raise ConfigError(f"{toml}: missing key `file`; expected the name of the model file ({there})")


def _made_name(text: str) -> str:
    """A name that fits into an URL, from a file or folder name that may not."""
    return re.sub(r"[^A-Za-z0-9._:+-]", "_", text).lstrip("._:+-")[:128] or "model"
