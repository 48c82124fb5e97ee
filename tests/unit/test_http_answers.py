import json
import logging
from array import array

import pytest
from http_fakes import Client, chunked, echo, get, parse_responses, post

from hybrid.errors import HybridError, MethodNotAllowed, QueueFull
from hybrid.frontend.http import Exchange, HttpServer, StreamWriter, error_body
from hybrid.frontend.reply import encode


def test_answers_have_a_minimal_head() -> None:
    client = Client(lambda e: e.reply(200, b'{"a":1}', extra=b"X-A: 1\r\n")).send(get())
    assert client.sent == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\nX-A: 1\r\n\r\n" + b'{"a":1}'
    )


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 1_000_000])
def test_bodies_of_several_buffers(size: int) -> None:
    parts = [b"head", memoryview(array("d", [1.5, 2.5])), memoryview(b""), bytes(size)]
    client = Client(lambda e: e.reply(200, parts, b"application/octet-stream")).send(get())
    assert client.responses[0].body == b"head" + array("d", [1.5, 2.5]).tobytes() + bytes(size)


def test_large_bodies_are_not_copied() -> None:
    body = bytes(100_000)
    assert encode(200, body, b"a/b", b"", head_only=False)[1] is body


def test_head_is_answered_without_the_body() -> None:
    client = Client(echo).send(b"HEAD /abc HTTP/1.1\r\nHost: h\r\n\r\n")
    (answer,) = parse_responses(client.sent, head=True)
    assert answer.headers == {"content-type": "text/plain", "content-length": "5"}


def test_content_types_cannot_fill_the_memory() -> None:
    for i in range(1000):
        encode(200, b"", b"a/%d" % i, b"", head_only=False)
    assert encode(200, b"", b"a/999", b"", head_only=False)[0].startswith(b"HTTP/1.1 200 OK\r\nContent-Type: a/999\r\n")


def test_a_second_answer_is_a_bug() -> None:
    client = Client().send(get())
    client.waiting[0].reply(200, b"")
    with pytest.raises(RuntimeError, match="this is a bug"):
        client.waiting[0].reply(200, b"")
    with pytest.raises(RuntimeError, match="this is a bug"):
        client.waiting[0].start_stream(b"text/plain")
    assert client.statuses == [200]


def test_errors_raised_by_the_handler_are_answered_and_the_connection_goes_on() -> None:
    def handler(exchange: Exchange) -> None:
        raise QueueFull("the queue is full", retry_after_s=3)

    client = Client(handler).send(get(), get())
    assert client.statuses == [429, 429]
    assert client.responses[0].headers["retry-after"] == "3"
    assert json.loads(client.responses[0].body) == {"error": "the queue is full", "code": "queue_full"}
    assert not client.transport.is_closing()


def test_other_exceptions_are_logged_and_show_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def handler(exchange: Exchange) -> None:
        raise KeyError("secret")

    client = Client(handler).send(get("/path"), get())
    assert client.statuses == [500, 500]
    assert b"secret" not in client.sent
    assert "secret" in caplog.text
    assert "/path" in caplog.text


def test_exceptions_after_the_answer_do_not_answer_again(caplog: pytest.LogCaptureFixture) -> None:
    def handler(exchange: Exchange) -> None:
        exchange.reply(200, b"")
        raise HybridError("late") if exchange.path == "/a" else ValueError("late")

    assert Client(handler).send(get("/a"), get("/b")).statuses == [200, 200]


def test_fail_carries_the_headers_of_the_error() -> None:
    client = Client(lambda e: e.fail(MethodNotAllowed("no", allow="POST"))).send(get())
    assert (client.statuses, client.responses[0].headers["allow"]) == ([405], "POST")


def test_error_body_survives_lone_surrogates() -> None:
    assert json.loads(error_body(HybridError("a\ud800b"))) == {"error": "a?b", "code": "hybrid_error"}


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


def test_a_client_that_does_not_read_is_not_read_either() -> None:
    client = Client(echo, write_timeout_s=5).send(get())
    client.transport.unsent = 300_000
    client.connection.pause_writing()
    assert client.transport.paused
    client.tick(4.5)
    client.transport.unsent = 200_000
    client.tick(1)
    assert not client.transport.aborted, "slow, but reading"
    client.transport.unsent = 0
    client.connection.resume_writing()
    assert not client.transport.paused
    assert client.send(get()).statuses == [200, 200]


def test_a_client_that_never_reads_is_dropped() -> None:
    client = Client(echo, write_timeout_s=5).send(get())
    client.transport.unsent = 300_000
    client.connection.pause_writing()
    client.tick(5.5)
    assert client.transport.aborted
    assert client.server.stats().timeouts_n == 1


def test_small_unread_answers_do_not_keep_a_connection_for_ever() -> None:
    client = Client(echo, idle_timeout_s=5).send(get())
    client.transport.unsent = 100
    client.tick(5.5)
    assert client.transport.aborted


def test_unread_answers_do_not_keep_a_closed_connection_for_ever() -> None:
    client = Client(echo, write_timeout_s=5)
    client.transport.unsent = 100
    client.send(get("/", "Connection: close"))
    assert client.transport.closed
    client.tick(5.5)
    assert client.transport.aborted


def test_pipelined_requests_wait_while_answers_are_not_read() -> None:
    client = Client(lambda e: e.reply(200, bytes(70_000)))
    pause = client.transport.write

    def write(data: bytes) -> None:
        pause(data)
        if len(client.transport.writes) == 3:
            client.connection.pause_writing()

    client.transport.write = write  # type: ignore[method-assign]
    client.send(get() * 400)
    assert client.server.stats().requests_n == 3
    client.transport.write = pause  # type: ignore[method-assign]
    client.connection.resume_writing()
    assert client.server.stats().requests_n == 400


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


def test_streams_end_properly_when_the_server_stops() -> None:
    client = Client().send(get())
    stream, closed = start(client)
    stream.write(b"x")
    client.connection.end_streams()
    assert closed == [1]
    assert stream.closed
    assert client.responses[0].body == b"x"


def test_nothing_is_written_after_the_transport_closed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = Client().send(get(), chunked(b"a"))
    client.transport.aborted = True
    client.waiting[0].reply(200, b"")
    client.waiting[1].reply(200, b"")
    assert client.sent == b""
    client.lose()
    assert client.server.stats().inflight == 0


def test_stats_of_a_new_server_are_zero() -> None:
    stats = HttpServer(echo, Client().server._shared.limits).stats()
    assert {getattr(stats, name) for name in stats.__struct_fields__} == {0, ()}
