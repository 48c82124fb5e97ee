"""The three files of a job: results, faults, and the one that says which job they belong to. Resumes them together.

Faults are written before the results behind them. So whatever moment a job is killed at, every row before the last
result is either a result or a fault, and what is known of rows after it is a run of faults without a gap.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from hybrid.errors import ConfigError
from hybrid.messages import Signature
from hybrid.offline import identity
from hybrid.offline.append import AppendFile
from hybrid.offline.identity import Identity
from hybrid.offline.lines import read_lines
from hybrid.offline.output import Output, format_of
from hybrid.offline.rows import Fault, Outcome, RowId


class _Written(Struct, frozen=True, omit_defaults=True, kw_only=True):
    index: int
    id: RowId = None
    error: str
    code: str


class _Index(Struct, frozen=True):
    index: int


class Results:
    """Where outcomes go. `start` is the first row that is still to be done, `complete` whether there is none."""

    def __init__(self, path: Path, file: AppendFile, output: Output) -> None:
        self.path = path
        self.errors_path = beside(path, "errors.jsonl")
        self.output = output
        self.start = 0
        self.faults_n = 0  # in the file of faults, also of earlier runs
        self.complete = False
        self._identity: Identity | None = None
        self._file = file
        self._errors: AppendFile | None = None
        self._encode = msgspec.json.Encoder().encode

    @property
    def resumable(self) -> bool:
        """Whether a later run can continue this one."""
        return self._identity is not None

    def begin(self, job: Identity | None, fresh: bool) -> None:
        """Make the files ready: continue those of the same job, else begin new ones. `job` None cannot be resumed.

        Raises:
            ConfigError: there are results of another job, or of nobody knows which.
        """
        state = beside(self.path, "state.json")
        if fresh:
            self._clear(state)
        old = identity.load(state)
        if old is None and self._file.size:
            raise ConfigError(f"{self.path}: is there already, and not by this job; --fresh overwrites it")
        if old is not None and job is None:
            raise ConfigError(f"{self.path}: standard input cannot be resumed; --fresh starts over")
        if old is not None and job is not None:
            other = identity.difference(old, job)
            if other is not None:
                raise ConfigError(f"{self.path}: belongs to another job: {other}; --fresh starts over")
            self.complete = old.rows_n is not None
            self.start = self._recover(old.rows_n)
            job = old
        elif job is not None:
            identity.save(state, job)
        self._identity = job

    def fit(self, signature: Signature) -> None:
        """Check that the output file can hold what the model gives.

        Raises:
            ConfigError: it cannot.
        """
        self.output.fit(signature)

    def append(self, outcomes: Sequence[Outcome]) -> None:
        """Write rows in their order.

        Raises:
            OSError: as writing a file does.
        """
        faults = [(o, o.result) for o in outcomes if isinstance(o.result, Fault)]
        if faults:
            lines = [
                self._encode(_Written(index=o.index, id=o.id, error=fault.text, code=fault.code)) for o, fault in faults
            ]
            self._errors_file().append(b"\n".join([*lines, b""]))
            self.faults_n += len(faults)
        self.output.append(outcomes)

    def sync(self) -> None:
        """Wait until all of it is on the disk; may be called from another thread than `append`."""
        if self._errors is not None:
            self._errors.sync()
        self._file.sync()

    def finish(self, rows_n: int | None) -> None:
        """Make the files readable and durable; `rows_n` says that the job is complete and how many rows it had."""
        self.output.settle()
        self.sync()
        if rows_n is not None and self._identity is not None:
            identity.save(beside(self.path, "state.json"), structs.replace(self._identity, rows_n=rows_n))

    def close(self) -> None:
        """Close the files."""
        if self._errors is not None:
            self._errors.close()
        self._file.close()

    def _clear(self, state: Path) -> None:
        state.unlink(missing_ok=True)
        self._file.cut(0)
        self.errors_path.unlink(missing_ok=True)

    def _recover(self, complete_rows: int | None) -> int:
        behind = self.output.recover() if complete_rows is None else complete_rows
        if self.errors_path.exists():
            follow = complete_rows is None and self.output.format == "jsonl"
            behind = self._recover_errors(behind, follow)
        return behind

    def _recover_errors(self, behind: int, follow: bool) -> int:
        """Keep the faults of rows before `behind`, and with `follow` those from there on without a gap.

        Returns the index behind all of them.
        """
        file = self._errors_file()
        kept = 0
        whole = _ends_whole(file.descriptor)
        for line in read_lines(file.descriptor):
            if line is None or (line.end == file.size and not whole):
                break  # None is for pipes
            index = _index(line.data)
            if follow and index == behind:
                behind += 1
            elif index is None or index >= behind:
                break
            kept = line.end
            self.faults_n += 1
        file.cut(kept)
        return behind

    def _errors_file(self) -> AppendFile:
        if self._errors is None:
            self._errors = AppendFile.open(self.errors_path)
        return self._errors


def open_results(path: Path) -> Results:
    """Open the output file and lock it.

    Raises:
        ConfigError: it cannot be written, another job writes it, or its format is unknown.
    """
    kind = format_of(path)
    file = AppendFile.open(path)
    return Results(path, file, kind(file))


def beside(path: Path, name: str) -> Path:
    """Return the path of a file that belongs to an output file."""
    return path.with_name(f"{path.name}.{name}")


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return not size or os.pread(descriptor, 1, size - 1) == b"\n"


def _index(line: bytes) -> int | None:
    try:
        return msgspec.json.decode(line, type=_Index).index
    except msgspec.DecodeError:
        return None
