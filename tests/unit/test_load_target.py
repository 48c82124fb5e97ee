"""The server that is measured, where what answers is none."""

import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hybrid.client import Client
from hybrid.errors import ConfigError, ServerUnreachable, StartupError
from hybrid.load.target import Refused, Target

#: How a gRPC port greets whoever comes with HTTP/1.1.
HTTP2 = b"\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x05\x00\x00\x40\x00\x00\x00\x08\x07\x00\x00\x00"


@contextmanager
def answering(data: bytes) -> Iterator[str]:
    """A port that answers everything with the same bytes and closes."""

    def run() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(5)


@pytest.mark.parametrize("key", ["k3y\r", "k\u00e9y", "\u043a\u043b\u044e\u0447"])
def test_a_key_that_no_header_may_have_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(ConfigError, match="expected printable ASCII") as refused:
        Target("http://127.0.0.1:1", api_key=key)
    assert key not in str(refused.value)


def test_a_redirect_is_not_followed() -> None:
    """Elsewhere somebody would be told the key."""
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as elsewhere:
        head = f"HTTP/1.1 302 Found\r\nLocation: {elsewhere}/v2\r\nContent-Length: 0\r\n\r\n"
        with answering(head.encode()) as url, pytest.raises(Refused) as refused:
            Target(url, api_key="k3y").call("/v2")
        assert refused.value.answer_status == 302
        urllib.request.urlopen(elsewhere, timeout=5).close()  # nobody has taken its one answer


def ask_to_measure(url: str) -> None:
    Target(url).call("/v2")


def ask_as_a_client(url: str) -> None:
    with Client(url) as client:
        client.snapshot()


@pytest.mark.parametrize(
    ("ask", "error"), [(ask_to_measure, StartupError), (ask_as_a_client, ServerUnreachable)], ids=["target", "client"]
)
def test_a_port_that_speaks_another_protocol_is_told_apart(ask: Callable[[str], None], error: type[Exception]) -> None:
    with answering(HTTP2) as url, pytest.raises(error, match=r"does not speak HTTP/1\.1") as found:
        ask(url)
    assert str(found.value).isprintable()


def test_an_answer_that_is_cut_short_is_no_answer() -> None:
    with answering(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]") as url, pytest.raises(StartupError, match=url):
        ask_to_measure(url)


def test_a_server_that_is_not_there_is_said_in_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StartupError, match="is `hybrid serve` running"):
        ask_to_measure(f"http://127.0.0.1:{port}")
