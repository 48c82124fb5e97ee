"""What was measured, on disk after every trial, so that an interrupted search can go on.

One JSON object per line: first what was searched, then a question with its answer each. Owns the file; must never know
what the answers mean. A search that is resumed asks the same questions again and gets the answers from here.
"""

import contextlib
import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from hybrid import folders
from hybrid.errors import ConfigError
from hybrid.planner.measures import Setting
from hybrid.tune.seeds import Bounds
from hybrid.tune.values import Ask, Load, Seen, Terms

_VERSION: Final = 1
_NAME_LENGTH: Final = 60


class Subject(Struct, frozen=True):
    """What is searched, and where: answers are kept for the same subject only. `machine` and `digest` are opaque."""

    model: str
    machine: str
    digest: str
    url: str
    bounds: Bounds
    terms: Terms
    most: int
    version: int = _VERSION


class _Entry(Struct, frozen=True):
    setting: Setting
    load: Load
    seen: Seen


class Journal:
    """The file of one subject. Without `resume` what was there is dropped."""

    def __init__(self, folder: Path, subject: Subject, resume: bool) -> None:
        head = msgspec.json.encode(subject)
        # For the eye only, and cut: paths may be longer than the name of a file. The digest tells subjects apart.
        name = "".join(c if c.isascii() and c.isalnum() else "-" for c in subject.model)[-_NAME_LENGTH:]
        self.path = folder / f"{name}-{hashlib.blake2b(head, digest_size=8).hexdigest()}.jsonl"
        self._known: dict[bytes, list[Seen]] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = os.fdopen(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), "r+b")
            self._lock()  # before anything is dropped
            whole = self._read(head) if resume else 0
            self._file.seek(whole)
            self._file.truncate()
            if not whole:
                self._write(head)
        except OSError as error:
            raise self._refused(error) from error
        self.resumed_n = sum(map(len, self._known.values()))

    def known(self, ask: Ask) -> Seen | None:
        """Return a recorded answer, each once, in the order in which they were recorded."""
        seen = self._known.get(_key(ask))
        return seen.pop(0) if seen else None

    def add(self, ask: Ask, seen: Seen) -> None:
        """Record an answer; it is on the disk when this returns.

        Raises:
            ConfigError: it cannot be written, as on a full disk.
        """
        try:
            self._write(msgspec.json.encode(_Entry(ask.setting, ask.load, seen)))
        except OSError as error:
            raise self._refused(error) from error

    def close(self) -> None:
        """Close the file, which stays."""
        with contextlib.suppress(OSError):  # what could not be written is tried once more, and was reported then
            self._file.close()

    def _lock(self) -> None:
        """Keep others from writing into the same file, and from measuring while this one does."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise ConfigError(f"{self.path}: another `hybrid tune` of the same is at work") from None
        except OSError:
            return  # a file system without locks

    def _refused(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"{self.path}: cannot be written ({error.strerror}); set XDG_CACHE_HOME to a folder that can be"
        )

    def _write(self, line: bytes) -> None:
        self._file.write(line + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, head: bytes) -> int:
        """Read what is whole, and return where that ends; 0 where there is nothing."""
        data = self._file.read()
        if not data.startswith(head + b"\n"):
            return 0
        end = len(head) + 1
        for line in data[end:].splitlines(keepends=True):
            try:
                entry = msgspec.json.decode(line, type=_Entry)
            except msgspec.DecodeError:
                break
            if not line.endswith(b"\n"):
                break
            self._known.setdefault(_key(entry), []).append(entry.seen)
            end += len(line)
        return end


def cache_folder() -> Path:
    """Return where journals are kept: below XDG_CACHE_HOME, or ~/.cache.

    Raises:
        ConfigError: there is no home folder.
    """
    base = folders.cache_folder(os.environ)
    if base is None:
        raise ConfigError("there is no home folder to keep measurements in; set XDG_CACHE_HOME to a folder")
    return base / "tune"


def _key(asked: Ask | _Entry) -> bytes:
    return msgspec.json.encode((asked.setting, asked.load))
