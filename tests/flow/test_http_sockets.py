import http.client
import socket
import threading
import time

import pytest
from http_serving import echo, read_all, read_answer, reset, serving, wait_until

from hybrid.frontend.http import Exchange, StreamWriter

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"


def test_many_requests_on_one_connection() -> None:
    with serving(echo) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        for i in range(200):
            connection.request("POST", f"/{i}", b"x" * i * 100)
            assert connection.getresponse().read() == b"/%d " % i + b"x" * i * 100
        connection.request("POST", "/c", iter([b"a", b"b" * 1000]), encode_chunked=True)
        assert connection.getresponse().read() == b"/c a" + b"b" * 1000
        connection.request("HEAD", "/head")
        answer = connection.getresponse()
        assert (answer.status, answer.read(), answer.getheader("content-length")) == (200, b"", "6")
        connection.close()
        assert service.server.stats().requests_n == 202


@pytest.mark.slow
def test_big_bodies_both_ways() -> None:
    body = bytes(range(256)) * 80_000
    with serving(echo) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=30)
        connection.request("POST", "/", body)
        assert connection.getresponse().read() == b"/ " + body
        connection.close()
        wait_until(lambda: service.server.stats().body_bytes == 0)


def test_pipelined_answers_leave_in_request_order() -> None:
    with serving() as service, service.connect() as sock:
        sock.sendall(GET * 3)
        service.wait_waiting(3)
        for index in (2, 0, 1):
            service.answer(index, b"%d" % index)
        data = b""
        while data.count(b"HTTP/1.1 200") < 3 or not data.endswith(b"2"):
            data += sock.recv(65536)
        assert [part[-1:] for part in data.split(b"HTTP/1.1")[1:]] == [b"0", b"1", b"2"]


@pytest.mark.parametrize("close", [socket.socket.close, reset], ids=["FIN", "RST"])
def test_a_waiting_client_that_closes_is_noticed_soon(close: object) -> None:
    with serving() as service:
        left: list[float] = []
        sock = service.connect()
        sock.sendall(GET)
        service.wait_waiting(1)
        service.waiting[0].on_disconnect = lambda: left.append(time.monotonic())
        close(sock)  # type: ignore[operator]
        assert wait_until(lambda: bool(left)) < 0.09
        assert service.waiting[0].disconnected
        service.answer(0)
        stats = service.server.stats()
        assert (stats.inflight, stats.disconnects_n, stats.connections) == (0, 1, 0)


def test_a_wave_of_clients_that_leave_does_not_disturb_the_others() -> None:
    with serving() as service:
        socks = [service.connect() for _ in range(100)]
        for sock in socks:
            sock.sendall(GET)
        service.wait_waiting(100)
        for sock in socks[:80]:
            sock.close()
        wait_until(lambda: service.server.stats().disconnects_n == 80)
        service.call(lambda: [exchange.reply(200, b"ok") for exchange in service.waiting])
        for sock in socks[80:]:
            assert read_answer(sock)[2] == b"ok"
            sock.close()


def test_healthy_clients_are_never_taken_for_gone() -> None:
    gone: list[int] = []

    def handler(exchange: Exchange) -> None:
        exchange.on_disconnect = lambda: gone.append(1)
        loop.call_later(0.0005, exchange.reply, 200, b"")

    with serving(handler) as service:
        loop = service.loop
        socks = [service.connect() for _ in range(20)]
        for _ in range(10):
            for sock in socks:
                sock.sendall(GET)
            for sock in socks:
                assert read_answer(sock)[0] == 200
        for sock in socks:
            sock.close()
        assert not gone
        assert service.server.stats().disconnects_n == 0


def test_half_closed_client_with_a_quick_answer_sees_nothing_else() -> None:
    with serving(echo) as service, service.connect() as sock:
        sock.sendall(GET)
        sock.shutdown(socket.SHUT_WR)
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")
        wait_until(lambda: service.server.stats().connections == 0)


@pytest.mark.slow
def test_half_closed_client_with_a_late_answer_still_gets_it() -> None:
    with serving() as service, service.connect() as sock:
        sock.sendall(GET * 2)
        service.wait_waiting(2)
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.3)
        service.answer(0, b"one")
        service.answer(1, b"two")
        data = read_all(sock)
        assert data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")
        assert data.count(b"100 Continue") == 1
        assert data.endswith(b"two")
        assert service.server.stats().disconnects_n == 0


@pytest.mark.slow
def test_half_closed_http10_client_is_never_probed() -> None:
    with serving() as service, service.connect() as sock:
        sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
        service.wait_waiting(1)
        sock.shutdown(socket.SHUT_WR)
        time.sleep(0.2)
        service.answer(0)
        assert read_all(sock).startswith(b"HTTP/1.1 200 OK")


def test_client_that_vanishes_within_a_body() -> None:
    with serving() as service:
        sock = service.connect()
        sock.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc")
        wait_until(lambda: service.server.stats().body_bytes == 3)
        sock.close()
        wait_until(lambda: service.server.stats().connections == 0)
        assert not service.waiting
        assert service.server.stats().body_bytes == 0


def test_client_that_sends_its_whole_body_can_still_read_the_refusal() -> None:
    with serving(echo, max_body_bytes=1000) as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        connection.request("POST", "/", bytes(20_000_000))
        answer = connection.getresponse()
        assert answer.status == 413
        assert b"at most 1000 bytes" in answer.read()
        connection.close()


def test_expect_continue_over_a_socket() -> None:
    with serving(echo, max_body_bytes=1000) as service:
        with service.connect() as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
            assert read_answer(sock)[0] == 100
            sock.sendall(b"abc")
            assert read_answer(sock)[2] == b"/ abc"
        with service.connect() as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\nExpect: 100-continue\r\n\r\n")
            assert read_answer(sock)[0] == 413
            assert sock.recv(1) == b""


@pytest.mark.slow
def test_tricklers_are_closed_and_others_are_served_meanwhile() -> None:
    with serving(echo, header_timeout_s=0.6, body_timeout_s=0.6) as service:
        slow = [service.connect() for _ in range(50)]
        for i, sock in enumerate(slow):
            sock.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n" + (b"\r\n" if i % 2 else b"X: "))
        done = threading.Event()

        def trickle() -> None:
            while not done.wait(0.05):
                for sock in slow:
                    try:
                        sock.send(b"x")
                    except OSError:
                        pass

        thread = threading.Thread(target=trickle)
        thread.start()
        started = time.monotonic()
        with service.connect() as sock:
            while service.server.stats().timeouts_n < 50:
                assert time.monotonic() - started < 5
                sock.sendall(GET)
                assert read_answer(sock)[0] == 200
        done.set()
        thread.join()
        for sock in slow:
            assert read_all(sock).startswith(b"HTTP/1.1 408 ")
            sock.close()


@pytest.mark.slow
def test_client_that_never_reads_is_dropped_and_not_read_meanwhile() -> None:
    with serving(lambda e: e.reply(200, bytes(1_000_000)), write_timeout_s=0.5) as service, service.connect() as sock:
        sock.sendall(GET * 1000)
        wait_until(lambda: service.server.stats().timeouts_n == 1)
        wait_until(lambda: service.server.stats().connections == 0)
        assert service.server.stats().requests_n < 50


@pytest.mark.slow
def test_idle_connections_are_closed_silently() -> None:
    with serving(echo, idle_timeout_s=0.3) as service, service.connect() as sock:
        assert sock.recv(10) == b""


def test_too_many_connections_are_told_so() -> None:
    with serving(echo, max_connections=2) as service:
        first, second = service.connect(), service.connect()
        for sock in (first, second):
            sock.sendall(GET)
            assert read_answer(sock)[0] == 200
        for _ in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
            connection.request("POST", "/", b"x" * 1000)
            answer = connection.getresponse()
            assert (answer.status, answer.getheader("retry-after")) == (503, "1")
            answer.read()
            connection.close()
        first.close()
        wait_until(lambda: service.server.stats().connections == 1)
        with service.connect() as third:
            third.sendall(GET)
            assert read_answer(third)[0] == 200
        second.close()


def test_events_are_streamed() -> None:
    with serving() as service:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
        connection.request("GET", "/events")
        service.wait_waiting(1)
        stream: StreamWriter = service.call(lambda: service.waiting[0].start_stream(b"text/event-stream"))
        answer = connection.getresponse()
        for i in range(3):
            service.call(lambda i=i: stream.write(b"data: %d\n\n" % i))
            assert answer.readline() == b"data: %d\n" % i
            assert answer.readline() == b"\n"
        gone: list[int] = []
        stream.on_close = lambda: gone.append(1)
        connection.sock.close() if connection.sock else None
        answer.close()
        connection.close()
        wait_until(lambda: not service.call(lambda: stream.write(b"data: x\n\n")) and bool(gone))
        assert stream.closed
