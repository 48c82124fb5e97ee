"""How a connection ends: the client leaves or closes its half, the server drains."""

import logging

import pytest
from http_fakes import Client, chunked, echo, get, post


def test_disconnect_is_told_once_and_drops_the_answer() -> None:
    client = Client().send(post(b"abc"), get())
    told: list[int] = []
    for exchange in client.waiting:
        exchange.on_disconnect = lambda: told.append(1)
    assert (client.server.stats().inflight, client.server.stats().body_bytes) == (2, 3)
    client.lose(ConnectionResetError())
    assert told == [1, 1]
    for exchange in client.waiting:
        assert exchange.disconnected
        exchange.reply(200, b"")
    stats = client.server.stats()
    assert (stats.inflight, stats.body_bytes, stats.connections, stats.disconnects_n) == (0, 0, 0, 2)


def test_no_disconnect_after_the_answer() -> None:
    client = Client().send(get("/1") + get("/2"))
    told: list[str] = []
    for exchange in client.waiting:
        exchange.on_disconnect = lambda path=exchange.path: told.append(path)
    client.waiting[1].reply(200, b"")
    client.lose()
    assert told == ["/1"]


def test_a_failing_on_disconnect_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    client = Client().send(get() * 2)
    told: list[int] = []

    def fail() -> None:
        raise ValueError("oops")

    client.waiting[0].on_disconnect = fail
    client.waiting[1].on_disconnect = lambda: told.append(1)
    client.lose()
    assert told == [1]
    assert "oops" in caplog.text


def test_disconnect_within_a_request() -> None:
    client = Client(max_pipelined=1).send(get() + post(b"held"), post(b"x" * 100)[:-50])
    assert client.server.stats().body_bytes > 0
    client.lose()
    assert client.server.stats().body_bytes == 0
    partial = Client().send(post(b"x" * 100)[:-50])
    assert partial.server.stats().body_bytes == 50
    partial.lose()
    assert (partial.server.stats().body_bytes, partial.server.stats().disconnects_n) == (0, 1)


def test_half_closed_client_gets_its_answers() -> None:
    client = Client().send(get("/1") + get("/2"))
    told: list[int] = []
    client.server._shared.watch_half_closed = lambda connection: told.append(1)
    assert client.connection.eof_received() is True
    assert told == [1]
    client.waiting[0].reply(200, b"1")
    assert not client.transport.closed
    client.waiting[1].reply(200, b"2")
    assert client.statuses == [200, 200]
    assert client.transport.closed


def test_end_of_stream_without_open_requests_closes() -> None:
    assert Client(echo).send(get()).connection.eof_received() is False
    half = Client(echo).send(post(b"abc")[:-1])
    assert half.connection.eof_received() is False
    assert half.server.stats().disconnects_n == 1


def test_end_of_stream_over_tls_closes() -> None:
    client = Client().send(get())
    client.transport.extra["sslcontext"] = object()
    assert client.connection.eof_received() is False


def test_draining_says_close_on_the_last_answer_of_each_connection() -> None:
    client = Client().send(get("/1") + get("/2"))
    client.server.begin_drain()
    client.waiting[0].reply(200, b"")
    assert not client.transport.closed
    client.waiting[1].reply(200, b"")
    assert [r.headers.get("connection") for r in client.responses] == [None, "close"]
    assert client.transport.closed


def test_draining_waits_for_a_request_that_has_begun() -> None:
    client = Client().send(get("/1") + post(b"abc")[:-1])
    client.server.begin_drain()
    client.waiting[0].reply(200, b"")
    client.connection.close_if_idle()
    assert not client.transport.closed
    client.send(b"c")
    client.waiting[1].reply(200, b"")
    assert client.statuses == [200, 200]
    assert client.transport.closed


def test_draining_and_pipelined_requests_answered_at_once() -> None:
    client = Client(echo)
    client.server.begin_drain()
    client.send(get("/1") + get("/2"))
    assert client.responses[0].headers["connection"] == "close"
    assert client.statuses == [200], "a client must repeat what came after Connection: close"
    assert client.transport.closed
    assert client.server.stats().bad_requests_n == 0


def test_idle_connections_close_when_draining() -> None:
    client = Client(echo).send(get())
    client.connection.close_if_idle()
    assert client.transport.closed


def test_whoever_has_just_connected_is_about_to_send() -> None:
    client = Client(echo)
    client.server.begin_drain()
    client.connection.close_if_idle()
    assert not client.transport.closed
    assert client.connection.busy
    client.send(get())
    assert client.responses[0].headers["connection"] == "close"


def test_whoever_connected_a_while_ago_and_says_nothing_is_idle() -> None:
    client = Client(echo)
    client.clock.advance(0.6)
    assert not client.connection.busy
    client.connection.close_if_idle()
    assert client.transport.closed


def test_nothing_is_written_after_the_transport_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = Client().send(get(), chunked(b"a"))
    client.transport.aborted = True
    client.waiting[0].reply(200, b"")
    client.waiting[1].reply(200, b"")
    assert client.sent == b""
    client.lose()
    assert client.server.stats().inflight == 0
