"""What INPUT is: which kind of file, how many rows, what tells whether it is still the same, and its rows in order.

Reads files; knows no model. A row that makes no sense becomes a `Fault` in its place, so that the rest goes on.
"""

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

from hybrid.errors import ConfigError
from hybrid.offline.array_file import ArrayReader
from hybrid.offline.fingerprint import InputFacts, Kind, file_facts
from hybrid.offline.json_rows import JsonRows
from hybrid.offline.lines import MAX_LINE_BYTES, count_lines, read_lines
from hybrid.offline.rows import Fault, InputRow, Picture, Text

STDIN: Final = "-"
IMAGE_SUFFIXES: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_KINDS: Final[dict[str, Kind]] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "text", ".npy": "npy"}
_COUNTED_BYTES: Final = 256 << 20  # larger files are not read twice just to know the end of the progress bar


class Source(Protocol):
    """Rows in a fixed order."""

    kind: Kind
    rows_n: int | None  # None where it is not known
    size: int  # bytes; 0 where they are not known

    def facts(self) -> InputFacts | None:
        """Return what a later run compares; None for what cannot be read twice."""

    def read(self, start: int) -> Iterator[tuple[InputRow, int] | None]:
        """Yield every row from number `start` on, with the position in the input behind it, in bytes.

        None says that waiting for the next row begins.

        Raises:
            OSError: the input cannot be read any further.
        """

    def close(self) -> None:
        """Let go of the files."""


def open_source(name: str, kind: Kind | None) -> Source:
    """Open INPUT: a path, or `-` for standard input. `kind` None is decided by the name.

    Raises:
        ConfigError: there is no such file, it cannot be read, its kind is not known, or it is a folder without images.
    """
    if name == STDIN:
        if kind not in (None, "jsonl", "text"):
            raise ConfigError(f"standard input cannot be read as {kind}; expected jsonl or text")
        return LineSource(os.dup(0), kind or "jsonl", Path())
    path = Path(name)
    try:
        if not path.exists():
            raise ConfigError(f"{path}: no such file; expected JSONL, text lines, .npy, or a folder of images")
        if path.is_dir():
            if kind not in (None, "images"):
                raise ConfigError(f"{path}: is a folder, which cannot be read as {kind}")
            return _images_of(path)
        kind = kind or _kind_of(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"{error.filename or path}: cannot be read: {error.strerror}") from error
    if kind != "npy":
        return LineSource(descriptor, kind, path.parent)
    try:
        return ArrayReader(descriptor, str(path))
    except ConfigError:
        os.close(descriptor)
        raise


class LineSource:
    """JSONL or text, from a file or a pipe."""

    def __init__(self, descriptor: int, kind: Kind, folder: Path) -> None:
        self.kind = kind
        self._descriptor = descriptor
        self._folder = folder
        self._is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        self.size = os.fstat(descriptor).st_size if self._is_file else 0
        self.rows_n = count_lines(descriptor, _COUNTED_BYTES) if self._is_file else None

    def facts(self) -> InputFacts | None:
        """Size, time and head of a file; nothing of a pipe."""
        return file_facts(self._descriptor, self.kind) if self._is_file else None

    def read(self, start: int) -> Iterator[tuple[InputRow, int] | None]:
        """Yield rows; blank lines of JSONL are no rows, an empty line of text is an empty text."""
        json_rows = JsonRows(self._folder) if self.kind == "jsonl" else None
        index = number = 0
        for line in read_lines(self._descriptor):
            if line is None:
                yield None
                continue
            number += 1
            if json_rows is not None and not line.oversized and not line.data.strip():
                continue
            index += 1
            if index <= start:
                continue
            if line.oversized:
                row = InputRow(index - 1, Fault(f"line {number} is longer than {MAX_LINE_BYTES >> 20} MiB"))
            elif json_rows is not None:
                row = json_rows.read(index - 1, line.data, number)
            else:
                row = InputRow(index - 1, Text(line.data), None, len(line.data))
            yield row, line.end

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


class FolderSource:
    """Every image below a folder, ordered by path; the path is the row's id. Hidden files are left out."""

    kind: Kind = "images"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._names = sorted(_images(folder))
        self.rows_n: int | None = len(self._names)
        self.size = 0

    def facts(self) -> InputFacts | None:
        """Names, sizes and times of all files; the digest is over all of them, as none of them is the head."""
        digest = hashlib.blake2b(digest_size=16)
        size = newest = 0
        for name in self._names:
            length, changed_ns = _facts_of(self._folder / name)
            size += length
            newest = max(newest, changed_ns)
            digest.update(f"{name}\0{length}\0{changed_ns}\n".encode("utf-8", "surrogateescape"))
        return InputFacts("images", size, newest, digest.hexdigest())

    def read(self, start: int) -> Iterator[tuple[InputRow, int]]:
        """Yield the files' contents; one that cannot be read is a fault."""
        for index in range(start, len(self._names)):
            name = self._names[index]
            shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            path = self._folder / name
            try:
                if stat.S_ISFIFO(path.stat().st_mode):  # reading it would wait for somebody who writes
                    raise OSError(errno.EINVAL, "it is a pipe")
                data = path.read_bytes()
            except OSError as error:
                yield InputRow(index, Fault(f"cannot be read: {error.strerror}"), shown), 0
            else:
                yield InputRow(index, Picture(data), shown, len(data)), 0

    def close(self) -> None:
        """Nothing stays open."""


def _images_of(folder: Path) -> FolderSource:
    """A folder that exists is meant to hold something; an empty file may well be what a step before has found."""
    source = FolderSource(folder)
    if not source.rows_n:
        expected = ", ".join(IMAGE_SUFFIXES)
        raise ConfigError(f"{folder}: no images in this folder or below; expected files that end with {expected}")
    return source


def _kind_of(path: Path) -> Kind:
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        known = ", ".join(_KINDS)
        raise ConfigError(f"{path}: the suffix says nothing of the format ({known} do); name it with --format")
    return kind


def _images(folder: Path) -> Iterator[str]:
    for at, folders, files in os.walk(folder, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if name.lower().endswith(IMAGE_SUFFIXES) and not name.startswith("."):
                yield os.path.relpath(os.path.join(at, name), folder)


def _refuse(error: OSError) -> None:
    """Without this a folder that cannot be read is left out without a word, and the job ends as complete."""
    raise error


def _facts_of(path: Path) -> tuple[int, int]:
    """Size and time of a file; zeros for one that is gone or a link to nowhere, which is a fault of its row alone."""
    try:
        status = path.stat()
    except OSError:
        return 0, 0
    return status.st_size, status.st_mtime_ns
