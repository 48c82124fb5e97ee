"""What an ONNX file says of the shapes of its inputs, read before it is loaded.

Owns the few protobuf fields on the way there; nodes and weights are skipped, not read. Knows no engine library: `onnx`
is no dependency of a server, and ONNX Runtime tells only of a model that it has loaded.
"""

import mmap
from collections.abc import Iterable, Iterator
from typing import Final

Span = tuple[int, int]

# Field numbers of onnx.proto, in the order of the way: model, graph, input, type, tensor, shape, dimension.
_GRAPH: Final = 7
_INPUT: Final = 11
_TYPE: Final = 2
_TENSOR: Final = 1
_SHAPE: Final = 2
_DIMENSION: Final = 1
_SIZE: Final = 1

_NUMBER, _BYTES = 0, 2
_FIXED_SIZES: Final = {1: 8, 5: 4}
_LONGEST: Final = 10  # bytes of a number; those below zero take all of them


def rows_are_alike(path: str) -> bool:
    """Whether all dimensions of all inputs but the first are fixed; False where the file does not tell."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            inputs = list(_within(data, _within(data, [(0, len(data))], _GRAPH), _INPUT))
            return bool(inputs) and all(_is_fixed(data, each) for each in inputs)
    except (OSError, ValueError, IndexError):
        return False


def _is_fixed(data: mmap.mmap, value: Span) -> bool:
    tensor = _within(data, _within(data, [value], _TYPE), _TENSOR)
    shapes = list(_within(data, tensor, _SHAPE))
    dimensions = list(_within(data, shapes, _DIMENSION))
    return bool(shapes) and all(_has_size(data, dimension) for dimension in dimensions[1:])


def _has_size(data: mmap.mmap, dimension: Span) -> bool:
    """Not a name, not nothing, and not -1, which some exporters write."""
    return any(end - begin < _LONGEST for begin, end in _within(data, [dimension], _SIZE))


def _within(data: mmap.mmap, messages: Iterable[Span], number: int) -> Iterator[Span]:
    """Where the values of field `number` of these messages lie."""
    for begin, end in messages:
        yield from (span for found, span in _fields(data, begin, end) if found == number)


def _fields(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, Span]]:
    at = begin
    while at < end:
        tag, at = _number(data, at)
        kind = tag & 7
        if kind == _NUMBER:
            after = _number(data, at)[1]
        elif kind == _BYTES:
            size, at = _number(data, at)
            after = at + size
        elif kind in _FIXED_SIZES:
            after = at + _FIXED_SIZES[kind]
        else:
            raise ValueError("no protobuf")
        yield tag >> 3, (at, after)
        at = after


def _number(data: mmap.mmap, at: int) -> tuple[int, int]:
    """A number in groups of 7 bits, lowest first, and what comes after it."""
    value = 0
    for index in range(_LONGEST):
        byte = data[at + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, at + index + 1
    raise ValueError("no protobuf")
