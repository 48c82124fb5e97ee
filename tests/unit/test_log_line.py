import logging
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.telemetry.log_line import LogLine, as_json, as_text, clip, from_record


class NoText:
    def __str__(self):
        raise RuntimeError("no")


def record(message="hello", *args, level=logging.INFO, exc_info=None, **extra):
    made = logging.getLogger("hybrid.pool").makeRecord(
        "hybrid.pool", level, "f", 1, message, args, exc_info, extra=extra
    )
    made.created, made.process = 1_700_000_000.25, 42
    return made


def line(**changes):
    fields = {"created_s": 1_700_000_000.25, "level": 20, "logger": "hybrid.pool", "message": "hello"}
    return LogLine(**(fields | {"role": "w0", "pid": 42} | changes))


def failure():
    try:
        raise ValueError("broken\nforged line")
    except ValueError:
        return sys.exc_info()


def test_text_form():
    text = as_text(from_record(record("sent %d rows", 3, request_id="r1", note='a "b" c', n=1), "w0 minilm"))
    assert text == b'2023-11-14T22:13:20.250Z I w0 minilm pool: sent 3 rows request_id=r1 note="a \\"b\\" c" n=1\n'


def test_json_form():
    found = msgspec.json.decode(as_json(from_record(record("sent %d rows", 3, request_id="r1", ratio=0.5), "w0")))
    assert found == {
        "ts": "2023-11-14T22:13:20.250Z",
        "level": "info",
        "logger": "hybrid.pool",
        "message": "sent 3 rows",
        "role": "w0",
        "pid": 42,
        "request_id": "r1",
        "ratio": 0.5,
    }


@pytest.mark.parametrize(
    ("level", "letter"), [(10, "D"), (5, "D"), (20, "I"), (25, "I"), (30, "W"), (40, "E"), (50, "C"), (99, "C")]
)
def test_levels(level, letter):
    assert as_text(line(level=level)).split()[1] == letter.encode()


def test_a_traceback_follows_on_marked_lines_and_cannot_forge_one():
    rows = as_text(from_record(record("oh", exc_info=failure()), "w0")).decode().splitlines()
    assert rows[1] == "  | Traceback (most recent call last):"
    assert all(row.startswith("  | ") for row in rows[1:])
    assert rows[-1] == "  | forged line"
    assert "ValueError: broken\nforged line" in from_record(record("oh", exc_info=failure()), "w0").exception


@given(st.text(), st.text(), st.text(), st.text())
def test_data_cannot_start_a_line_or_send_a_control_code(message, name, value, role):
    found = line(message=message, role=role, extras={name: value})
    for written in (as_text(from_record(record(message, note=value), "w0")), as_text(line(extras={"n": value}))):
        text = written.decode()
        assert text.endswith("\n")
        assert not any(ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0 for char in text[:-1])
        assert len(text.splitlines()) == 1
    assert b"\n" not in as_json(from_record(record(message, note=value), "w0"))[:-1]
    assert as_text(found).count(b"\n") == 1


integers = st.integers(-(2**63), 2**63 - 1)
scalars = st.text() | integers | st.floats() | st.booleans() | st.none()


@given(
    st.builds(
        LogLine,
        level=integers,
        pid=integers,
        suppressed=integers,
        lost=integers,
        extras=st.dictionaries(st.text(), scalars),
    )
)
def test_whatever_a_child_sends_can_be_written(sent):
    arrived = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=LogLine)
    assert as_text(arrived).endswith(b"\n")
    assert msgspec.json.decode(as_json(arrived))["pid"] == sent.pid


def test_an_escape_sequence_is_shown_not_sent():
    assert b"\\x1b]0;owned\\x07" in as_text(line(message="\x1b]0;owned\x07"))
    assert b"\\u202e" in as_text(line(message="\u202e"))


def test_broken_arguments_and_objects_without_text_are_written_anyway():
    found = from_record(record("%d rows", "x", thing=NoText()), "w0")
    assert found.message == "%d rows [arguments do not fit: TypeError]"
    assert found.extras["thing"] == "[NoText without text: RuntimeError]"
    assert "[NoText without text" in from_record(record(NoText()), "w0").message
    assert "[NoText without text" in from_record(record(NoText(), 1), "w0").message


def test_lone_surrogates_and_large_numbers_can_be_encoded():
    found = from_record(record("a\ud800b", big=1 << 70, nan=float("nan")), "w0")
    assert b"a\\ud800b" in as_text(found)
    decoded = msgspec.json.decode(as_json(found))
    assert decoded["big"] == str(1 << 70)
    assert decoded["nan"] is None
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(found), type=LogLine).message == "a\\ud800b"


def test_everything_is_bounded():
    extras = {f"key{i}" * 50: "v" * 10_000 for i in range(100)}
    found = from_record(record("m" * 100_000, exc_info=failure(), **extras), "r" * 1000)
    assert found.message.endswith("[cut, 100000 characters]")
    assert len(msgspec.msgpack.encode(found)) < 40_000
    widest = from_record(record("\U0001f600" * 100_000, **{f"k{i}": "\U0001f600" * 9999 for i in range(50)}), "w0")
    assert len(msgspec.msgpack.encode(widest)) < 65_536


def test_the_end_of_a_long_traceback_is_kept():
    assert clip("x" * 100 + "ValueError: why", 20, keep_end=True).endswith("ValueError: why")


@given(st.text(), st.integers(min_value=1, max_value=40), st.booleans())
def test_clipping_gives_valid_text_and_keeps_what_fits(text, limit, keep_end):
    clipped = clip(text, limit, keep_end)
    nbytes, whole = len(clipped.encode()), text.encode("utf-8", "backslashreplace")
    if len(whole) <= limit:
        assert clipped == whole.decode()
    else:
        assert f"[cut, {len(text)} characters]" in clipped
        assert nbytes <= limit + len(f" ... [cut, {len(text)} characters]")


def test_extras_never_hide_our_fields():
    decoded = msgspec.json.decode(as_json(line(extras={"level": "x", "message": "y", "ts": "z", "pid": 1})))
    assert (decoded["level"], decoded["message"], decoded["pid"]) == ("info", "hello", 42)
    assert (decoded["level_"], decoded["message_"], decoded["ts_"], decoded["pid_"]) == ("x", "y", "z", 1)


def test_what_was_held_back_or_lost_is_said():
    assert as_text(line(suppressed=7, lost=2)).endswith(b"hello (7 similar suppressed) (2 earlier records lost)\n")
    decoded = msgspec.json.decode(as_json(line(suppressed=7, lost=2)))
    assert (decoded["suppressed"], decoded["lost"]) == (7, 2)


@pytest.mark.parametrize("wall_s", [float("nan"), float("inf"), -1e30, 1e30])
def test_a_broken_time_is_no_reason_to_fail(wall_s):
    assert as_text(line(created_s=wall_s)).startswith(b"0000-")
