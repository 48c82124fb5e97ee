"""Answers of unknown length: their form, their turn, and clients that leave or do not read."""

import pytest
from http_fakes import Client, get

from hybrid.frontend.http import Exchange, StreamWriter


def test_streams_are_chunked() -> None:
    client = Client().send(get())
    stream = client.waiting[0].start_stream(b"text/event-stream")
    stream.write(b"data: 1\n\n")
    stream.write(b"")
    assert client.sent.endswith(b"\r\n\r\n9\r\ndata: 1\n\n\r\n")
    stream.close()
    stream.close()
    stream.write(b"late")
    (answer,) = client.responses
    assert (answer.status, answer.body) == (200, b"data: 1\n\n")
    assert answer.headers["transfer-encoding"] == "chunked"
    assert answer.headers["content-type"] == "text/event-stream"
    client.send(get())
    client.waiting[1].reply(200, b"next")
    assert client.responses[1].body == b"next"
    assert client.server.stats().inflight == 0


def test_streams_wait_for_their_turn() -> None:
    client = Client().send(get("/1") + get("/2") + get("/3"))
    stream = client.waiting[1].start_stream(b"a/b")
    stream.write(b"one")
    client.waiting[2].reply(200, b"three")
    assert client.sent == b""
    client.waiting[0].reply(200, b"zero")
    stream.write(b"two")
    stream.close()
    assert [r.body for r in client.responses] == [b"zero", b"onetwo", b"three"]


@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",)])
def test_streams_to_http10_end_with_the_connection(headers: tuple[str, ...]) -> None:
    client = Client().send(get("/", *headers, version="1.0"))
    stream = client.waiting[0].start_stream(b"a/b")
    stream.write(b"one")
    stream.close()
    assert client.responses[0].headers["connection"] == "close"
    assert client.responses[0].body == b"one"
    assert client.transport.closed


def test_streams_honour_connection_close() -> None:
    client = Client().send(get("/", "Connection: close"))
    stream = client.waiting[0].start_stream(b"a/b")
    stream.close()
    assert client.responses[0].headers["connection"] == "close"
    assert client.transport.closed


def test_head_of_a_stream() -> None:
    client = Client().send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    stream = client.waiting[0].start_stream(b"a/b")
    assert stream.closed
    stream.write(b"x")
    stream.close()
    assert client.sent.endswith(b"Transfer-Encoding: chunked\r\n\r\n")
    assert client.server.stats().inflight == 0


def start(client: Client) -> tuple[StreamWriter, list[int]]:
    stream = client.waiting[-1].start_stream(b"a/b")
    closed: list[int] = []
    stream.on_close = lambda: closed.append(1)
    return stream, closed


def test_streams_are_told_when_the_client_leaves() -> None:
    client = Client().send(get())
    stream, closed = start(client)
    client.lose()
    assert (stream.closed, closed) == (True, [1])
    stream.write(b"late")
    stream.close()
    assert client.server.stats().inflight == 0


def test_a_stream_begun_after_the_client_left_is_closed() -> None:
    client = Client().send(get())
    client.lose()
    assert client.waiting[0].start_stream(b"a/b").closed


def test_a_stream_that_nobody_reads_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    client = Client().send(get("/1") + get("/2"))
    stream, closed = start(client)
    for _ in range(20):
        stream.write(bytes(100_000))
    assert client.transport.aborted
    client.lose()
    assert closed == [1]
    reader = Client().send(get())
    stream, closed = start(reader)
    reader.transport.unsent = 2_000_000
    stream.write(b"x")
    assert reader.transport.aborted
    assert "does not read its stream" in caplog.text


def test_nothing_is_handed_out_behind_a_dropped_stream(caplog: pytest.LogCaptureFixture) -> None:
    def handler(exchange: Exchange) -> None:
        seen.append(exchange)
        exchange.start_stream(b"a/b").write(b"x")

    seen: list[Exchange] = []
    client = Client(handler)
    client.transport.unsent = 2_000_000
    client.send(get() * 3)
    assert client.transport.aborted
    assert len(seen) == 1


def test_streams_end_properly_when_the_server_stops() -> None:
    client = Client().send(get())
    stream, closed = start(client)
    stream.write(b"x")
    client.connection.end_streams()
    assert closed == [1]
    assert stream.closed
    assert client.responses[0].body == b"x"
