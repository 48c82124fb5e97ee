"""One line of JSONL -> one row: {"id"?, "text" | "image" | "inputs"}; other keys are left alone.

Knows which of the three a line holds and how an image is named in it. Must never know a model.
"""

import os
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from hybrid.errors import BadRequest
from hybrid.offline.rows import Fault, InputRow, Picture, RowId, Tensors, Text
from hybrid.protocol.oip_tensors import read_tensors
from hybrid.protocol.oip_wire import WireTensor

_LONGEST_PATH: Final = 4096
_LOOKS_LIKE_FILE: Final = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


_WORD: Final = 1 << 63  # numbers beyond it can be read and not written again


class _Wire(Struct, frozen=True):
    id: str | int | None = None
    text: str | None = None
    image: str | None = None
    inputs: tuple[WireTensor, ...] | None = None


class _Id(Struct, frozen=True):
    id: str | int | None = None


class JsonRows:
    """Reads lines; relative paths of images are relative to `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._decode = msgspec.json.Decoder(_Wire).decode

    def read(self, index: int, line: bytes, number: int) -> InputRow:
        """Return row `index`, which stands in line `number` (from 1); what is wrong with it is a `Fault`."""
        try:
            wire = self._decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            return InputRow(index, Fault(f"line {number}: {_what(error)}"), _id(line))
        if isinstance(wire.id, int) and not -_WORD <= wire.id < _WORD:
            return InputRow(index, Fault(f"line {number}: `id`: expected a string or a number of 64 bits"))
        try:
            return self._row(index, wire)
        except (BadRequest, UnicodeEncodeError) as error:
            return InputRow(index, Fault(f"line {number}: {error}"), wire.id)

    def _row(self, index: int, wire: _Wire) -> InputRow:
        given = [name for name in ("text", "image", "inputs") if getattr(wire, name) is not None]
        if len(given) != 1:
            raise BadRequest(f"expected one of `text`, `image` and `inputs`, got {' and '.join(given) or 'none'}")
        if wire.text is not None:
            content = wire.text.encode()
            return InputRow(index, Text(content), wire.id, len(content))
        if wire.image is not None:
            data = self._image(wire.image)
            return InputRow(index, Picture(data), wire.id, len(data))
        tensors = read_tensors("input", wire.inputs or (), b"", None)
        return InputRow(index, Tensors(tensors), wire.id, sum(tensor.nbytes for tensor in tensors))

    def _image(self, value: str) -> bytes:
        """The file of that name; without one, base64 text, which the model's image step reads."""
        if len(value) <= _LONGEST_PATH and "\0" not in value:
            path = self._folder / value
            if os.path.isfile(path):  # and not Path.is_file, which raises for names that no file can have
                try:
                    return path.read_bytes()
                except OSError as error:
                    raise BadRequest(f"image {value!r} cannot be read: {error.strerror}") from error
            if os.path.splitext(value)[1].lower() in _LOOKS_LIKE_FILE:
                raise BadRequest(f"image {value!r}: no such file, and no base64 either")
        return value.encode()


def _id(line: bytes) -> RowId:
    """The id of a line that is wrong elsewhere, where it can be had."""
    try:
        found = msgspec.json.decode(line, type=_Id).id
        return found if isinstance(found, str) else None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None


def _what(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "JSON is nested too deeply"
    text = str(error)
    return text[:1].lower() + text[1:] if isinstance(error, msgspec.ValidationError) else f"not JSON: {text}"
