"""`.npy` files, read row by row and written row by row. Knows the format and the datatypes, no model and no order.

Reading takes blocks and not a memory map: pages of a map count as memory of the process, all of the file in the end.
The header that is written has room for any number of rows, so that it can be corrected while the file grows.
"""

import io
import math
import os
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from hybrid.errors import ConfigError
from hybrid.messages import DTYPES, Signature, Tensor, TensorSpec
from hybrid.offline.fingerprint import InputFacts, Kind, file_facts
from hybrid.offline.rows import InputRow, Tensors

_BLOCK_BYTES: Final = 1 << 20
#: numpy type -> protocol datatype. Objects (pickled) have none, and BF16 is no type of numpy's.
DATATYPES: Final = {dtype: name for name, dtype in DTYPES.items() if name not in ("BYTES", "BF16")}


class ArrayReader:
    """A file of one array, whose first dimension is the row."""

    kind: Kind = "npy"

    def __init__(self, descriptor: int, name: str) -> None:
        self._descriptor = descriptor
        self._name = name
        self._offset, self.shape, self._dtype = read_header(descriptor, name)
        self.rows_n: int | None = self.shape[0]
        self.size = os.fstat(descriptor).st_size
        self._row_bytes = math.prod(self.shape[1:]) * self._dtype.itemsize
        if self.size < self._offset + self._row_bytes * self.shape[0]:
            raise ConfigError(f"{name}: has {self.size} bytes, too few for the shape {list(self.shape)} that it claims")
        self._spec = TensorSpec("", DATATYPES[self._dtype], self.shape)

    def fit(self, signature: Signature, model: str) -> None:
        """Take the file as the model's only input. Floating-point numbers are converted, nothing else is.

        Raises:
            ConfigError: the model has several inputs, or takes another shape or type.
        """
        inputs = ", ".join(f"`{spec.name}` {spec.datatype} {list(spec.shape)}" for spec in signature.inputs)
        have = f"{self._name}: {self._dtype} {list(self.shape)}"
        if len(signature.inputs) != 1:
            raise ConfigError(f"{have}: one array cannot feed model {model}, which takes {inputs}; use JSONL")
        spec = signature.inputs[0]
        wanted = DTYPES[spec.datatype]
        fits = len(spec.shape) == len(self.shape) and all(
            want in (-1, size) for want, size in zip(spec.shape[1:], self.shape[1:], strict=False)
        )
        if not fits or not (wanted == self._dtype or wanted.kind == self._dtype.kind == "f"):
            raise ConfigError(f"{have} does not fit model {model}, which takes {inputs}")
        self._spec = spec

    def facts(self) -> InputFacts | None:
        """Size, time and head."""
        return file_facts(self._descriptor, "npy")

    def read(self, start: int) -> Iterator[tuple[InputRow, int]]:
        """Yield rows as tensors of the model's input."""
        name, dtype = self._spec.name, DTYPES[self._spec.datatype]
        at_once = max(1, _BLOCK_BYTES // max(1, self._row_bytes))
        for first in range(start, self.shape[0], at_once):
            count = min(at_once, self.shape[0] - first)
            begins = self._offset + first * self._row_bytes
            block = np.frombuffer(_read_exactly(self._descriptor, count * self._row_bytes, begins), self._dtype)
            rows = block.reshape(count, *self.shape[1:]).astype(dtype, copy=False)
            for index in range(count):
                tensor = Tensor(name, self._spec.datatype, rows[index : index + 1])
                end = begins + (index + 1) * self._row_bytes
                yield InputRow(first + index, Tensors((tensor,)), None, tensor.nbytes), end

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._descriptor)


def header(dtype: np.dtype[Any], row_shape: tuple[int, ...], rows: int) -> bytes:
    """Return the start of a file of `rows` rows; its length does not depend on how many they are."""
    buffer = io.BytesIO()
    description = np.lib.format.dtype_to_descr(dtype)
    fields = {"descr": description, "fortran_order": False, "shape": (rows, *row_shape)}
    np.lib.format.write_array_header_1_0(buffer, fields)
    return buffer.getvalue()


def read_header(descriptor: int, name: str) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Return where the rows begin, the shape and the type of an array.

    Raises:
        ConfigError: not a `.npy` file, or one that cannot be read row by row.
    """
    expected = f"{name}: expected a .npy file with a row per item"
    with open(descriptor, "rb", closefd=False) as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran_order, dtype = read(file)
        except ValueError as error:
            raise ConfigError(f"{expected}: {error}") from error
        offset = file.tell()
    if dtype.newbyteorder("=") not in DATATYPES or not dtype.isnative:
        raise ConfigError(f"{expected}, of a type that models take, in this machine's byte order; it holds {dtype}")
    if not shape or (fortran_order and len(shape) > 1):
        raise ConfigError(f"{expected}; its shape is {list(shape)}{' by columns' if fortran_order else ''}")
    return offset, shape, dtype


def _read_exactly(descriptor: int, count: int, offset: int) -> bytes:
    data = os.pread(descriptor, count, offset)
    while len(data) < count:
        more = os.pread(descriptor, count - len(data), offset + len(data))
        if not more:
            raise OSError(f"the file ends at {offset + len(data)} bytes, it was longer before")
        data += more
    return data
