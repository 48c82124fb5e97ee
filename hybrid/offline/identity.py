"""Which job an output file belongs to: the small file beside it, and whether this run is the same job.

Only what changes results counts. Workers, batch size and the like may differ from run to run.
"""

import os
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from hybrid.config import ModelSettings, WorkerSettings
from hybrid.errors import ConfigError
from hybrid.offline.fingerprint import InputFacts


class ModelFile(Struct, frozen=True):
    """The model's file as it was."""

    name: str
    size: int
    modified_ns: int


class Identity(Struct, frozen=True):
    """What a job is. `settings` are those of the model, as JSON; `rows_n` is set once all of them are done."""

    input: InputFacts
    output: str
    model: str
    file: ModelFile | None
    settings: str
    format: int = 1
    rows_n: int | None = None


def identity_of(facts: InputFacts, output: str, model: ModelSettings) -> Identity:
    """Return what this job is. `output` is the format of the output file."""
    file = None
    if model.file:
        status = os.stat(model.file)
        file = ModelFile(os.path.basename(model.file), status.st_size, status.st_mtime_ns)
    # Paths may differ: a checkout that was moved is the same job.
    plain = structs.replace(model, workers=WorkerSettings(), example_rows=(), file="")
    if plain.preprocess.text is not None:
        text = structs.replace(plain.preprocess.text, tokenizer=os.path.basename(plain.preprocess.text.tokenizer))
        plain = structs.replace(plain, preprocess=structs.replace(plain.preprocess, text=text, processes=None))
    return Identity(facts, output, model.name, file, msgspec.json.encode(plain).decode())


def difference(old: Identity, new: Identity) -> str | None:
    """Return what makes this another job, None when it is the same."""
    was, now = old.input, new.input
    checks = (
        (old.format == new.format, "it was written by another version of hybrid"),
        (was.kind == now.kind, f"the input was read as {was.kind}, now as {now.kind}"),
        (was.size == now.size, f"the input had {was.size} bytes, now it has {now.size}"),
        (was.head == now.head, "the input has other content"),
        (was.modified_ns == now.modified_ns, "the input was written to since"),
        (old.output == new.output, f"the output was {old.output}, now {new.output} is asked for"),
        (old.model == new.model, f"the model was {old.model}, now it is {new.model}"),
        (old.file == new.file, "the model's file is another one"),
        (old.settings == new.settings, "the model's settings are others"),
    )
    return next((what for same, what in checks if not same), None)


def load(path: Path) -> Identity | None:
    """Read the file beside an output; None when there is none.

    Raises:
        ConfigError: it is not what `save` writes.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Identity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}: cannot be used: {error}; --fresh starts over") from error


def save(path: Path, identity: Identity) -> None:
    """Write the file beside an output: as a whole or not at all, also when the power fails.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(path.name + ".new")
    with open(beside, "wb") as file:
        file.write(msgspec.json.encode(identity))
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
