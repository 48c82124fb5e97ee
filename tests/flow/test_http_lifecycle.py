import http.client
import logging
import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from http_serving import Serving, echo, read_all, read_answer, serving, wait_until

from hybrid.config import HttpLimits, TlsFiles
from hybrid.errors import StartupError
from hybrid.frontend.http import HttpServer
from hybrid.frontend.listen import affordable_connections

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"


def start_error(host: str = "127.0.0.1", port: int = 0, tls: TlsFiles | None = None) -> str:
    with serving(echo, start=False) as service:
        with pytest.raises(StartupError) as caught:
            service.start(host, port, tls)
        message = str(caught.value)
        assert "\n" not in message
        return message


def test_a_second_server_on_the_port_fails_and_names_it() -> None:
    with serving(echo) as service:
        assert start_error(port=service.port) == f"port {service.port} on 127.0.0.1 is already in use"
        with service.connect() as sock:
            sock.sendall(GET)
            assert read_answer(sock)[0] == 200


def test_bad_hosts() -> None:
    assert "cannot be resolved" in start_error("no-such-host.invalid")
    assert "not an address of this machine" in start_error("192.0.2.1")
    assert "empty" in start_error("")
    assert "cannot be resolved" in start_error("a..b")


def test_no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", bind)
    assert start_error(port=80) == "port 80 on 127.0.0.1: no permission to listen there"


def test_port_zero_gives_distinct_ports() -> None:
    services = [Serving(echo, HttpLimits()) for _ in range(10)]
    try:
        assert len({service.start() for service in services}) == 10
    finally:
        for service in services:
            service.stop()


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost", "::", "0.0.0.0", "127.0.0.1"])
def test_addresses(host: str) -> None:
    if ":" in host and not _has_ipv6():
        pytest.skip("no IPv6 here")
    with serving(echo, start=False) as service:
        service.start(host)
        reachable = set()
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            with socket.socket(family) as sock:
                sock.settimeout(5)
                try:
                    sock.connect((address, service.port))
                except OSError:
                    continue
                sock.sendall(GET)
                assert read_answer(sock)[0] == 200
                reachable.add(address)
    names = {"::1", "127.0.0.1"} if _has_ipv6() else {"127.0.0.1"}
    expected = {"::": names, "localhost": {"127.0.0.1"}, "0.0.0.0": {"127.0.0.1"}}
    wanted = expected.get(host, {host.strip("[]")})
    assert reachable >= wanted if host == "localhost" else reachable == wanted


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> TlsFiles:
    server = authority.issue_cert("localhost", "127.0.0.1")
    server.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    server.private_key_pem.write_to_path(tmp_path / "key.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    return TlsFiles(certificate=str(tmp_path / "cert.pem"), key=str(tmp_path / "key.pem"))


def client_context(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.slow
def test_tls(authority: trustme.CA, files: TlsFiles) -> None:
    with serving(echo, start=False, max_body_bytes=3_000_000) as service:
        service.start(tls=files)
        context = client_context(authority)
        connection = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=10, context=context)
        for size in (0, 10, 2_000_000):
            connection.request("POST", "/", bytes(size))
            assert len(connection.getresponse().read()) == size + 2
        connection.request("POST", "/", bytes(4_000_000))
        assert connection.getresponse().status == 413
        connection.close()
        old = client_context(authority)
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        connection = http.client.HTTPSConnection("127.0.0.1", service.port, timeout=10, context=old)
        connection.request("GET", "/", headers={"Connection": "close"})
        assert connection.getresponse().status == 200
        connection.close()
        with service.connect() as plain:
            plain.sendall(GET)
            assert b"HTTP" not in read_all(plain)


@pytest.mark.slow
def test_tls_disconnect_is_noticed(authority: trustme.CA, files: TlsFiles) -> None:
    with serving(start=False) as service:
        service.start(tls=files)
        sock = client_context(authority).wrap_socket(service.connect(), server_hostname="127.0.0.1")
        sock.sendall(GET)
        service.wait_waiting(1)
        sock.close()
        assert wait_until(lambda: service.waiting[0].disconnected) < 0.5


@pytest.mark.slow
def test_client_certificates(authority: trustme.CA, files: TlsFiles, tmp_path: Path) -> None:
    with serving(echo, start=False) as service:
        service.start(tls=TlsFiles(certificate=files.certificate, key=files.key, client_ca=str(tmp_path / "ca.pem")))
        context = client_context(authority)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            _get_over_tls(service.port, context)
        authority.issue_cert("client@example.org").configure_cert(context)
        assert _get_over_tls(service.port, context) == 200


def _get_over_tls(port: int, context: ssl.SSLContext) -> int:
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=context)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status
    finally:
        connection.close()


def test_tls_start_errors(files: TlsFiles, tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.pem")
    broken = tmp_path / "broken.pem"
    broken.write_text("not a certificate")
    cases = [
        (TlsFiles(certificate=missing, key=files.key), f"tls.certificate: cannot read {missing}"),
        (TlsFiles(certificate=files.certificate, key=missing), f"tls.key: cannot read {missing}"),
        (TlsFiles(certificate=files.certificate, key=files.key, client_ca=missing), "tls.client_ca: cannot read"),
        (TlsFiles(certificate=str(broken), key=files.key), "not a PEM pair"),
        (TlsFiles(certificate=files.certificate, key=files.certificate), "not a PEM pair"),
        (TlsFiles(certificate=files.certificate, key=files.key, client_ca=str(broken)), "not a PEM file"),
    ]
    for tls, expected in cases:
        assert expected in start_error(tls=tls)


def test_encrypted_key_is_refused_without_asking(files: TlsFiles, tmp_path: Path) -> None:
    encrypted = tmp_path / "encrypted.pem"
    key = serialization.load_pem_private_key(Path(files.key).read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    pem = serialization.Encoding.PEM
    encrypted.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, encryption))
    assert "not a PEM pair" in start_error(tls=TlsFiles(certificate=files.certificate, key=str(encrypted)))


def test_stop_accepting_leaves_connections() -> None:
    with serving(echo) as service, service.connect() as sock:
        sock.sendall(GET)
        read_answer(sock)
        service.call(service.server.stop_accepting)
        with pytest.raises(ConnectionRefusedError):
            wait_until(lambda: bool(service.connect().close()), 1)
        sock.sendall(GET)
        assert read_answer(sock)[0] == 200


def test_draining_closes_idle_connections_and_serves_the_rest() -> None:
    with serving() as service, service.connect() as idle, service.connect() as used:
        used.sendall(GET)
        service.wait_waiting(1)
        started = time.monotonic()
        service.call(service.server.begin_drain)
        assert idle.recv(1) == b""
        assert time.monotonic() - started < 0.8  # it has only just connected, so it is given a moment to send
        service.answer(0)
        status, head, _ = read_answer(used)
        assert (status, b"\r\nConnection: close" in head) == (200, True)
        assert used.recv(1) == b""


def test_a_request_in_the_kernels_buffer_at_drain_is_answered() -> None:
    with serving(echo) as service:
        socks = [service.connect() for _ in range(50)]
        wait_until(lambda: service.server.stats().connections == 50)

        def drain() -> None:
            for sock in socks:
                sock.sendall(GET)
            service.server.begin_drain()

        service.call(drain)
        for sock in socks:
            assert read_answer(sock)[0] == 200
            assert sock.recv(1) == b""
            sock.close()


def test_close_waits_for_open_requests() -> None:
    with serving() as service, service.connect() as sock, service.connect() as partial:
        sock.sendall(GET)
        partial.sendall(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\na")
        service.wait_waiting(1)
        service.loop.call_soon_threadsafe(service.loop.call_later, 0.05, lambda: service.waiting[0].reply(200, b"late"))
        threading.Timer(0.1, lambda: partial.sendall(b"bc")).start()

        def answer_second() -> None:
            wait_until(lambda: len(service.waiting) == 2)
            service.answer(1, b"second")

        threading.Thread(target=answer_second).start()
        assert service.run(service.server.close(5)) == 0
        assert read_answer(sock)[2] == b"late"
        assert read_answer(partial)[2] == b"second"


def test_close_drops_what_is_not_answered_in_time() -> None:
    with serving() as service, service.connect() as sock:
        sock.sendall(GET * 3)
        service.wait_waiting(3)
        service.answer(0)
        told: list[int] = []
        for exchange in service.waiting:
            exchange.on_disconnect = lambda: told.append(1)
        assert service.run(service.server.close(0.1)) == 2
        assert told == [1, 1]
        assert service.server.stats().connections == 0


def test_close_ends_streams_properly() -> None:
    with serving() as service, service.connect() as sock:
        sock.sendall(GET)
        service.wait_waiting(1)
        closed: list[int] = []

        def start() -> None:
            stream = service.waiting[0].start_stream(b"text/event-stream")
            stream.on_close = lambda: closed.append(1)
            stream.write(b"data: 1\n\n")

        service.call(start)
        assert service.run(service.server.close(5)) == 0
        assert closed == [1]
        assert read_all(sock).endswith(b"data: 1\n\n\r\n0\r\n\r\n")


@pytest.mark.slow
def test_every_sent_answer_arrives_also_when_the_server_closes() -> None:
    with serving(lambda e: e.reply(200, bytes(5_000_000))) as service, service.connect() as sock:
        sock.sendall(GET)
        assert sock.recv(1) == b"H"
        closing = threading.Thread(target=lambda: service.run(service.server.close(5)))
        closing.start()
        wait_until(lambda: service.server._shared.draining)
        assert len(read_all(sock)) > 5_000_000
        closing.join()


def test_connections_fit_under_the_limit_of_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert affordable_connections(10) == 10
    if hard != resource.RLIM_INFINITY:
        assert affordable_connections(hard * 2) < hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


OUT_OF_FILES = """
import asyncio, os, resource, socket, uvloop
from hybrid.config import HttpLimits
from hybrid.frontend.http import HttpServer

async def main():
    server = HttpServer(lambda e: e.reply(200, b"ok"), HttpLimits())
    port = await server.start("127.0.0.1", 0)
    used = len(os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 10, used + 10))
    print(port, flush=True)
    await asyncio.sleep(60)

uvloop.run(main())
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_running_out_of_files_does_not_end_the_server() -> None:
    process = subprocess.Popen([sys.executable, "-c", OUT_OF_FILES], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        socks = [socket.create_connection(("127.0.0.1", port), 10) for _ in range(60)]
        served = sum(_works(sock) for sock in socks)
        assert 0 < served < 60
        for sock in socks:
            sock.close()

        def again() -> bool:
            with socket.create_connection(("127.0.0.1", port), 10) as sock:
                return _works(sock)

        wait_until(again)
    finally:
        process.kill()
        process.communicate()


def _works(sock: socket.socket) -> bool:
    sock.settimeout(5)
    try:
        sock.sendall(GET)
        return read_answer(sock)[0] == 200
    except (OSError, AssertionError):
        return False


@pytest.mark.slow
def test_a_listener_that_the_event_loop_gave_up_is_opened_again(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    with serving(echo) as service:
        listener = service.server._listeners[0]
        assert listener._server is not None
        service.call(listener._server.close)  # what uvloop does on an accept error
        wait_until(lambda: "opened it again" in caplog.text)
        with service.connect() as sock:
            sock.sendall(GET)
            assert read_answer(sock)[0] == 200


async def test_the_standard_event_loop_serves_as_well() -> None:
    import asyncio

    server = HttpServer(echo, HttpLimits())
    port = await server.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(GET * 3)
    data = await reader.readuntil(b"/a ")
    writer.write_eof()
    data += await reader.read()
    assert data.count(b"HTTP/1.1 200 OK") == 3
    writer.close()
    await writer.wait_closed()
    assert await server.close(1.0) == 0
