"""A log record as plain data, and its two written forms.

Owns what of a LogRecord is kept, how long it may be, and how it is made harmless for a terminal or a log file: data in
a record can neither start a new line nor send a control code. Knows nothing of queues, processes or descriptors.
"""

import logging
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

Scalar = str | int | float | bool | None

MESSAGE_BYTES: Final = 8192
EXCEPTION_BYTES: Final = 16_384
EXTRA_BYTES: Final = 512
EXTRA_COUNT: Final = 24

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "role"}
_RESERVED: Final = frozenset(("ts", "level", "logger", "role", "pid", "exception", "suppressed", "lost"))
_LARGEST_INT: Final = 1 << 63
_LETTERS: Final = ((logging.CRITICAL, "C"), (logging.ERROR, "E"), (logging.WARNING, "W"), (logging.INFO, "I"))
# C0, DEL, C1, the two Unicode line ends, and the marks that reorder text on a terminal.
_UNSAFE: Final = (*range(0x20), *range(0x7F, 0xA0), 0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_ESCAPES: Final = {code: chr(code).encode("unicode_escape").decode() for code in _UNSAFE}
_traceback: Final = logging.Formatter()
_json: Final = msgspec.json.Encoder()


class LogLine(Struct, frozen=True, array_like=True):
    """One record. `created_s` is wall time; `role` says which process, as the operator calls it.

    `suppressed` counts similar records that the flood limit held back before this one, `lost` those of the same process
    that found its channel full.
    """

    created_s: float
    level: int
    logger: str
    message: str
    role: str
    pid: int
    exception: str = ""
    extras: dict[str, Scalar] = {}
    suppressed: int = 0
    lost: int = 0


def from_record(record: logging.LogRecord, role: str, suppressed: int = 0) -> LogLine:
    """Take from a record what is kept of it; everything is formatted here, so that no live object is held.

    Never raises: a record with broken arguments or odd extras is written as well as it can be.
    """
    extras = {
        clip(safe_text(name), 64): _scalar(value)
        for name, value in list(record.__dict__.items())[: len(_STANDARD) + EXTRA_COUNT]
        if name not in _STANDARD
    }
    return LogLine(
        created_s=record.created,
        level=record.levelno,
        logger=clip(str(record.name), 128),
        message=clip(_message(record), MESSAGE_BYTES),
        role=clip(safe_text(record.__dict__.get("role", role)), 64),
        pid=record.process or 0,
        exception=clip(_exception(record), EXCEPTION_BYTES, keep_end=True),
        extras=extras,
        suppressed=suppressed,
    )


def as_text(line: LogLine) -> bytes:
    """Return `2026-01-31T12:00:00.000Z I role logger: message key=value`; a traceback follows on marked lines."""
    logger = line.logger.removeprefix("hybrid.")
    parts = [f"{_timestamp(line.created_s)} {_letter(line.level)} {line.role} {logger}: {line.message}"]
    parts += [f"{name}={_quoted(value)}" for name, value in line.extras.items()]
    if line.suppressed:
        parts.append(f"({line.suppressed} similar suppressed)")
    if line.lost:
        parts.append(f"({line.lost} earlier records lost)")
    text = " ".join(parts).translate(_ESCAPES)
    for row in line.exception.splitlines():
        text += f"\n  | {row.translate(_ESCAPES)}"
    return f"{text}\n".encode("utf-8", "backslashreplace")


def as_json(line: LogLine) -> bytes:
    """Return one JSON object on one line; an extra that would hide a field of ours gets a trailing underscore."""
    fields: dict[str, Scalar] = {
        "ts": _timestamp(line.created_s),
        "level": logging.getLevelName(line.level).lower(),
        "logger": line.logger,
        "message": line.message,
        "role": line.role,
        "pid": line.pid,
    }
    optional: dict[str, Scalar] = {"exception": line.exception, "suppressed": line.suppressed, "lost": line.lost}
    fields |= {name: value for name, value in optional.items() if value}
    for name, value in line.extras.items():
        fields[f"{name}_" if name in _RESERVED or name == "message" else name] = value
    return _json.encode(fields) + b"\n"


def clip(text: str, limit: int, keep_end: bool = False) -> str:
    """Return text that is valid UTF-8 of about `limit` bytes at most, and says when something was cut."""
    if len(text) <= limit and text.isascii():
        return text
    part = text[-limit:] if keep_end else text[:limit]
    data = part.encode("utf-8", "backslashreplace")
    cut = data[-limit:] if keep_end else data[:limit]
    kept = cut.decode("utf-8", "ignore")
    if len(cut) == len(data) and len(part) == len(text):
        return kept
    return f"[cut, {len(text)} characters] ... {kept}" if keep_end else f"{kept} ... [cut, {len(text)} characters]"


def safe_text(value: object) -> str:
    """Return str(value), or words about why there is none."""
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a foreign object; logging must not raise into its caller
        return f"[{type(value).__name__} without text: {type(error).__name__}]"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001 - as above, foreign objects
        return f"{safe_text(record.msg)} [arguments do not fit: {type(error).__name__}]"


def _exception(record: logging.LogRecord) -> str:
    text = record.exc_text or ""
    if record.exc_info and not text:
        text = _traceback.formatException(record.exc_info) if record.exc_info[0] else ""
    if record.stack_info:
        text = f"{text}\n{record.stack_info}" if text else record.stack_info
    return text


def _scalar(value: Any) -> Scalar:
    if isinstance(value, str):
        return clip(value, EXTRA_BYTES)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int) and -_LARGEST_INT <= value < _LARGEST_INT:
        return value
    return clip(safe_text(value), EXTRA_BYTES)


def _quoted(value: Scalar) -> str:
    text = str(value)
    if text and not any(mark in text for mark in ' ="'):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _letter(level: int) -> str:
    return next((letter for bound, letter in _LETTERS if level >= bound), "D")


def _timestamp(wall_s: float) -> str:
    try:
        moment = datetime.fromtimestamp(wall_s, UTC)
    except (ValueError, OverflowError, OSError):
        return "0000-00-00T00:00:00.000Z"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
