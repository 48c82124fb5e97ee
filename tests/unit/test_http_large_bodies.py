"""Large bodies of known length, which are received where they stay. Nobody may see that but by the time it takes."""

import asyncio
import random
from typing import Any
from unittest import mock

import pytest
from http_fakes import Client, chunked, echo, get, post

from hybrid.frontend.body import LargeBody, Receiving
from hybrid.frontend.http import Exchange

KIB = 1024


def content(size: int, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def in_place(client: Client) -> bool:
    return isinstance(client.transport.protocol, asyncio.BufferedProtocol)


def cut(stream: bytes, generator: random.Random) -> list[bytes]:
    pieces = []
    while stream:
        size = generator.choice((1, 100, 4 * KIB, 16 * KIB, 50 * KIB, 256 * KIB, 10_000 * KIB))
        size = generator.randint(1, size)
        pieces.append(stream[:size])
        stream = stream[size:]
    return pieces


def test_the_rest_of_a_large_body_is_received_in_place():
    client = Client()
    body = content(600 * KIB)
    stream = post(body)
    client.send(stream[:1000])
    assert in_place(client)
    client.send(stream[1000:])
    assert not in_place(client)
    (exchange,) = client.waiting
    assert exchange.body == body
    assert client.server.stats().received_bytes_n == len(stream)
    assert client.server.stats().body_bytes == len(body)
    exchange.reply(200, b"")
    assert client.server.stats().body_bytes == 0


@pytest.mark.parametrize("size", [1000, 60 * KIB])
def test_a_small_body_is_not(size: int):
    client = Client()
    client.send(post(content(size))[:500])
    assert not in_place(client)


def test_a_handler_cannot_write_to_it_nor_can_what_comes_later():
    client = Client()
    body = content(200 * KIB)
    client.send(post(body), post(content(200 * KIB, 2)))
    first = client.waiting[0].body
    assert isinstance(first, memoryview)
    assert first.readonly
    assert first == body


@pytest.mark.parametrize("seed", range(40))
def test_streams_of_requests_cut_anywhere(seed: int):
    generator = random.Random(seed)
    client = Client(max_pipelined=generator.choice((1, 2, 64)))
    expected: list[tuple[str, bytes]] = []
    stream = b""
    for number in range(6):
        path = f"/{number}"
        body = content(generator.choice((0, 10, 65 * KIB, 70 * KIB, 300 * KIB, 700 * KIB)), seed + number)
        kind = generator.randrange(4)
        headers = ("Upgrade: h2c", "Connection: Upgrade") if kind == 2 else ()
        if kind == 0:
            body = b""
            stream += get(path)
        else:
            stream += chunked(body, path=path) if kind == 1 and body else post(body, *headers, path=path)
        expected.append((path, body))
    seen: list[tuple[str, bytes]] = []
    for piece in cut(stream, generator):
        client.send(piece)
        while client.waiting:
            exchange = client.waiting.pop(0)
            seen.append((exchange.path, bytes(exchange.body)))
            exchange.reply(200, b"ok")
    assert seen == expected
    assert client.statuses == [200] * 6
    assert not in_place(client)
    assert client.server.stats().body_bytes == 0


def test_the_next_requests_may_be_in_the_same_segment():
    client = Client(echo)
    body = content(100 * KIB)
    stream = post(body)
    client.send(stream[:300])
    client.connection.data_received(stream[300:] + get("/next") + post(b"small"))
    assert [response.body for response in client.responses] == [b"/p " + body, b"/next ", b"/p small"]


def test_the_end_of_one_and_the_beginning_of_the_next_large_one():
    client = Client()
    first, second = content(200 * KIB, 1), content(300 * KIB, 2)
    stream = post(first) + post(second)
    at = len(post(first))
    client.send(stream[:70_000], stream[70_000 : at + 100], stream[at + 100 :])
    assert [exchange.body for exchange in client.waiting] == [first, second]


def test_a_request_to_close_behind_a_large_body():
    client = Client(echo)
    client.send(post(content(200 * KIB), "Connection: close"), get("/never"))
    assert client.statuses == [200]
    assert client.responses[0].headers["connection"] == "close"
    assert client.transport.closed


def test_expect_is_answered_before_a_large_body():
    client = Client(echo)
    stream = post(content(200 * KIB), "Expect: 100-continue")
    head = stream[: stream.index(b"\r\n\r\n") + 4]
    client.send(head)
    assert client.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert in_place(client)
    client.send(stream[len(head) :])
    assert client.statuses == [100, 200]


def test_a_large_body_that_is_slow_is_refused_and_the_rest_dropped():
    client = Client(body_timeout_s=5.0)
    stream = post(content(400 * KIB))
    client.send(stream[: 100 * KIB])
    client.tick(6.0)
    assert client.statuses == [408]
    assert client.lingers
    assert not in_place(client)
    assert client.server.stats().body_bytes == 0
    client.send(stream[100 * KIB :])
    assert not client.waiting


def test_a_large_body_for_which_there_is_no_room():
    client = Client(max_buffered_bytes=500 * KIB)
    other = Client(server=client.server)
    other.send(post(content(400 * KIB))[: 300 * KIB])
    client.send(post(content(300 * KIB))[:1000])
    assert client.statuses == [503]
    assert not in_place(client)
    assert client.server.stats().refused_bodies_n == 1


def test_room_that_others_took_meanwhile():
    client = Client(max_buffered_bytes=500 * KIB)
    other = Client(server=client.server)
    stream = post(content(300 * KIB))
    client.send(stream[: 100 * KIB])
    other.send(post(content(290 * KIB))[: 250 * KIB])
    client.send(stream[100 * KIB : 120 * KIB])
    assert client.statuses == [503]
    assert not in_place(client)


@pytest.mark.parametrize("leave", ["eof", "reset"])
def test_a_client_that_leaves_in_the_middle(leave: str):
    client = Client()
    client.send(post(content(400 * KIB))[: 200 * KIB])
    protocol: Any = client.transport.protocol
    assert in_place(client)
    if leave == "eof":
        assert not protocol.eof_received()
    protocol.connection_lost(None)
    assert client.server.stats().body_bytes == 0
    assert client.server.stats().disconnects_n == 1
    assert client.server.stats().connections == 0
    assert not client.waiting


def test_answers_of_earlier_requests_are_sent_meanwhile():
    client = Client()
    stream = post(content(400 * KIB))
    client.send(get("/first"), stream[: 200 * KIB])
    protocol: Any = client.transport.protocol
    protocol.pause_writing()
    protocol.resume_writing()
    client.waiting[0].reply(200, b"one")
    assert client.responses[0].body == b"one"
    client.send(stream[200 * KIB :])
    assert len(client.waiting) == 2


def test_a_handler_that_raises_is_answered():
    def handler(exchange: Exchange) -> None:
        raise RuntimeError("broken")

    client = Client(handler)
    client.send(post(content(200 * KIB)), get())
    assert client.statuses == [500, 500]


def test_without_the_memory_for_it_a_body_is_still_collected_in_pieces():
    client = Client()
    body = content(200 * KIB)
    with mock.patch("hybrid.frontend.parser.LargeBody", side_effect=OSError):
        client.send(post(body)[:1000])
        assert not in_place(client)
        client.send(post(body)[1000:])
    assert client.waiting[0].body == body


def test_what_is_received_at_once_is_bounded():
    large = LargeBody(2_000_000, b"ab", Receiving())
    assert len(large.room) == 512 * KIB
    large.filled(1_999_000)
    assert len(large.room) == large.missing == 998


def test_memory_of_a_crowd_is_its_own_and_the_account_of_the_rest_is_balanced():
    size, receiving = 8 * 1024 * 1024, Receiving()
    bodies = [LargeBody(size, b"ab", receiving) for _ in range(6)]
    assert receiving.nbytes == 32 * 1024 * 1024
    whole = bodies.pop(0)
    whole.filled(size - 2)
    assert bytes(whole.finish()[:2]) == b"ab"
    assert bytes(bodies[-1].finish()[:2]) == b"ab"
    del bodies, whole
    assert receiving.nbytes == 0
