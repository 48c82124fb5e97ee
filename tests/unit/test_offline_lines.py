"""Lines out of descriptors: every way in which blocks may cut them, and lines that are too long to keep."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hybrid.offline import lines
from hybrid.offline.lines import RawLine, count_lines, read_lines


def read(tmp: Path, data: bytes, limit: int = 1000) -> list[RawLine]:
    (tmp / "f").write_bytes(data)
    descriptor = os.open(tmp / "f", os.O_RDONLY)
    try:
        return [line for line in read_lines(descriptor, limit) if line is not None]
    finally:
        os.close(descriptor)


def test_lines_and_where_they_end(tmp_path):
    assert read(tmp_path, b"a\n\nbc\r\nd") == [
        RawLine(b"a", 2),
        RawLine(b"", 3),
        RawLine(b"bc", 7),
        RawLine(b"d", 8),
    ]
    assert read(tmp_path, b"") == []
    assert read(tmp_path, b"\n") == [RawLine(b"", 1)]


def test_a_byte_order_mark_goes_from_the_first_line_only(tmp_path):
    bom = b"\xef\xbb\xbf"
    assert [line.data for line in read(tmp_path, bom + b"a\n" + bom + b"b")] == [b"a", bom + b"b"]
    assert [line.data for line in read(tmp_path, bom + b"a")] == [b"a"]


@pytest.mark.parametrize("block", [1, 2, 3, 7, 1 << 18])
def test_an_overlong_line_is_named_and_costs_no_other(tmp_path, monkeypatch, block):
    monkeypatch.setattr(lines, "_READ_BYTES", block)
    found = read(tmp_path, b"abc\n" + b"x" * 11 + b"\nde\n" + b"y" * 11, limit=10)
    assert found == [RawLine(b"abc", 4), RawLine(b"", 16, True), RawLine(b"de", 19), RawLine(b"", 30, True)]
    assert read(tmp_path, b"z" * 10 + b"\n", limit=10) == [RawLine(b"z" * 10, 11)]


@settings(max_examples=60, deadline=None)
@given(data=st.binary(max_size=60).map(lambda b: bytes(b"ab\n\r"[c % 4] for c in b)), block=st.integers(1, 9))
def test_however_blocks_fall_the_lines_are_those_of_split(tmp_path_factory, data, block):
    before = lines._READ_BYTES
    lines._READ_BYTES = block
    try:
        found = read(tmp_path_factory.mktemp("l"), data)
    finally:
        lines._READ_BYTES = before
    whole = data.split(b"\n")
    expected = [part.removesuffix(b"\r") for part in (whole if whole[-1] else whole[:-1])]
    assert [line.data for line in found] == expected
    assert not found or found[-1].end == len(data)


@pytest.mark.parametrize(("data", "count"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n\n", 2)])
def test_counting(tmp_path, data, count):
    (tmp_path / "f").write_bytes(data)
    descriptor = os.open(tmp_path / "f", os.O_RDONLY)
    try:
        assert count_lines(descriptor, 10) == count
        assert os.lseek(descriptor, 0, os.SEEK_CUR) == 0  # reading begins where it would have begun
        assert count_lines(descriptor, len(data) - 1) is None
    finally:
        os.close(descriptor)


def test_a_pipe_says_when_waiting_begins():
    reading, writing = os.pipe()
    try:
        found = read_lines(reading)
        assert next(found) is None
        os.write(writing, b"a\nb\nhalf")
        assert [next(found), next(found), next(found)] == [RawLine(b"a", 2), RawLine(b"b", 4), None]
        os.write(writing, b" a line\n")
        assert next(found) == RawLine(b"half a line", 16)
    finally:
        os.close(writing)
    assert list(found) == []
    os.close(reading)
