"""A file that only grows at its end: opened once for one process, cut back to what is whole, synced on demand."""

import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from hybrid.errors import ConfigError

_TAIL_BYTES: Final = 1 << 16


class AppendFile:
    """One output file. Its owner holds a lock on it, so that a second job cannot mix its lines in."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def open(cls, path: Path) -> "AppendFile":
        """Open or create a file.

        Raises:
            ConfigError: it cannot be written, is no regular file, or another process writes it.
        """
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise ConfigError(f"{path}: is no regular file; expected one that can be cut back and continued")
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise ConfigError(f"{path}: another process is writing it") from None
        except ConfigError:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    @property
    def size(self) -> int:
        """Bytes in the file now."""
        return os.fstat(self.descriptor).st_size

    def cut(self, size: int) -> None:
        """Cut the file back to `size` bytes and continue there."""
        os.ftruncate(self.descriptor, size)
        os.lseek(self.descriptor, size, os.SEEK_SET)

    def append(self, data: bytes) -> None:
        """Write all of `data`.

        Raises:
            OSError: the disk is full, say; part of it may have been written.
        """
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def overwrite(self, data: bytes) -> None:
        """Write `data` over the first bytes of the file; where it continues stays as it is."""
        os.pwrite(self.descriptor, data, 0)
        os.lseek(self.descriptor, 0, os.SEEK_END)

    def last_line(self) -> tuple[bytes, int]:
        """Return the last line that is whole, without its newline, and where the file ends behind it; (b"", 0) if none.

        Reads backwards, so that a large file costs no more than a small one.
        """
        size = self.size
        length = min(size, _TAIL_BYTES)
        while True:
            tail = os.pread(self.descriptor, length, size - length)
            end = tail.rfind(b"\n")
            begin = tail.rfind(b"\n", 0, max(end, 0))
            if begin >= 0 or length == size:
                return (tail[begin + 1 : end], size - length + end + 1) if end >= 0 else (b"", 0)
            length = min(size, 4 * length)

    def sync(self) -> None:
        """Wait until everything is on the disk."""
        os.fsync(self.descriptor)

    def close(self) -> None:
        """Close it, which gives the lock back."""
        os.close(self.descriptor)
