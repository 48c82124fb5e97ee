"""Tensor payloads: shapes, datatypes, and raw bytes <-> arrays. The JSON form is in `tensors_json`.

Owns what a payload of a datatype and shape must look like. Must never know a request, a model or HTTP: faults are
raised as `TensorFault` without a tensor's name, and the caller puts the name and its own error class around them, so
that the HTTP and gRPC codecs share every check. Nothing here allocates by what a client claims before the bytes that
would fill it have been seen. Raw payloads are little-endian, as are all machines hybrid runs on.
"""

import math
import struct
from typing import Any, Final

import numpy as np

from hybrid.messages import DTYPES

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

MAX_RANK: Final = 16
MAX_ELEMENTS: Final = 1 << 40
#: BYTES elements are Python objects: a body of empty strings would cost seconds and 20 times its size.
MAX_STRINGS: Final = 1 << 20
#: A tensor without elements brings no data that would bound its other dimensions, such as a billion rows of nothing.
MAX_EMPTY: Final = 1 << 16

_PREFIX: Final = struct.Struct("<I")
_SHOWN_CHARACTERS: Final = 80
_SHOWN_DIMENSIONS: Final = 20


class TensorFault(ValueError):
    """What is wrong with a payload, without the tensor's name. Never leaves the protocol package."""


def element_count(shape: Shape) -> int:
    """Return how many elements `shape` holds.

    Raises:
        TensorFault: no dimension, too many, a negative one, or more elements than any body can carry.
    """
    if not shape:
        raise TensorFault("shape [] is a scalar and has no row dimension; send shape [1] for one row")
    if len(shape) > MAX_RANK:
        raise TensorFault(f"shape has {len(shape)} dimensions, at most {MAX_RANK} are taken")
    if min(shape) < 0:
        raise TensorFault(f"shape {show_shape(shape)} has a negative dimension")
    count = math.prod(shape)
    if count > MAX_ELEMENTS:
        raise TensorFault(f"shape {show_shape(shape)} holds more than {MAX_ELEMENTS} elements")
    if count == 0 and math.prod(size or 1 for size in shape) > MAX_EMPTY:
        raise TensorFault(f"shape {show_shape(shape)} is empty, yet its other dimensions multiply to over {MAX_EMPTY}")
    return count


def check_strings(count: int) -> None:
    """Refuse BYTES tensors of more elements than the server handles one by one.

    Raises:
        TensorFault: too many.
    """
    if count > MAX_STRINGS:
        raise TensorFault(f"{count} BYTES elements, at most {MAX_STRINGS} are taken; split the request")


def known_datatype(datatype: str) -> np.dtype[Any]:
    """Return the numpy type of a protocol datatype.

    Raises:
        TensorFault: there is no such datatype.
    """
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise TensorFault(f"unknown datatype {quote(datatype)}, expected one of {', '.join(DTYPES)}")
    return dtype


def read_raw(datatype: str, shape: Shape, body: bytes | memoryview, offset: int, size: int) -> Array:
    """Read `size` bytes of `body` from `offset` on, which the caller has seen to be there, as an array.

    Fixed-size datatypes are a read-only view of `body`, not a copy; BYTES elements are copied out one by one.

    Raises:
        TensorFault: the bytes do not make exactly this shape of this datatype.
    """
    dtype = known_datatype(datatype)
    count = element_count(shape)
    if datatype == "BYTES":
        return _read_prefixed(shape, count, body, offset, size)
    expected = count * dtype.itemsize
    if size != expected:
        raise TensorFault(
            f"{size} bytes of binary data, expected {expected} for {datatype} of shape {show_shape(shape)}"
            f" ({count} elements of {dtype.itemsize} bytes)"
        )
    if count == 0:
        return np.zeros(shape, dtype)
    if datatype == "BOOL":
        return _read_bool(np.ndarray(shape, np.dtype(np.uint8), body, offset))
    return np.ndarray(shape, dtype, body, offset)


def write_raw(datatype: str, array: Array) -> bytes | memoryview:
    """Return the raw payload of `array`: a view of its memory where possible, so keep it unchanged until sent."""
    if datatype == "BYTES":
        return b"".join(part for element in array.flat for part in (_PREFIX.pack(len(element)), element))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def quote(text: str) -> str:
    """Return client text fit for a message: quoted, escaped, and cut to a length worth reading."""
    return repr(text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}...")


def show_shape(shape: Shape) -> str:
    """Return a shape as the client wrote it, `[1, 3]`."""
    shown = ", ".join(map(str, shape[:_SHOWN_DIMENSIONS]))
    return f"[{shown}]" if len(shape) <= _SHOWN_DIMENSIONS else f"[{shown}, ...]"


def _read_bool(numbers: Array) -> Array:
    if numbers.max() > 1:
        index = int(np.argmax(numbers.reshape(-1) > 1))
        raise TensorFault(f"element {index} is {numbers.reshape(-1)[index]}, a BOOL byte must be 0 or 1")
    return numbers.view(np.bool_)


def _read_prefixed(shape: Shape, count: int, body: bytes | memoryview, offset: int, size: int) -> Array:
    if count * _PREFIX.size > size:
        raise TensorFault(
            f"{size} bytes of binary data cannot hold the {count} BYTES elements of shape {show_shape(shape)}:"
            f" element {size // _PREFIX.size} lacks its {_PREFIX.size}-byte length prefix"
        )
    check_strings(count)
    end = offset + size
    elements = []
    for index in range(count):
        start = offset + _PREFIX.size
        if start > end:
            raise TensorFault(f"element {index} lacks its {_PREFIX.size}-byte length prefix: {end - offset} bytes left")
        (length,) = _PREFIX.unpack_from(body, offset)
        offset = start + length
        if offset > end:
            raise TensorFault(f"element {index} claims {length} bytes by its length prefix, {end - start} bytes left")
        elements.append(bytes(body[start:offset]))
    if offset != end:
        raise TensorFault(f"{end - offset} bytes left over after the last element {count - 1} of {count}")
    return np.array(elements, np.object_).reshape(shape)
