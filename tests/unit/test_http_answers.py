"""Answers: their bytes, errors as answers, and clients that do not read them."""

import json
from array import array

import pytest
from http_fakes import Client, echo, get, parse_responses

from hybrid.errors import HybridError, MethodNotAllowed, QueueFull
from hybrid.frontend.http import Exchange, HttpServer, error_body
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


def test_stats_of_a_new_server_are_zero() -> None:
    stats = HttpServer(echo, Client().server._shared.limits).stats()
    assert {getattr(stats, name) for name in stats.__struct_fields__} == {0, ()}
