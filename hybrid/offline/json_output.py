"""Results as JSONL: {"index", "id"?, "outputs": {name: numbers, nested as one row of the tensor}}.

A row that failed has no line here. Numbers read back exactly; what JSON cannot hold makes the row a fault.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from hybrid.errors import ConfigError
from hybrid.messages import Signature, Tensor
from hybrid.offline.append import AppendFile
from hybrid.offline.rows import Array, Fault, Line, Outcome, ReadyRow, RowId

_BF16: Final = "BF16"


class _Written(Struct, frozen=True, omit_defaults=True, kw_only=True):
    index: int
    id: RowId = None
    outputs: dict[str, Any]


class _Index(Struct, frozen=True):
    index: int


class JsonOutput:
    """Writes and recovers a JSONL file."""

    format = "jsonl"

    def __init__(self, file: AppendFile) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    def recover(self) -> int:
        """Drop a line that was torn in the middle; the last whole one says how far the job came."""
        line, end = self._file.last_line()
        self._file.cut(end)
        if not end:
            return 0
        try:
            return msgspec.json.decode(line, type=_Index).index + 1
        except msgspec.DecodeError as error:
            raise ConfigError(f"{self._file.path}: its last line is no result: {error}; --fresh starts over") from error

    def fit(self, signature: Signature) -> None:
        """JSON holds all outputs of all models."""

    def encode(self, rows: Sequence[ReadyRow], outputs: Sequence[Tensor], finite: bool) -> list[Line | Fault]:
        """One line per row."""
        names = [tensor.name for tensor in outputs]
        bytes_in = any(tensor.datatype == "BYTES" for tensor in outputs)
        columns = [_values(tensor) for tensor in outputs]
        lines: list[Line | Fault] = []
        for position, row in enumerate(rows):
            fault = None if finite else _unwritable(position, outputs)
            if fault is not None:
                lines.append(fault)
                continue
            values = {name: column[position] for name, column in zip(names, columns, strict=True)}
            try:
                if bytes_in:
                    values = {name: _text(value) for name, value in values.items()}
                written = _Written(index=row.index, id=row.id, outputs=values)
                lines.append(Line(self._encode(written) + b"\n"))
            except UnicodeDecodeError:
                lines.append(
                    Fault("an output holds bytes that are no UTF-8 text, so JSON cannot carry it", "output_invalid")
                )
        return lines

    def append(self, outcomes: Sequence[Outcome]) -> None:
        """Write the lines of the rows that have one."""
        self._file.append(b"".join([o.result.data for o in outcomes if isinstance(o.result, Line)]))

    def settle(self) -> None:
        """A JSONL file is one at any moment."""


def _values(tensor: Tensor) -> list[Any]:
    if tensor.datatype == _BF16:  # carried as its bits, the upper half of a float32
        values: list[Any] = (tensor.array.astype(np.uint32) << 16).view(np.float32).tolist()
        return values
    values = tensor.array.tolist()
    return values


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(element) for element in value]
    return value.decode() if isinstance(value, bytes) else value


def _unwritable(position: int, outputs: Sequence[Tensor]) -> Fault | None:
    for tensor in outputs:
        if not _finite(tensor.array[position]):
            text = f"output `{tensor.name}` holds NaN or infinity, which JSON cannot; an output file .npy can"
            return Fault(text, "output_invalid")
    return None


def _finite(array: Array) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
