"""Tensor data in JSON <-> arrays: flat or nested row-major lists of exactly the elements that the shape holds.

Owns how lists relate to shapes. What an element may be is in `json_elements`. Must never know a request or a model;
faults are `TensorFault` (see `tensors`).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, chain
from operator import mul
from types import GenericAlias
from typing import Any, Final

import msgspec
import numpy as np
import orjson
from msgspec import Raw

from hybrid.protocol.json_elements import TURN_ELEMENTS, Codec, build, codec_of, element_fault, let_others_run
from hybrid.protocol.json_path import show_value
from hybrid.protocol.tensors import Array, Shape, TensorFault, check_strings, element_count, show_shape

#: Longer lists of numbers are read piece by piece: one Python object per element would cost 16 times their bytes.
BIG_BYTES: Final = 1 << 20
_PIECE_BYTES: Final = 1 << 16
_FEW: Final = 8
_FROM_ARRAY: Final = orjson.OPT_SERIALIZE_NUMPY
_PIECE_ELEMENTS: Final = 1 << 14
_WHITESPACE: Final = b" \t\r\n"
_NOT_STRUCTURE: Final = bytes(set(range(256)) - set(b'[]{},"'))


def read_json(datatype: str, shape: Shape, data: Raw) -> Array:
    """Read the `data` of a tensor, well-formed JSON of any kind, as a read-only array of exactly `shape`.

    Raises:
        TensorFault: not a list, a wrong number of elements, nesting that differs from `shape`, or an element that is
            not a value of `datatype`.
    """
    codec = codec_of(datatype)
    count = element_count(shape)
    if not codec.code:
        check_strings(count)
    elif memoryview(data).nbytes > BIG_BYTES:
        return _read_big(codec, shape, count, bytes(data).translate(None, _WHITESPACE))
    try:
        values = codec.decoder.decode(data)
    except msgspec.DecodeError as error:
        if len(shape) == 1 or not str(error).endswith("got `array` - at `$[0]`"):
            raise element_fault(codec, data, error) from error
        values = _read_nested(codec, shape, data)
    if len(values) != count:
        raise _count_fault(len(values), count, shape)
    return build(codec, values, shape)


def write_json(datatype: str, array: Array) -> bytes:
    """Return the elements of `array` as a flat JSON list; numbers read back exactly, NaN and infinities become null.

    Raises:
        TensorFault: the datatype has no JSON form, or a BYTES element is not UTF-8.
    """
    if datatype == "BYTES":
        return msgspec.json.encode(_texts(array))
    if datatype == "BF16":
        raise TensorFault("BF16 has no JSON form, only the binary one")
    if array.size <= _FEW:
        return msgspec.json.encode(array.ravel().tolist())
    if array.size <= _PIECE_ELEMENTS:
        return _write_piece(array.ravel())
    return _write_big(array.ravel())


def _write_big(flat: Array) -> bytes:
    """Write a long list piece by piece: one Python object per element would cost 8 times its bytes."""
    texts = []
    for start in range(0, flat.size, _PIECE_ELEMENTS):
        texts.append(_write_piece(flat[start : start + _PIECE_ELEMENTS])[1:-1])
        let_others_run()
    return b"[" + b",".join(texts) + b"]"


def _write_piece(flat: Array) -> bytes:
    """Write numbers straight from the array.

    Takes half the time of a detour over Python objects, and half the bytes for FP32, which gets the digits that tell
    it from its neighbours and not those of the nearest double.
    """
    return orjson.dumps(flat, option=_FROM_ARRAY)


def _texts(array: Array) -> list[str]:
    texts = []
    for index, element in enumerate(array.flat):
        texts.append(_text(index, element))
        if not len(texts) % TURN_ELEMENTS:
            let_others_run()
    return texts


def _text(index: int, element: bytes) -> str:
    try:
        return element.decode()
    except UnicodeDecodeError as error:
        raise TensorFault(f"element {index} is not UTF-8 text, so it has only the binary form") from error


def _count_fault(found: int, count: int, shape: Shape) -> TensorFault:
    return TensorFault(f"data has {found} elements, shape {show_shape(shape)} holds {count}")


def _read_nested(codec: Codec, shape: Shape, data: Raw) -> list[Any]:
    try:
        values: list[Any] = _nested_decoder(codec.element, len(shape)).decode(data)
    except msgspec.DecodeError as error:
        raise element_fault(codec, data, error, f" nested as shape {show_shape(shape)}") from error
    if len(values) != shape[0]:
        raise TensorFault(f"data has {len(values)} lists, shape {show_shape(shape)} holds {shape[0]}")
    for depth, size in enumerate(shape[1:], start=1):
        if set(map(len, values)) - {size}:
            index, found = next((index, len(inner)) for index, inner in enumerate(values) if len(inner) != size)
            raise TensorFault(
                f"data is not nested as shape {show_shape(shape)}:"
                f" list {index} at depth {depth} has {found} elements, expected {size}"
            )
        values = list(chain.from_iterable(values))
    return values


@lru_cache(maxsize=64)
def _nested_decoder(element: Any, depth: int) -> msgspec.json.Decoder[Any]:
    kind = element
    for _ in range(depth):
        kind = GenericAlias(list, (kind,))
    return msgspec.json.Decoder(kind)


def _read_big(codec: Codec, shape: Shape, count: int, text: bytes) -> Array:
    """Read a long list of numbers or booleans, `text` being well-formed JSON without white space."""
    if not text.startswith(b"["):
        raise TensorFault(f"data must be a list, got {show_value(text)}")
    structure = text.translate(None, _NOT_STRUCTURE)
    if structure.strip(b"[],"):
        raise TensorFault(f"data holds strings or objects, {codec.datatype} takes {codec.wanted}")
    commas = structure.count(b",")
    if count and commas + 1 != count:
        raise _count_fault(commas + 1, count, shape)
    if not _has_structure(structure, shape, count) or (count == 0 and structure != text):
        raise TensorFault(f"data is not nested as shape {show_shape(shape)}, nor one flat list of {count} elements")
    array = np.empty(count, codec.dtype)
    done = 0
    for piece in _pieces(text.translate(None, b"[]") if count else b""):
        values = _read_piece(codec, piece, done)
        array[done : done + len(values)] = build(codec, values, (len(values),), done)
        done += len(values)
        let_others_run()
    if done != count:
        raise _count_fault(done, count, shape)
    return array.reshape(shape)


def _has_structure(structure: bytes, shape: Shape, count: int) -> bool:
    """Tell whether brackets and commas are those of a flat list or of lists nested as `shape`."""
    if structure == b"[" + b"," * (count - 1) + b"]":
        return True
    # Known to differ by length alone, the expected structure need not be built, which a lying shape could make large.
    if count and len(structure) != 2 * sum(accumulate(shape[:-1], mul, initial=1)) + count - 1:
        return False
    expected = b""
    for size in reversed(shape):
        expected = b"[" + ((expected + b",") * size)[:-1] + b"]"
    return structure == expected


def _pieces(flat: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(flat):
        cut = flat.rfind(b",", start, start + _PIECE_BYTES) if len(flat) - start > _PIECE_BYTES else -1
        piece = flat[start : cut if cut >= 0 else len(flat)]
        yield piece
        start += len(piece) + 1


def _read_piece(codec: Codec, piece: bytes, first: int) -> list[Any]:
    data = b"[" + piece + b"]"
    try:
        return codec.decoder.decode(data)
    except msgspec.DecodeError as error:
        raise element_fault(codec, data, error, first=first) from error
