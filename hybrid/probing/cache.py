"""What was measured, kept between starts: one JSON file per machine and model.

Owns the folder. Whatever is wrong with it (not there, not ours, broken, full) costs a new measurement and at most a
warning: a cache must never keep a server from starting.
"""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from hybrid.config import ModelSettings
from hybrid.folders import cache_folder
from hybrid.planner.measures import EngineProfile, ModelProfile
from hybrid.probing.fingerprint import file_digest, model_files, model_key

_FORMAT: Final = 5
_MEMO: Final = "files.json"
_HOMELESS: Final = (
    "there is no home folder to keep measurements in, so the next start measures again; "
    "set XDG_CACHE_HOME or planner.cache_folder"
)

T = TypeVar("T")


class Record(Struct, frozen=True):
    """A profile and the questions that it was made for. One that was asked before is answered without measuring.

    `notes` say what a reader of the plan should know, by engine: why one was left out. `unfinished` are questions for
    which the time did not suffice, with the budget in seconds that they had. `sample` is what the engine `reference`
    answered, for comparison with engines that come later.
    """

    profile: ModelProfile
    questions: tuple[str, ...] = ()
    notes: dict[str, str] = {}
    unfinished: dict[str, float] = {}
    reference: str = ""
    sample: dict[str, tuple[float | None, ...]] = {}
    format: int = _FORMAT


class FileMemo(Struct, frozen=True):
    """The digest of a file as long as size and time of change (ns) are these."""

    size: int
    changed_ns: int
    digest: str


class Cache:
    """The measurements in one folder, in which `~` is the home; None where there is none to be had.

    What could not be written is known to this object alone; `warning` is the last thing that went wrong, "" while
    nothing has.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else Path(os.path.expanduser(folder))
        self._unwritten: dict[str, bytes] = {}
        self.warning = ""

    def load(self, machine: str, digest: str) -> Record | None:
        """Return what is known of a model on a machine; None when nothing is, or nothing that can be used."""
        record = self._read(_name(machine, digest), Record)
        if record is None:
            return None
        profile = record.profile
        if record.format != _FORMAT or (profile.machine, profile.digest) != (machine, digest):
            return None
        if not all(map(_sound, profile.engines)):
            return None
        return replace(record, profile=replace(profile, engines=tuple(map(_with_failures, profile.engines))))

    def save(self, record: Record) -> None:
        """Keep a record. JSON has no infinity, so failures are kept without a time."""
        profile = record.profile
        kept = replace(record, profile=replace(profile, engines=tuple(map(_without_infinity, profile.engines))))
        data = msgspec.json.format(msgspec.json.encode(kept), indent=1)
        self._write(_name(profile.machine, profile.digest), data)

    def digest(self, model: ModelSettings) -> str:
        """Return the key of a model. A file that has not changed since it was last seen is not read again."""
        memo = self._read(_MEMO, dict[str, FileMemo]) or {}
        known: dict[str, FileMemo] = {}
        for path in model_files(model):
            try:
                found = path.stat()
                name = str(path.resolve())
                old = memo.get(name)
                if old is None or (old.size, old.changed_ns) != (found.st_size, found.st_mtime_ns):
                    old = FileMemo(found.st_size, found.st_mtime_ns, file_digest(path))
                known[name] = old
            except OSError:
                continue
        if any(memo.get(name) != entry for name, entry in known.items()):
            self._write(_MEMO, msgspec.json.encode({**memo, **known}))
        return model_key(model, tuple(entry.digest for entry in known.values()))

    def _read(self, name: str, kind: type[T]) -> T | None:
        try:
            data = self._unwritten.get(name)
            if data is None:
                if self._folder is None:
                    return None
                data = (self._folder / name).read_bytes()
            return msgspec.json.decode(data, type=kind)
        except (OSError, msgspec.DecodeError):
            return None

    def _write(self, name: str, data: bytes) -> None:
        """Write a file whole or not at all: two servers may start at once, and a reader must see one of both."""
        self._unwritten[name] = data
        if self._folder is None:
            self.warning = _HOMELESS
            return
        path = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor, temporary = tempfile.mkstemp(dir=self._folder, prefix=".", suffix=".tmp")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                os.replace(temporary, path)
            except BaseException:
                os.unlink(temporary)
                raise
            del self._unwritten[name]
        except OSError as error:
            self.warning = f"{path} cannot be written, so the next start measures again: {error.strerror}"


def default_folder(environ: Mapping[str, str]) -> Path | None:
    """Return where measurements are kept: among the user's caches, None for a user without a home."""
    base = cache_folder(environ)
    return base / "probes" if base is not None else None


def _name(machine: str, digest: str) -> str:
    return f"{digest}-{machine}.json"


def _sound(engine: EngineProfile) -> bool:
    """Whether its numbers can be computed with: a file that was edited or damaged may be JSON of the right form."""
    least = [engine.fixed_rows if engine.fixed_rows is not None else 1]
    least += [min(timing.probe.rows, timing.probe.instances, timing.probe.threads) for timing in engine.timings]
    beside = engine.beside.cpu_s >= engine.beside.loop_s >= 0 and engine.beside.turn_s >= 0
    return min(least) >= 1 and beside and all(timing.failure or timing.seconds > 0 for timing in engine.timings)


def _without_infinity(engine: EngineProfile) -> EngineProfile:
    return replace(engine, timings=tuple(replace(t, seconds=0.0) if t.failure else t for t in engine.timings))


def _with_failures(engine: EngineProfile) -> EngineProfile:
    return replace(engine, timings=tuple(replace(t, seconds=float("inf")) if t.failure else t for t in engine.timings))
