"""What the HTTP server counts, and the bound on request bodies of all connections together."""

import gzip

import pytest
from http_fakes import Client, chunked, echo, get, post

from hybrid.config import HttpLimits
from hybrid.errors import QueueFull
from hybrid.frontend.http import Exchange, HttpServer
from hybrid.frontend.listen import affordable_bodies


def statuses(server: HttpServer) -> dict[int, int]:
    return {entry.status: entry.n for entry in server.stats().responses}


def two(limit: int, **limits: int) -> tuple[Client, Client]:
    """Two clients of one server, whose requests nobody answers yet."""
    first = Client(max_buffered_bytes=limit, **limits)
    second = Client(server=first.server, clock=first.clock)
    second.waiting = first.waiting
    return first, second


# Counters ------------------------------------------------------------------------------------------------------------


def test_answers_by_status_and_bytes_in_both_directions():
    def handler(exchange: Exchange) -> None:
        if exchange.path == "/full":
            raise QueueFull("full")
        echo(exchange)

    client = Client(handler)
    pieces = [post(b"body"), get("/full"), get("/"), b"nonsense\r\n\r\n"]
    client.send(*pieces)
    assert client.statuses == [200, 429, 200, 400]
    assert statuses(client.server) == {200: 2, 400: 1, 429: 1}
    stats = client.server.stats()
    assert stats.received_bytes_n == sum(map(len, pieces))
    assert stats.sent_bytes_n == len(client.sent)
    assert stats.accepted_connections_n == 1


def test_what_is_read_only_to_be_dropped_counts_as_received():
    client = Client(echo)
    client.send(b"nonsense\r\n\r\n", b"x" * 1000)
    assert client.server.stats().received_bytes_n == 12 + 1000


def test_a_stream_counts_when_it_begins():
    client = Client()
    client.send(get())
    writer = client.waiting[0].start_stream(b"text/plain")
    assert statuses(client.server) == {200: 1}
    writer.write(b"piece")
    client.lose()
    assert statuses(client.server) == {200: 1}
    assert client.server.stats().sent_bytes_n == len(client.sent)


def test_an_answer_that_nobody_gets_is_not_counted():
    client = Client()
    client.send(get())
    client.lose()
    client.waiting[0].reply(200, b"")
    assert statuses(client.server) == {}


def test_refused_connections_are_not_accepted_ones():
    first = Client(echo, max_connections=1)
    second = Client(server=first.server)
    assert second.statuses == [503]
    stats = first.server.stats()
    assert (stats.accepted_connections_n, stats.refused_connections_n) == (1, 1)
    assert statuses(first.server) == {503: 1}


# Bodies of all connections together ----------------------------------------------------------------------------------


def test_a_whole_body_beyond_the_bound_is_refused_and_the_connection_stays():
    first, second = two(1000)
    first.send(post(b"x" * 600))
    second.send(post(b"y" * 600))
    assert second.statuses == [503]
    assert second.responses[0].headers["retry-after"] == "1"
    assert b"not_ready" in second.responses[0].body
    assert not second.transport.is_closing()
    assert first.server.stats().body_bytes == 600
    second.send(post(b"z" * 400), get())  # these fit
    assert [len(exchange.body) for exchange in first.waiting] == [600, 400, 0]
    assert first.server.stats().refused_bodies_n == 1


def test_a_declared_body_beyond_the_bound_is_refused_before_it_comes():
    first, second = two(1_000_000)
    first.send(post(b"x" * 600_000))
    second.send(post(b"y" * 600_000)[:200])
    assert second.statuses == [503]
    assert second.lingers
    assert first.server.stats().body_bytes == 600_000
    second.send(b"y" * 500_000)
    assert first.server.stats().body_bytes == 600_000, "what still comes is dropped"


def test_nobody_is_told_to_go_on_with_a_body_for_which_there_is_no_room():
    first, second = two(1000)
    first.send(post(b"x" * 600))
    second.send(post(b"y" * 600, "Expect: 100-continue")[:-600])
    assert second.statuses == [503]


def test_a_body_that_is_only_declared_takes_no_room():
    first, second = two(1000)
    first.send(post(b"x" * 900)[:-900])
    second.send(post(b"y" * 900))
    assert [len(exchange.body) for exchange in first.waiting] == [900]
    first.send(b"x" * 100)
    assert first.statuses == [503]


@pytest.mark.parametrize("pieces", [1, 7])
def test_a_chunked_body_is_refused_where_it_passes_the_bound(pieces):
    first, second = two(100_000)
    first.send(post(b"x" * 60_000))
    request = chunked(*[b"y" * 10_000] * 6)
    step = len(request) // pieces + 1
    second.send(*(request[at : at + step] for at in range(0, len(request), step)))
    assert second.statuses == [503]
    assert first.server.stats().body_bytes == 60_000


def test_a_compressed_body_counts_by_what_it_unpacks_to():
    first, second = two(1_000_000)
    first.send(post(b"x" * 600_000))
    second.send(post(gzip.compress(bytes(600_000)), "Content-Encoding: gzip"))
    assert second.statuses == [503]
    assert first.server.stats().body_bytes == 600_000


def test_requests_without_a_body_are_served_at_the_bound():
    first, second = two(1000)
    first.send(post(b"x" * 1000))
    second.send(get("/health"))
    first.waiting[1].reply(200, b"")
    assert second.statuses == [200]


def test_room_is_given_back_however_a_request_ends():
    first, second = two(1000)
    for end in ("answered", "lost", "cut", "refused"):
        client = Client(server=first.server, clock=first.clock)
        client.send(post(b"x" * 1000)[: -1 if end in ("cut", "refused") else None])
        second.send(post(b"yy"))
        assert second.statuses.pop() == 503, end
        if end == "answered":
            first.waiting[-1].reply(200, b"")
        elif end == "refused":
            client.tick(61.0)
        client.lose()
        assert first.server.stats().body_bytes == 0, end
    second.send(post(b"y" * 1000))
    assert len(first.waiting[-1].body) == 1000


def test_pipelined_bodies_count_one_by_one():
    client = Client(max_buffered_bytes=1000)
    client.send(post(b"a" * 400) + post(b"b" * 400) + post(b"c" * 400) + post(b"d" * 100))
    assert [exchange.body[:1] for exchange in client.waiting] == [b"a", b"b", b"d"]
    for exchange in client.waiting:
        exchange.reply(200, b"")
    assert client.statuses == [200, 200, 503, 200]
    assert client.server.stats().body_bytes == 0


@pytest.mark.parametrize(
    ("memory", "given", "expected"),
    [
        (16 << 30, {}, (1 << 30, 64 << 20)),
        (2 << 30, {}, (512 << 20, 64 << 20)),
        (128 << 20, {}, (32 << 20, 32 << 20)),
        (16 << 30, {"max_buffered_bytes": 1000}, (1000, 1000)),
        (16 << 30, {"max_body_bytes": 10}, (1 << 30, 10)),
    ],
)
def test_bodies_take_at_most_a_quarter_of_the_memory(memory, given, expected):
    limits = affordable_bodies(HttpLimits(**given), memory)
    assert (limits.max_buffered_bytes, limits.max_body_bytes) == expected
