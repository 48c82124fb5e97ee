"""Random input of three kinds. `HYBRID_FUZZ_SECONDS=180 pytest tests/unit/test_http_fuzz.py` runs it for minutes."""

import gc
import gzip
import itertools
import logging
import os
import random
import time
import zlib

import psutil
import pytest
from http_fakes import Client, chunked, get, post
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybrid.frontend.connection import Connection
from hybrid.frontend.http import Exchange

FUZZ_S = float(os.environ.get("HYBRID_FUZZ_SECONDS", "0"))
FAST = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
Sent = list[tuple[str, bytes]]


def requests(rng: random.Random) -> tuple[Sent, list[bytes]]:
    """Valid requests and their bytes; every one has its own path."""
    sent: Sent = []
    wire = []
    for i in range(rng.randint(1, 8)):
        body = rng.randbytes(rng.choice((0, 1, 10, 300, 5000, 40_000)))
        kind = rng.randrange(6)
        path = f"/{i}"
        if kind == 0:
            body = b""
            wire.append(get(path, *(f"X-{n}: {n}" for n in range(rng.randint(0, 5)))))
        elif kind == 1:
            wire.append(chunked(*pieces(rng, body, 40), trailers=rng.choice((b"", b"X: y\r\n")), path=path))
        elif kind == 2:
            wire.append(post(gzip.compress(body), "Content-Encoding: gzip", path=path))
        elif kind == 3:
            packed = [chunk for chunk in pieces(rng, zlib.compress(body), 5) if chunk]
            wire.append(chunked(*packed, headers=("Content-Encoding: deflate",), path=path))
        elif kind == 4:
            wire.append(post(body, "Connection: upgrade", "Upgrade: h2c", path=path))
        else:
            wire.append(post(body, "Expect: 100-continue", path=path))
        sent.append((path, body))
    return sent, wire


def pieces(rng: random.Random, data: bytes, most: int) -> list[bytes]:
    """Cut at random places; no empty pieces."""
    cuts = sorted({0, len(data), *(rng.randint(0, len(data)) for _ in range(rng.randint(0, most)))})
    return [data[a:b] for a, b in itertools.pairwise(cuts)]


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Change, delete, insert or repeat a few bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 6)):
        at = rng.randint(0, len(out))
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at : at + rng.randint(1, 20)]
            case 2:
                out[at:at] = rng.choice((b"\r\n", b"\n", b"\0", b":", b" ", b"0\r\n\r\n", b"Content-Length: 3\r\n"))
            case 3:
                out[at:at] = out[at : at + rng.randint(1, 60)]
            case _:
                out[at:at] = b"GET /extra HTTP/1.1\r\nHost: h\r\n\r\n"
    return bytes(out)


class Handler:
    """Echoes at once or later, in any order, now and then badly; checks that it is asked for complete requests."""

    def __init__(self, rng: random.Random, *, faults: bool) -> None:
        self.rng = rng
        self.faults = faults
        self.seen: list[Exchange] = []
        self.open: list[Exchange] = []

    def __call__(self, exchange: Exchange) -> None:
        self.seen.append(exchange)
        if self.faults and self.rng.random() < 0.05:
            raise ValueError("handler fault")
        if self.rng.random() < 0.5:
            self.answer(exchange)
        else:
            self.open.append(exchange)

    def answer(self, exchange: Exchange) -> None:
        if self.rng.random() < 0.2:
            stream = exchange.start_stream(b"text/plain")
            for piece in pieces(self.rng, exchange.path.encode() + exchange.body, 3):
                stream.write(piece)
            stream.close()
        else:
            exchange.reply(200, exchange.path.encode() + exchange.body, b"text/plain")

    def answer_some(self, share: float) -> None:
        for exchange in [e for e in self.open if self.rng.random() < share]:
            self.open.remove(exchange)
            self.answer(exchange)


def feed(rng: random.Random, client: Client, handler: Handler, data: bytes) -> None:
    for piece in pieces(rng, data, rng.choice((0, 3, 30))):
        client.send(piece)
        handler.answer_some(0.3)
        if rng.random() < 0.1:
            client.connection.pause_writing()
            client.connection.resume_writing()
    while handler.open:
        handler.answer_some(0.6)


def check_valid(rng: random.Random) -> None:
    """Every complete valid request is answered exactly once, in order, with its own bytes."""
    sent, wire = requests(rng)
    handler = Handler(rng, faults=False)
    client = Client(handler, max_pipelined=rng.choice((1, 2, 64)))
    feed(rng, client, handler, b"".join(wire))
    assert [(e.path, e.body) for e in handler.seen] == sent
    answers = [r for r in client.responses if r.status != 100]
    assert [r.body for r in answers] == [path.encode() + body for path, body in sent]
    check_empty(client)


def check_hostile(rng: random.Random, data: bytes) -> None:
    """Nothing escapes, answers are well formed and as many as requests, nothing is left behind."""
    handler = Handler(rng, faults=True)
    client = Client(handler, max_pipelined=rng.choice((1, 3)), max_body_bytes=30_000, max_header_bytes=2000)
    feed(rng, client, handler, data)
    stats = client.server.stats()
    if not any(exchange.method == "HEAD" for exchange in handler.seen):  # a mutation can make one
        answers = [status for status in client.statuses if status != 100]
        assert len(answers) == len(handler.seen) + stats.bad_requests_n
    assert stats.bad_requests_n <= 1
    if stats.bad_requests_n:
        assert client.lingers
    if rng.random() < 0.5 and not client.transport.is_closing():
        client.connection.eof_received()
    client.tick(100)
    check_empty(client)


def check_empty(client: Client) -> None:
    client.lose()
    stats = client.server.stats()
    assert (stats.inflight, stats.body_bytes, stats.connections) == (0, 0, 0)


@pytest.mark.slow
@FAST
@given(st.randoms(use_true_random=False))
def test_valid_requests(rng: random.Random) -> None:
    check_valid(rng)


@pytest.mark.slow
@FAST
@given(st.randoms(use_true_random=False))
def test_mutated_requests(rng: random.Random) -> None:
    check_hostile(rng, mutate(rng, b"".join(requests(rng)[1])))


@pytest.mark.slow
@FAST
@given(st.randoms(use_true_random=False), st.binary(max_size=2000))
def test_random_bytes(rng: random.Random, data: bytes) -> None:
    check_hostile(rng, data)


@pytest.mark.slow
@FAST
@given(st.randoms(use_true_random=False), st.text("GETPOS/ HTTP1.0:\r\n;,chunkedleg-ab3", max_size=300))
def test_random_text_of_http_characters(rng: random.Random, text: str) -> None:
    check_hostile(rng, b"POST / HTTP/1.1\r\nHost: h\r\n" + text.encode())


@pytest.mark.slow
@pytest.mark.skipif(not FUZZ_S, reason="HYBRID_FUZZ_SECONDS is not set")
@pytest.mark.timeout(FUZZ_S + 120)
def test_for_minutes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # pytest keeps every log record, and with the traceback of a handler fault everything it refers to.
    monkeypatch.setattr(logging.getLogger("hybrid.frontend.connection"), "disabled", True)
    seed = random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    runs = 0
    rss_start = 0
    ends_at = time.monotonic() + FUZZ_S
    while time.monotonic() < ends_at:
        state = rng.getrandbits(64)
        try:
            one_run(random.Random(state))
        except BaseException:
            print(f"failed with random.Random({state})")
            raise
        runs += 1
        if runs == 2000:
            rss_start = psutil.Process().memory_info().rss
    gc.collect()
    grown = psutil.Process().memory_info().rss - rss_start
    with capsys.disabled():
        print(f"\n{runs} runs from seed {seed}, resident memory grew by {grown / 1024:.0f} KiB")
    assert not any(isinstance(o, Connection) for o in gc.get_objects())
    assert grown < 20 * 1024 * 1024


def one_run(rng: random.Random) -> None:
    kind = rng.randrange(4)
    if kind == 0:
        check_valid(rng)
    elif kind == 1:
        check_hostile(rng, rng.randbytes(rng.randint(0, 2000)))
    else:
        check_hostile(rng, mutate(rng, b"".join(requests(rng)[1])))
