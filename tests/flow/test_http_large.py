"""Large bodies over real sockets, with and without TLS: bytes go from the kernel to where they stay."""

import asyncio
import random
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from http_serving import echo, read_answer, reset, serving, wait_until

from hybrid.config import TlsFiles

SIZES = (0, 1000, 64 * 1024, 70_000, 300_000, 600_000, 3_000_000)


@pytest.fixture(params=["plain", "tls"])
def secured(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[TlsFiles | None, ssl.SSLContext | None]:
    if request.param == "plain":
        return None, None
    authority = trustme.CA()
    file = tmp_path / "both.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(file)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return TlsFiles(certificate=str(file), key=str(file)), context


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def converse(port: int, context: ssl.SSLContext | None, number: int) -> None:
    """Send requests of several sizes in a row, cut anywhere, and check that each is answered by its own bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    generator = random.Random(number)
    for turn in range(6):
        bodies = [generator.randbytes(generator.choice(SIZES)) for _ in range(3)]
        paths = [f"/{number}/{turn}/{index}" for index in range(3)]
        stream = b"".join(map(post, paths, bodies))
        at = generator.randrange(len(stream))
        writer.write(stream[:at])
        await asyncio.sleep(0.001)
        writer.write(stream[at:])
        for path, body in zip(paths, bodies, strict=True):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            expected = path.encode() + b" " + body
            assert await reader.readexactly(len(expected)) == expected
    writer.close()
    await writer.wait_closed()


@pytest.mark.slow
async def test_bodies_of_many_sizes_on_many_connections(
    secured: tuple[TlsFiles | None, ssl.SSLContext | None],
) -> None:
    files, context = secured
    with serving(echo, start=False) as service:
        service.start(tls=files)
        await asyncio.gather(*[converse(service.port, context, number) for number in range(6)])
        assert service.server.stats().body_bytes == 0
        assert service.server.stats().bad_requests_n == 0
        assert service.server.stats().requests_n == 6 * 6 * 3


def test_a_client_that_closes_its_sending_half_behind_a_large_body() -> None:
    body = random.Random(1).randbytes(500_000)
    with serving(echo) as service, service.connect() as sock:
        sock.sendall(post("/half", body))
        sock.shutdown(socket.SHUT_WR)
        assert read_answer(sock)[2] == b"/half " + body


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
def test_clients_that_leave_in_the_middle_leave_nothing(leave: Callable[[socket.socket], None]) -> None:
    with serving() as service:
        socks = [service.connect() for _ in range(5)]
        for sock in socks:
            sock.sendall(post("/", bytes(500_000))[:200_000])
        wait_until(lambda: service.server.stats().body_bytes > 5 * 199_000)
        for sock in socks:
            leave(sock)
        wait_until(lambda: service.server.stats().connections == 0)
        stats = service.server.stats()
        assert (stats.body_bytes, stats.disconnects_n, stats.requests_n) == (0, 5, 0)


def test_a_large_body_that_stops_coming_is_refused_in_time() -> None:
    with serving(body_timeout_s=0.3) as service, service.connect() as sock:
        sock.sendall(post("/", bytes(500_000))[:200_000])
        assert read_answer(sock)[0] == 408
