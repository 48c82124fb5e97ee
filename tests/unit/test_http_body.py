import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from hybrid.errors import BadRequest, TooLarge, UnsupportedEncoding
from hybrid.frontend.body import BodyReader, coding_of

TEXT = b"".join(b"%d, " % i for i in range(20_000))


def raw_deflate(data: bytes) -> bytes:
    z = zlib.compressobj(wbits=-15)
    return z.compress(data) + z.flush()


PACKERS = [(b"gzip", gzip.compress), (b"deflate", zlib.compress), (b"deflate", raw_deflate)]
IDS = ["gzip", "zlib", "raw"]


def read(data: bytes, coding: bytes | None, *, limit: int = 10_000_000, step: int = 10_000_000) -> bytes:
    reader = BodyReader(limit, coding)
    for i in range(0, len(data), step):
        reader.add(data[i : i + step])
    return reader.finish()


@pytest.mark.parametrize(
    ("header", "coding"),
    [(b"", None), (b"identity", None), (b" GZip ", b"gzip"), (b"x-gzip", b"x-gzip"), (b"Deflate", b"deflate")],
)
def test_codings(header: bytes, coding: bytes | None) -> None:
    assert coding_of(header) == coding


@pytest.mark.parametrize("header", [b"br", b"gzip, identity", b"gzip,gzip", b"\xff"])
def test_other_codings(header: bytes) -> None:
    with pytest.raises(UnsupportedEncoding, match="expected gzip, deflate or identity"):
        coding_of(header)


@pytest.mark.parametrize("step", [1, 1000, 10_000_000])
@pytest.mark.parametrize(("coding", "pack"), PACKERS, ids=IDS)
def test_round_trip(coding: bytes, pack: Callable[[bytes], bytes], step: int) -> None:
    assert read(pack(TEXT), coding, step=step) == TEXT


@pytest.mark.parametrize(("coding", "pack"), PACKERS, ids=IDS)
def test_an_empty_text_packed(coding: bytes, pack: Callable[[bytes], bytes]) -> None:
    assert read(pack(b""), coding) == b""


@pytest.mark.parametrize("coding", [b"gzip", b"deflate", None])
def test_no_bytes_at_all_are_an_empty_body(coding: bytes | None) -> None:
    assert read(b"", coding) == b""


def test_several_gzip_members() -> None:
    data = b"".join(gzip.compress(b"%d" % i) for i in range(10))
    assert read(data, b"gzip") == read(data, b"gzip", step=1) == b"0123456789"


@pytest.mark.parametrize("cut", [1, 5, 9, -1, -4, -8, -9])
@pytest.mark.parametrize(("coding", "pack"), PACKERS, ids=IDS)
def test_cut_streams(coding: bytes, pack: Callable[[bytes], bytes], cut: int) -> None:
    with pytest.raises(BadRequest, match="ends too early"):
        read(pack(TEXT)[:cut], coding)


def test_wrong_checksums() -> None:
    for coding, packed in ((b"gzip", gzip.compress(TEXT)), (b"deflate", zlib.compress(TEXT))):
        broken = bytearray(packed)
        broken[-5 if coding == b"gzip" else -1] ^= 1
        with pytest.raises(BadRequest, match=r"not a valid [a-z]+ stream"):
            read(bytes(broken), coding)


@pytest.mark.parametrize("data", [b"plain text", b'{"inputs": []}', b"\x1f\x8b"])
def test_plain_text_labelled_gzip(data: bytes) -> None:
    with pytest.raises(BadRequest):
        read(data, b"gzip")


@pytest.mark.parametrize(("coding", "pack"), PACKERS, ids=IDS)
def test_bytes_behind_the_stream(coding: bytes, pack: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BadRequest):
        read(pack(b"abc") + b"xyz", coding)


def test_endless_empty_members_are_refused() -> None:
    with pytest.raises(BadRequest, match="after the end"):
        read(gzip.compress(b"") * 2000, b"gzip")


@pytest.mark.parametrize("coding", [None, b"gzip"])
def test_the_limit_is_exact(coding: bytes | None) -> None:
    def packed(data: bytes) -> bytes:
        return gzip.compress(data) if coding else data

    assert len(read(packed(bytes(1000)), coding, limit=1000)) == 1000
    with pytest.raises(TooLarge, match="at most 1000 bytes"):
        read(packed(bytes(1001)), coding, limit=1000)


def test_a_bomb_is_refused_with_flat_memory() -> None:
    z = zlib.compressobj(9, wbits=31)
    bomb = b"".join(z.compress(bytes(1024 * 1024)) for _ in range(20)) + z.flush()
    assert len(bomb) < 60_000
    reader = BodyReader(1_000_000, b"gzip")
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            reader.add(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_millions_of_tiny_pieces_are_packed() -> None:
    reader = BodyReader(10_000_000)
    tracemalloc.start()
    try:
        for i in range(20_000):
            reader.add(b"%02d" % (i % 100))
        assert reader.size == 40_000
        assert tracemalloc.get_traced_memory()[0] < 120_000, "an object per piece would take 0.8 MB"
    finally:
        tracemalloc.stop()
    assert reader.finish() == b"".join(b"%02d" % i for i in range(100)) * 200


def test_a_single_piece_is_not_copied() -> None:
    piece = bytes(1000)
    reader = BodyReader(1000)
    reader.add(piece)
    assert reader.finish() is piece


@pytest.mark.parametrize("over", [0, 1, 2, 100, 257, 258, 300])
@pytest.mark.parametrize("unit", [b"\0", b"ab", b"0.5,"])
def test_nothing_is_kept_back_by_the_decompressor(unit: bytes, over: int) -> None:
    """It may have taken all input and still owe output, when what it was given room for is full."""
    whole = (unit * 40_000)[: 16 * 1024 + over]
    for coding, pack in PACKERS:
        assert read(pack(whole), coding) == whole
