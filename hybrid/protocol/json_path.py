"""Where in a JSON text a decoder failed, and what stands there. Runs only once something is wrong.

Owns the reading of msgspec's error texts. Must never know tensors or requests. Looking costs at most a small multiple
of the text, and texts too long for even that are not looked into.
"""

import re
from typing import Any, Final

import msgspec
from msgspec import Raw

#: Opening a list element by element costs some 20 times its bytes, so longer texts are not opened.
_OPENED_BYTES: Final = 1 << 20
_SHOWN_BYTES: Final = 60

_PATH = re.compile(r" - at `\$([^`]*)`$")
_STEP = re.compile(r"\[(\d+)\]|\.([^.\[]+)")
_POSITION = re.compile(r"\(byte (\d+)\)")


def split_error(error: Exception) -> tuple[str, str]:
    """Split a decoding error into its text without code marks and the path it names, `.inputs[0].shape[1]` or empty."""
    text = str(error)
    found = _PATH.search(text)
    path = found[1] if found else ""
    return (text[: found.start()] if found else text).replace("`", ""), path


def misfit(problem: str, value: str | None) -> str:
    """Return what a decoder found wrong, with the value that came where it could be found."""
    came = "" if value is None else f" {value}" if ", got " in problem else f", got {value}"
    return f"{problem[:1].lower()}{problem[1:]}{came}"


def byte_position(error: Exception) -> int | None:
    """Return the byte where malformed JSON was noticed, if the error says so."""
    found = _POSITION.search(str(error))
    return int(found[1]) if found else None


def value_at(text: bytes | memoryview | Raw, path: str) -> str | None:
    """Return the JSON text at `path`, cut short; None where it cannot be found at bearable cost."""
    if memoryview(text).nbytes > _OPENED_BYTES:
        return None
    value: Any = text
    try:
        for index, key in _STEP.findall(path):
            value = msgspec.json.decode(value, type=dict[str, Raw])[key] if key else _element(value, int(index))
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError):
        return None
    return show_value(value)


def show_value(text: bytes | memoryview | Raw) -> str:
    """Return JSON text for a message, cut to a length worth reading."""
    shown = bytes(memoryview(text)[: _SHOWN_BYTES + 1]).strip().decode(errors="replace")
    return shown if len(shown) <= _SHOWN_BYTES else f"{shown[:_SHOWN_BYTES]}..."


def _element(text: Raw, index: int) -> Raw:
    return msgspec.json.decode(text, type=list[Raw])[index]
