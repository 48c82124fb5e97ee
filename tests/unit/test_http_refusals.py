import json

import pytest
from http_fakes import Client, chunked, echo, get, post

P = b"POST / HTTP/1.1\r\nHost: h\r\n"

AMBIGUOUS = {
    "length and chunked": P + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": P + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": P + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "same length twice": P + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "list of lengths": P + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": P + b"Content-Length: +3\r\n\r\nabc",
    "negative length": P + b"Content-Length: -3\r\n\r\nabc",
    "hex length": P + b"Content-Length: 0x3\r\n\r\nabc",
    "empty length": P + b"Content-Length: \r\n\r\n",
    "length overflow": P + b"Content-Length: 99999999999999999999999\r\n\r\n",
    "length in trailer": chunked(b"abc", trailers=b"Content-Length: 9\r\n"),
    "bad chunk size": P + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "negative chunk size": P + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
    "chunk size with prefix": P + b"Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n",
    "chunk size with space": P + b"Transfer-Encoding: chunked\r\n\r\n3 \r\nabc\r\n",
    "chunk size overflow": P + b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
    "chunk longer than said": P + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n",
    "chunk with bare line feed": P + b"Transfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
    "gzip transfer": P + b"Transfer-Encoding: gzip\r\n\r\n",
    "gzip and chunked transfer": P + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked twice": P + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked, identity": P + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "identity transfer": P + b"Transfer-Encoding: identity\r\n\r\n",
    "nearly chunked": P + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "quoted chunked": P + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "chunked on 1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n",
    "header folded by tab": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n\tc\r\n\r\n",
    "space before colon": b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
    "no header name": b"GET / HTTP/1.1\r\nHost: h\r\n: a\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: h\n\n",
    "one bare line feed": b"GET / HTTP/1.1\r\nHost: h\nB: c\r\n\r\n",
    "bare carriage return": b"GET / HTTP/1.1\r\nHost: h\rB: c\r\n\r\n",
    "NUL in value": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n",
    "control character in value": b"GET / HTTP/1.1\r\nHost: h\r\nA: b\x01c\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two content types": P + b"Content-Type: a/b\r\nContent-Type: a/c\r\nContent-Length: 0\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "HTTP/1.2": b"GET / HTTP/1.2\r\nHost: h\r\n\r\n",
    "HTTP/2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "unknown method": b"FOO / HTTP/1.1\r\nHost: h\r\n\r\n",
    "lower-case method": b"get / HTTP/1.1\r\nHost: h\r\n\r\n",
    "control character in target": b"GET /a\x01b HTTP/1.1\r\nHost: h\r\n\r\n",
    "non-ASCII target": b"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n",
}


@pytest.mark.parametrize("data", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
@pytest.mark.parametrize("step", [1, 10_000], ids=["bytes", "whole"])
def test_ambiguous_or_malformed_requests_get_400_and_the_connection_ends(data: bytes, step: int) -> None:
    client = Client(echo).send(*(data[i : i + step] for i in range(0, len(data), step)))
    assert client.statuses == [400]
    answer = client.responses[0]
    assert answer.headers["connection"] == "close"
    assert answer.headers["content-type"] == "application/json"
    assert json.loads(answer.body)["code"] == "bad_request"
    assert json.loads(answer.body)["error"]
    assert client.lingers
    client.send(get("/smuggled"))
    assert client.statuses == [400], "nothing behind it is read as a request"
    assert client.server.stats().bad_requests_n == 1
    assert client.server.stats().requests_n == 0


def refused(client: Client, status: int, code: str) -> None:
    assert client.statuses[-1] == status
    assert json.loads(client.responses[-1].body)["code"] == code
    assert client.responses[-1].headers["connection"] == "close"
    assert client.lingers
    assert client.server.stats().body_bytes == 0
    assert client.server.stats().inflight == 0


def test_refusals_wait_for_earlier_answers() -> None:
    client = Client().send(get("/1") + b"bad\r\n\r\n")
    assert client.sent == b""
    client.waiting[0].reply(200, b"1")
    assert client.statuses == [200, 400]
    assert client.lingers


def test_refusals_wait_behind_held_requests() -> None:
    client = Client(max_pipelined=1).send(get("/1") + get("/2") + b"bad\r\n\r\n")
    client.waiting[0].reply(200, b"1")
    client.waiting[1].reply(200, b"2")
    assert client.statuses == [200, 200, 400]
    assert client.lingers
    assert not client.transport.paused, "lingering reads"


def test_length_over_the_limit_is_refused_before_the_body_and_without_continue() -> None:
    client = Client(echo, max_body_bytes=10).send(post(b"x" * 11, "Expect: 100-continue")[:-11])
    refused(client, 413, "too_large")


def test_body_of_exactly_the_limit_is_fine() -> None:
    client = Client(echo, max_body_bytes=10).send(post(b"x" * 10), chunked(b"y" * 10))
    assert client.statuses == [200, 200]


def test_chunked_body_is_refused_as_soon_as_it_is_over_the_limit() -> None:
    client = Client(echo, max_body_bytes=10).send(chunked(b"12345", b"67890", b"1")[:-7])
    refused(client, 413, "too_large")
    big = Client(echo, max_body_bytes=10).send(chunked(b"x" * 11)[:-7])
    refused(big, 413, "too_large")


def test_input_after_a_refusal_is_dropped_up_to_a_limit() -> None:
    client = Client(echo, max_body_bytes=10).send(post(b"x" * 11))
    piece = bytes(1024 * 1024)
    for _ in range(200):
        client.send(piece)
    assert not client.transport.aborted
    for _ in range(100):
        client.send(piece)
    assert client.transport.aborted


def test_lingering_ends_when_the_client_closes() -> None:
    client = Client(echo).send(b"bad\r\n\r\n")
    assert client.connection.eof_received() is False


def test_lingering_ends_by_itself() -> None:
    client = Client(echo).send(b"bad\r\n\r\n").tick(9.5)
    assert not client.transport.aborted
    client.tick(1.0)
    assert client.transport.aborted


@pytest.mark.parametrize(
    "data",
    [
        get("/", *(f"X-{i}: 1" for i in range(20))),
        get("/", *("X: 1" for i in range(20))),
        get("/", "X: " + "y" * 200),
        get("/" + "y" * 200),
        get("/", "Y" * 200 + ": 1"),
        chunked(b"a", trailers=b"X: 1\r\n" * 20),
    ],
    ids=["count", "repeated", "value", "target", "name", "trailers"],
)
@pytest.mark.parametrize("step", [1, 1000])
def test_header_limits(data: bytes, step: int) -> None:
    client = Client(echo, max_header_bytes=150, max_header_count=10)
    refused(client.send(*(data[i : i + step] for i in range(0, len(data), step))), 431, "headers_too_large")


def test_header_without_end_is_refused_while_it_comes() -> None:
    client = Client(echo, max_header_bytes=1000).send(b"GET / HTTP/1.1\r\nHost: h\r\nX: ")
    for _ in range(20):
        client.send(b"y" * 100)
    refused(client, 431, "headers_too_large")


def test_header_size_is_counted_per_request() -> None:
    client = Client(echo, max_header_bytes=100, max_header_count=3)
    client.send(*[get("/", "A: " + "x" * 50, "B: 1")] * 10)
    assert client.statuses == [200] * 10


def test_large_body_then_small_head_in_one_segment_is_not_a_large_head() -> None:
    data = post(b"x" * 5000) + get("/next")
    client = Client(echo, max_header_bytes=100).send(data[:-5], data[-5:])
    assert client.statuses == [200, 200]


def test_chunk_extensions_are_bounded() -> None:
    client = Client(echo, max_header_bytes=1000).send(P + b"Transfer-Encoding: chunked\r\n\r\n1;")
    for _ in range(20):
        client.send(b"y" * 100)
    refused(client, 400, "bad_request")


def test_headers_do_not_count_as_chunk_extensions() -> None:
    data = chunked(b"a", headers=("X: " + "y" * 900,)).replace(b"1\r\na", b"1;" + b"e" * 300 + b"\r\na")
    client = Client(echo, max_header_bytes=1000).send(*(data[i : i + 50] for i in range(0, len(data), 50)))
    assert client.statuses == [200]


def test_unknown_expectation() -> None:
    client = Client(echo).send(post(b"abc", "Expect: 200-ok"))
    refused(client, 417, "expectation_failed")
    assert b"got '200-ok'" in client.responses[0].body


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "deflate, gzip", "zstd", "gzip;q=1"])
def test_unknown_or_chained_codings(coding: str) -> None:
    refused(Client(echo).send(post(b"abc", f"Content-Encoding: {coding}")), 415, "unsupported_encoding")


def test_coding_named_by_two_headers_is_chained() -> None:
    client = Client(echo).send(post(b"abc", "Content-Encoding: gzip", "Content-Encoding: gzip"))
    refused(client, 415, "unsupported_encoding")


def test_broken_gzip_body() -> None:
    refused(Client(echo).send(post(b"plain text", "Content-Encoding: gzip")), 400, "bad_request")


def test_error_text_from_the_client_stays_valid_json() -> None:
    client = Client(echo).send(post(b"abc", 'Content-Encoding: \xff"\x80\\'))
    assert '"' in json.loads(client.responses[0].body)["error"]


def test_slow_headers() -> None:
    client = Client(echo, header_timeout_s=2).send(b"GET / HT")
    client.tick(1.5)
    assert client.sent == b""
    refused(client.tick(1.0), 408, "slow_client")
    assert client.server.stats().timeouts_n == 1


def test_trickled_headers_do_not_extend_the_limit() -> None:
    client = Client(echo, header_timeout_s=2).send(b"GET / HTTP/1.1\r\nHost: h\r\nX: ")
    for _ in range(10):
        client.tick(0.3).send(b"y")
    refused(client, 408, "slow_client")


def test_trickled_body_does_not_extend_the_limit() -> None:
    client = Client(echo, header_timeout_s=1, body_timeout_s=2).send(post(b"x" * 100)[:-100])
    for _ in range(6):
        client.tick(0.3).send(b"x")
    assert client.sent == b""
    for _ in range(3):
        client.tick(0.3).send(b"x")
    refused(client, 408, "slow_client")


def test_time_in_which_we_did_not_read_does_not_count() -> None:
    client = Client(max_pipelined=1, body_timeout_s=2).send(get("/1") + get("/2") + post(b"abc")[:-1])
    assert client.transport.paused
    client.tick(100)
    client.waiting[0].reply(200, b"")
    client.waiting[1].reply(200, b"")
    client.tick(1.5).send(b"c")
    client.waiting[2].reply(200, b"")
    assert client.statuses == [200, 200, 200]


def test_slow_request_behind_open_ones_is_answered_in_its_turn() -> None:
    client = Client(header_timeout_s=2).send(get("/1") + b"GET /2")
    client.tick(3)
    assert client.sent == b""
    client.waiting[0].reply(200, b"")
    assert client.statuses == [200, 408]


def test_idle_connection_is_closed_silently() -> None:
    client = Client(echo, idle_timeout_s=5).tick(4.5).send(get())
    client.tick(4.5)
    assert not client.transport.closed
    client.tick(1.0)
    assert client.transport.closed
    assert client.statuses == [200]
    assert client.server.stats().timeouts_n == 0


def test_empty_lines_do_not_keep_an_idle_connection() -> None:
    client = Client(echo, idle_timeout_s=2)
    for _ in range(10):
        client.tick(0.3).send(b"\r\n")
    client.tick(3)
    assert client.transport.closed


def test_a_waiting_request_never_times_out_here() -> None:
    client = Client().send(post(b"abc"))
    client.tick(1000)
    client.waiting[0].reply(200, b"")
    assert client.statuses == [200]


def test_too_many_connections() -> None:
    first = Client(echo, max_connections=1)
    second = Client(server=first.server, clock=first.clock)
    assert second.statuses == [503]
    assert second.responses[0].headers["retry-after"] == "1"
    assert second.lingers
    second.send(get())
    assert second.statuses == [503]
    assert first.server.stats().refused_connections_n == 1
    assert first.server.stats().connections == 1
    second.tick(1.5)
    assert second.transport.aborted
    second.lose()
    assert first.send(get()).statuses == [200]
    first.lose()
    assert Client(server=first.server, clock=first.clock).sent == b""


def test_refused_connections_do_not_pile_up(caplog: pytest.LogCaptureFixture) -> None:
    first = Client(echo, max_connections=1)
    others = [Client(server=first.server, clock=first.clock) for _ in range(300)]
    assert sum(other.transport.aborted for other in others) == 300 - 256
    first.tick(1)
    assert [record.getMessage() for record in caplog.records] == ["refused 300 connections: max_connections is 1"]
