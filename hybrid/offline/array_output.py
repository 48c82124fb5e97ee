"""Results as one `.npy` array, row i of it for row i of the input. A row that failed is NaN, or 0 in whole numbers."""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from hybrid.errors import ConfigError
from hybrid.messages import DTYPES, Signature, Tensor
from hybrid.offline.append import AppendFile
from hybrid.offline.array_file import header, read_header
from hybrid.offline.rows import Fault, Line, Outcome, ReadyRow

_FLOAT: Final = "f"


class ArrayOutput:
    """Writes and recovers a `.npy` file. Rows that fail before the shape of a row is known are owed until it is."""

    format = "npy"

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self._row_shape: tuple[int, ...] | None = None
        self._rows_n = 0
        self._owed_n = 0

    def recover(self) -> int:
        """Drop a torn row; the file's length says how many whole ones there are."""
        size = self._file.size
        if size <= len(header(self._dtype, (), 0)):  # nothing behind the header, if that is whole at all
            self._file.cut(0)
            return 0
        offset, shape, self._dtype = read_header(self._file.descriptor, str(self._file.path))
        self._row_shape = shape[1:]
        row_bytes = self._row_bytes()
        if offset != len(header(self._dtype, self._row_shape, 0)) or not row_bytes:
            raise ConfigError(f"{self._file.path}: was not written by hybrid batch; --fresh starts over")
        self._rows_n = (size - offset) // row_bytes
        self._file.cut(offset + self._rows_n * row_bytes)
        return self._rows_n

    def fit(self, signature: Signature) -> None:
        """Take the only output; its shape is known now, or with the first result."""
        path, outputs = self._file.path, signature.outputs
        if len(outputs) != 1:
            names = ", ".join(spec.name for spec in outputs)
            raise ConfigError(f"{path}: .npy holds one tensor and the model gives {names}; write .jsonl instead")
        spec = outputs[0]
        if spec.datatype in ("BYTES", "BF16"):
            raise ConfigError(f"{path}: .npy cannot hold output `{spec.name}` of type {spec.datatype}; write .jsonl")
        dtype, shape = DTYPES[spec.datatype], spec.shape[1:]
        known = -1 not in shape
        if self._rows_n and (dtype != self._dtype or (known and shape != self._row_shape)):
            have = f"rows of {self._dtype} {list(self._row_shape or ())}"
            raise ConfigError(f"{path}: holds {have}, the model gives {dtype} {list(shape)}; --fresh starts over")
        self._dtype = dtype
        if known:
            self._row_shape = shape

    def encode(self, rows: Sequence[ReadyRow], outputs: Sequence[Tensor], finite: bool) -> list[Line | Fault]:
        """The bytes of each row, NaN and infinities as they are."""
        array = outputs[0].array
        if self._row_shape is None:
            self._row_shape = array.shape[1:]
        if array.shape[1:] != self._row_shape:
            shapes = f"{list(array.shape[1:])}, the rows before it {list(self._row_shape)}"
            return [
                Fault(f"output `{outputs[0].name}` has shape {shapes}; .npy cannot hold both", "output_invalid")
            ] * len(rows)
        return [Line(array[position].tobytes()) for position in range(len(rows))]

    def append(self, outcomes: Sequence[Outcome]) -> None:
        """Write all rows, those that failed as well: the place in the file is the row's number."""
        if self._row_shape is None:
            self._owed_n += len(outcomes)
            return
        if not self._file.size:
            self._file.append(header(self._dtype, self._row_shape, 0))
        filler = self._filler()
        parts = [filler] * self._owed_n
        self._owed_n = 0
        parts += [o.result.data if isinstance(o.result, Line) else filler for o in outcomes]
        self._file.append(b"".join(parts))
        self._rows_n += len(parts)

    def settle(self) -> None:
        """Write the number of rows into the header, so that what is there can be loaded."""
        shape = (0,) if self._row_shape is None else self._row_shape
        self._file.overwrite(header(self._dtype, shape, self._rows_n))

    def _filler(self) -> bytes:
        assert self._row_shape is not None
        value = np.nan if self._dtype.kind == _FLOAT else 0
        return np.full(self._row_shape, value, self._dtype).tobytes()

    def _row_bytes(self) -> int:
        return int(np.prod(self._row_shape or (), dtype=np.int64)) * self._dtype.itemsize
