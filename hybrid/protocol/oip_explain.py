"""Turns a failed decoding of a whole body into one message that names the field, what was expected and what came.

Runs only on refused bodies, so it may look at them a second time. Must never accept anything.
"""

import re
from typing import Final

import msgspec
from msgspec import UNSET, Raw, Struct

from hybrid.errors import BadRequest
from hybrid.protocol.json_path import byte_position, misfit, show_value, split_error, value_at
from hybrid.protocol.oip_wire import MAX_ID_CHARACTERS, MAX_PRIORITY, MAX_TIMEOUT_US, WireTensor
from hybrid.protocol.tensors import TensorFault, quote
from hybrid.protocol.tensors_json import read_json

_HINTS: Final = {
    ".parameters.timeout": f"microseconds, a whole number from 0 (none) to {MAX_TIMEOUT_US} (one day)",
    ".parameters.priority": f"a whole number from 1 (most urgent) to {MAX_PRIORITY}, or 0 for unset",
    ".id": f"a string of at most {MAX_ID_CHARACTERS} characters",
}
_ITEM = re.compile(r"^\.(input|output)s\[(\d+)\]\.?")
_NOT_A_NUMBER = re.compile(rb"-?\b(?:NaN|Infinity)\b")
#: Longer bodies are refused without a second look for the name of a tensor, which would cost as much as decoding.
_NAMED_BYTES: Final = 1 << 20
_NEAR_BYTES: Final = 20


class _Tensors(Struct):
    inputs: tuple[WireTensor, ...]


class _Name(Struct):
    name: str


def explain(text: bytes | memoryview, error: Exception, header_length: int | None) -> BadRequest:
    """Return the answer to a body whose JSON part `text` raised `error` when it was decoded."""
    if isinstance(error, RecursionError):
        return BadRequest("body: JSON is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return BadRequest(_misfit(text, error))
    found = _not_a_number(bytes(text)) if len(text) <= _NAMED_BYTES else None
    message = found or f"body: {_malformed(bytes(text), error)}"
    if header_length is None and "trailing characters" in str(error):
        message += "; binary data behind the JSON needs the header Inference-Header-Content-Length: the bytes of JSON"
    if header_length is not None:
        message += (
            f"; Inference-Header-Content-Length makes the first {header_length} bytes JSON: bytes, not characters"
        )
    return BadRequest(message)


def _misfit(text: bytes | memoryview, error: Exception) -> str:
    problem, path = split_error(error)
    value = value_at(text, path) if path else None
    item = _ITEM.match(path)
    field = path.lstrip(".") or "body"
    if item is not None:
        field = f"{item[1]} {_name(text, item[1], int(item[2]))}: {path[item.end() :]}".rstrip(": ")
    if path in _HINTS:
        return f"{field}: expected {_HINTS[path]}, got {value or 'another value'}"
    return f"{field}: {misfit(problem, value)}"


def _name(text: bytes | memoryview, kind: str, index: int) -> str:
    if memoryview(text).nbytes <= _NAMED_BYTES:
        try:
            items = msgspec.json.decode(msgspec.json.decode(text, type=dict[str, Raw])[f"{kind}s"], type=list[Raw])
            return quote(msgspec.json.decode(items[index], type=_Name).name)
        except (msgspec.DecodeError, RecursionError):
            pass
    return f"number {index}"


def _malformed(text: bytes, error: Exception) -> str:
    position = byte_position(error)
    if position is not None:
        near = show_value(text[max(0, position - _NEAR_BYTES) : position + _NEAR_BYTES])
        return f"{split_error(error)[0]}, near {quote(near)}"
    try:
        text.decode()
    except UnicodeDecodeError as undecodable:
        return f"JSON is not UTF-8 (byte {undecodable.start})"
    if b"\\u" in text and text.rstrip().endswith(b"}"):
        return f"JSON holds a broken \\u escape, or ends too early (byte {len(text)})"
    return f"JSON ends too early (byte {len(text)})"


def _not_a_number(text: bytes) -> str | None:
    """Name the input that holds NaN or Infinity, by decoding it with these literals as strings."""
    repaired, count = _NOT_A_NUMBER.subn(lambda found: b'"' + found[0] + b'"', text)
    if not count:
        return None
    try:
        items = msgspec.json.decode(repaired, type=_Tensors).inputs
    except (msgspec.DecodeError, RecursionError):
        return None
    for item in items:
        try:
            if item.data is not UNSET:
                read_json(item.datatype, item.shape, item.data)
        except TensorFault as fault:
            plain = re.sub(r'"(-?(?:NaN|Infinity))"', r"\1", str(fault))
            return f"input {quote(item.name)}: {plain}; NaN and Infinity are not JSON, send the tensor as binary data"
    return None
