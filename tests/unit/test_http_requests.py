import gzip
from collections.abc import Callable

import pytest
from http_fakes import Client, chunked, echo, get, post

from hybrid.frontend.http import Exchange


def only(client: Client) -> Exchange:
    assert len(client.waiting) == 1
    return client.waiting[0]


def test_request_line_headers_and_body_reach_the_handler() -> None:
    client = Client()
    client.send(
        b"POST /v2/a%20b?x=1?y HTTP/1.1\r\nHost: h:1\r\nX-ONE: 1 \r\nAccept: a\r\naccept: b\r\n"
        b"Content-Length: 3\r\n\r\nabc"
    )
    exchange = only(client)
    assert (exchange.method, exchange.path, exchange.query) == ("POST", "/v2/a%20b", "x=1?y")
    assert exchange.headers == {b"host": b"h:1", b"x-one": b"1", b"accept": b"a, b", b"content-length": b"3"}
    assert exchange.body == b"abc"
    assert exchange.peer == "127.0.0.1:5555"
    assert not exchange.replied


def test_ipv6_peer_is_bracketed() -> None:
    client = Client()
    client.transport.extra["peername"] = ("::1", 9, 0, 0)
    assert only(client.send(get())).peer == "[::1]:9"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/", "/", ""),
        ("/a?", "/a", ""),
        ("http://host:80/a/b?c=d", "/a/b", "c=d"),
        ("HTTP://host/a", "HTTP://host/a", ""),
        ("https://host", "/", ""),
        ("*", "*", ""),
    ],
)
def test_request_targets(target: str, path: str, query: str) -> None:
    exchange = only(Client().send(get(target)))
    assert (exchange.path, exchange.query) == (path, query)


def test_times_are_of_first_byte_and_of_the_complete_body() -> None:
    client = Client()
    data = post(b"abcdef")
    client.send(data[:5])
    client.clock.advance(1.5)
    client.send(data[5:-2])
    client.clock.advance(2.0)
    client.send(data[-2:])
    exchange = only(client)
    assert (exchange.received_at, exchange.complete_at) == (1000.0, 1003.5)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 20])
def test_any_split_gives_the_same_requests(step: int) -> None:
    data = post(b"one", path="/1") + chunked(b"t", b"w", b"o", path="/2") + get("/3?q")
    client = Client(echo)
    client.send(*(data[i : i + step] for i in range(0, len(data), step)))
    assert [response.body for response in client.responses] == [b"/1 one", b"/2 two", b"/3 "]
    assert client.server.stats().requests_n == 3
    assert client.server.stats().body_bytes == 0


def test_http11_keeps_the_connection_and_http10_closes_it() -> None:
    client = Client(echo).send(get())
    assert not client.transport.closed
    assert "connection" not in client.responses[0].headers
    old = Client(echo).send(get(version="1.0"))
    assert old.transport.closed
    assert old.responses[0].headers["connection"] == "close"


def test_http10_may_ask_to_keep_the_connection() -> None:
    client = Client(echo).send(get("/", "Connection: keep-alive", version="1.0"))
    assert not client.transport.closed
    assert client.responses[0].headers["connection"] == "keep-alive"


def test_connection_close_is_honoured_and_what_follows_is_ignored() -> None:
    client = Client(echo).send(get("/1", "Connection: close") + get("/2"))
    assert client.transport.closed
    assert [r.body for r in client.responses] == [b"/1 "]
    assert client.responses[0].headers["connection"] == "close"


def test_http10_needs_no_host() -> None:
    client = Client(echo).send(b"GET / HTTP/1.0\r\n\r\n")
    assert client.statuses == [200]


def test_pipelined_requests_are_handed_out_at_once_and_answered_in_order() -> None:
    client = Client().send(b"".join(get(f"/{i}") for i in range(4)))
    assert [e.path for e in client.waiting] == ["/0", "/1", "/2", "/3"]
    for i in (2, 3, 1):
        client.waiting[i].reply(200, b"%d" % i)
        assert not client.transport.writes
    client.waiting[0].reply(200, b"0")
    assert [r.body for r in client.responses] == [b"0", b"1", b"2", b"3"]
    assert len(client.transport.writes) == 1, "answers that leave together are one write"


def test_answers_given_at_once_to_one_segment_leave_in_one_write() -> None:
    client = Client(echo).send(get("/a") + get("/b") + get("/c"))
    assert len(client.transport.writes) == 1
    assert [r.body for r in client.responses] == [b"/a ", b"/b ", b"/c "]


def test_reading_pauses_beyond_max_pipelined() -> None:
    client = Client(max_pipelined=2).send(b"".join(get(f"/{i}") for i in range(5)))
    assert [e.path for e in client.waiting] == ["/0", "/1"]
    assert client.transport.paused
    client.waiting[1].reply(200, b"")
    assert len(client.waiting) == 2, "nothing has left yet"
    client.waiting[0].reply(200, b"")
    assert [e.path for e in client.waiting] == ["/0", "/1", "/2", "/3"]
    assert client.transport.paused
    client.waiting[2].reply(200, b"")
    assert not client.transport.paused
    for exchange in client.waiting[3:]:
        exchange.reply(200, b"")
    assert client.statuses == [200] * 5
    assert client.server.stats().inflight == 0


def test_a_single_open_request_does_not_pause_reading() -> None:
    client = Client(max_pipelined=1).send(get())
    assert not client.transport.paused, "a paused transport cannot notice that the client left"


def test_thousands_of_pipelined_requests_in_one_segment() -> None:
    n = 2500
    client = Client(echo, max_pipelined=4).send(get("/x") * n)
    assert client.statuses == [200] * n
    held = Client(max_pipelined=4).send(get("/x") * n)
    assert len(held.waiting) == 4
    assert len(held.connection._held) < 1000, "the rest stays unparsed"
    answered = 0
    while answered < len(held.waiting):
        held.waiting[answered].reply(200, b"")
        answered += 1
    assert answered == n
    assert held.statuses == [200] * n
    assert not held.transport.paused


def test_chunked_body_with_tiny_chunks_extensions_and_trailers() -> None:
    data = chunked(*[b"%d" % (i % 10) for i in range(500)], trailers=b"X-Sum: 1\r\nHost: other\r\n")
    client = Client().send(data.replace(b"1\r\n0\r\n1", b"1;a=b\r\n0\r\n1", 1))
    exchange = only(client)
    assert exchange.body == b"0123456789" * 50
    assert b"x-sum" not in exchange.headers
    assert exchange.headers[b"host"] == b"h"


def test_trailers_of_one_request_do_not_reach_the_next() -> None:
    client = Client().send(chunked(b"a", trailers=b"X-Evil: 1\r\n"), get("/next"))
    assert client.waiting[1].headers == {b"host": b"h"}


def test_empty_lines_before_a_request_are_skipped() -> None:
    assert only(Client().send(b"\r\n\r\n" + get("/a"))).path == "/a"


def test_expect_continue_is_answered_before_the_body_is_sent() -> None:
    client = Client(echo)
    data = post(b"abc", "Expect: 100-continue")
    client.send(data[:-3])
    assert client.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(data[-3:])
    assert client.statuses == [100, 200]


def test_expect_continue_is_skipped_when_the_body_came_along() -> None:
    client = Client(echo).send(post(b"abc", "Expect: 100-Continue"))
    assert client.statuses == [200]
    partly = Client(echo).send(post(b"abc", "Expect: 100-Continue")[:-1])
    assert partly.sent == b""
    assert partly.send(b"c").statuses == [200]


def test_expect_continue_waits_for_earlier_answers() -> None:
    client = Client().send(get("/1") + post(b"abc", "Expect: 100-continue")[:-3])
    assert client.sent == b""
    client.waiting[0].reply(200, b"1")
    assert client.statuses == [200, 100]
    client.send(b"abc")
    client.waiting[1].reply(200, b"2")
    assert client.statuses == [200, 100, 200]


def test_expect_on_http10_is_ignored() -> None:
    client = Client(echo).send(b"POST / HTTP/1.0\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert client.sent == b""
    assert client.send(b"abc").statuses == [200]


@pytest.mark.parametrize("step", [1, 1000])
@pytest.mark.parametrize(
    "framed",
    [
        b"Content-Length: 3\r\n\r\nabc",
        b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
    ],
)
def test_an_upgrade_is_ignored_and_its_body_is_read(step: int, framed: bytes) -> None:
    head = b"POST /u HTTP/1.1\r\nHost: real\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
    data = (head + framed) * 2 + get("/next")
    client = Client().send(*(data[i : i + step] for i in range(0, len(data), step)))
    assert [(e.path, e.body, e.headers[b"host"]) for e in client.waiting] == [
        ("/u", b"abc", b"real"),
        ("/u", b"abc", b"real"),
        ("/next", b"", b"h"),
    ]


def test_an_upgrade_without_body_is_a_normal_request() -> None:
    data = get("/ws", "Connection: Upgrade", "Upgrade: websocket") + get("/next")
    assert Client(echo).send(data).statuses == [200, 200]


def test_an_upgrade_that_also_closes() -> None:
    client = Client(echo).send(post(b"abc", "Connection: Upgrade, close", "Upgrade: h2c"))
    assert client.statuses == [200]
    assert client.transport.closed


def test_connect_is_refused() -> None:
    client = Client(echo).send(b"CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\nTLS")
    assert client.statuses == [405]
    assert "allow" in client.responses[0].headers
    assert client.lingers


# Compressed bodies and the event loop ---------------------------------------------------------------------------------


def test_a_body_that_inflates_to_much_lets_others_have_their_turn() -> None:
    client = Client()
    turns: list[Callable[[], None]] = []
    client.server._shared.call_soon = turns.append
    parser = client.connection._parser
    whole = bytes(20_000_000)
    client.send(post(gzip.compress(whole), "Content-Encoding: gzip") + post(b"next"))
    inflated, most = parser.unpacked_bytes, 0
    assert turns
    assert client.transport.paused, "more of it would only wait in memory"
    while turns:
        assert client.waiting == []
        turns.pop()()
        most, inflated = max(most, parser.unpacked_bytes - inflated), parser.unpacked_bytes
    assert [exchange.body for exchange in client.waiting] == [whole, b"next"]
    assert not client.transport.paused
    assert most < 3_000_000


def test_a_client_that_leaves_while_its_body_is_inflated() -> None:
    client = Client()
    turns: list[Callable[[], None]] = []
    client.server._shared.call_soon = turns.append
    client.send(post(gzip.compress(bytes(20_000_000)), "Content-Encoding: gzip"))
    client.lose()
    for turn in turns:
        turn()
    assert client.waiting == []
    assert client.server.stats().body_bytes == 0


def test_a_bomb_is_refused_in_a_later_turn_as_in_the_first() -> None:
    client = Client(max_body_bytes=8_000_000)
    client.send(post(gzip.compress(bytes(20_000_000)), "Content-Encoding: gzip"))
    assert client.statuses == [413]
    assert client.server.stats().body_bytes == 0
