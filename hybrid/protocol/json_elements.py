"""Elements of tensors in JSON: per datatype the strict decoder, the packing into an array, and the texts of faults.

Owns the rule that nothing is ever converted silently: no wrapping, no float for an integer, no number for a boolean, no
infinity out of a large number. Must never know shapes beyond what it is told, requests or models.

Elements pass through `struct.pack` and not `np.array`: it is faster for one element as for a million, and it refuses
what does not fit where numpy would warn and store an infinity.
"""

import struct
import time
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
import numpy as np
from msgspec import Raw

from hybrid.messages import DTYPES
from hybrid.protocol.json_path import show_value, split_error, value_at
from hybrid.protocol.tensors import Array, Shape, TensorFault, known_datatype

_STRUCT_CODES: Final = {
    **{"BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q"},
    **{"INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP16": "e", "FP32": "f", "FP64": "d", "BYTES": ""},
}
#: Short elements after which others get their turn: some 100 us.
TURN_ELEMENTS: Final = 2048
_ELEMENTS: Final[dict[str, type]] = {"b": bool, "u": int, "i": int, "f": float, "O": str}


class Codec(NamedTuple):
    """How one datatype is written in JSON. `code` is the struct code of an element, empty for BYTES."""

    datatype: str
    code: str
    dtype: np.dtype[Any]
    element: type
    decoder: msgspec.json.Decoder[list[Any]]

    @property
    def wanted(self) -> str:
        """What an element may be, for messages."""
        if self.element is int:
            limits = np.iinfo(self.dtype)
            return f"a whole number from {limits.min} to {limits.max}"
        if self.element is float:
            return f"a number of at most {float(np.finfo(self.dtype).max):.6g} in size"
        return "true or false" if self.element is bool else "a string"


def codec_of(datatype: str) -> Codec:
    """Return the codec of a datatype.

    Raises:
        TensorFault: unknown, or without a JSON form.
    """
    codec = _CODECS.get(datatype)
    return codec if codec is not None else _refuse_datatype(datatype)


def let_others_run() -> None:
    """Give the event loop its turn while a large body is made in a thread: compiled code never does by itself."""
    time.sleep(0)


def _encoded(texts: list[str]) -> list[bytes]:
    found = []
    for text in texts:
        found.append(text.encode())
        if not len(found) % TURN_ELEMENTS:
            let_others_run()
    return found


def build(codec: Codec, values: list[Any], shape: Shape, first: int = 0) -> Array:
    """Pack decoded elements, as many as `shape` holds, into an array; `first` is the index of `values[0]` in messages.

    Raises:
        TensorFault: an element does not fit the datatype.
    """
    if not codec.code:
        return np.array(_encoded(values), np.object_).reshape(shape)
    try:
        return np.ndarray(shape, codec.dtype, struct.pack(f"={len(values)}{codec.code}", *values))
    except (struct.error, OverflowError) as error:
        index = next(index for index, value in enumerate(values) if not _packs(codec, value))
        raise TensorFault(
            _unfit(codec, f"[{first + index}]", show_value(msgspec.json.encode(values[index])))
        ) from error


def element_fault(codec: Codec, data: Raw | bytes, error: Exception, nesting: str = "", first: int = 0) -> TensorFault:
    """Explain why `data` did not decode: which element, its value, and what the datatype takes.

    `nesting` says how lists were expected to nest; `first` is the index of the first element of a flat piece.
    """
    text, path = split_error(error)
    if not isinstance(error, msgspec.ValidationError):
        return TensorFault(f"data is not a list of {codec.datatype}: {text}")
    if not path:
        return TensorFault(f"data must be a list{nesting}, got {show_value(data)}")
    value = value_at(data, path)
    if nesting and "got `array`" not in str(error) and "Expected `array`" in str(error):
        return TensorFault(f"data{path} is {value or 'no list'}, expected a list{nesting}")
    shown = f"[{first + int(path.strip('[]'))}]" if first else path
    if value is None:
        return TensorFault(f"data{shown}: {text}; {codec.datatype} takes {codec.wanted}")
    return TensorFault(_unfit(codec, shown, value))


def _unfit(codec: Codec, path: str, value: str) -> str:
    return f"data{path} is {value}, {codec.datatype} takes {codec.wanted}"


def _packs(codec: Codec, value: object) -> bool:
    try:
        struct.pack(f"={codec.code}", value)
    except (struct.error, OverflowError):
        return False
    return True


def _refuse_datatype(datatype: str) -> NoReturn:
    known_datatype(datatype)
    raise TensorFault(f"{datatype} has no JSON form; send it as binary data (parameters.binary_data_size)")


def _codec(datatype: str, code: str) -> Codec:
    element = _ELEMENTS[DTYPES[datatype].kind]
    decoder: msgspec.json.Decoder[list[Any]] = msgspec.json.Decoder(list[element])  # type: ignore[valid-type]
    return Codec(datatype, code, DTYPES[datatype], element, decoder)


_CODECS: Final = {datatype: _codec(datatype, code) for datatype, code in _STRUCT_CODES.items()}
