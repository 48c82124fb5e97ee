"""Who may load and unload models."""

import pytest

from hybrid.config import ServerSettings
from hybrid.errors import Unauthorized
from hybrid.frontend.admission import Admission

LOCAL = "127.0.0.1:50000"


def may(headers: dict[bytes, bytes], peer: str, **settings: object) -> bool:
    try:
        Admission(ServerSettings(**settings)).authorise_admin(headers, peer)
    except Unauthorized:
        return False
    return True


@pytest.mark.parametrize("peer", [LOCAL, "127.9.9.9:1", "[::1]:50000", "[::ffff:127.0.0.1]:50000", "127.0.0.1", "::1"])
def test_without_a_token_this_machine_may(peer: str) -> None:
    assert may({}, peer)


@pytest.mark.parametrize(
    "peer",
    [
        "10.0.0.1:50000",
        "[::ffff:10.0.0.1]:50000",
        "[fe80::1%eth0]:50000",
        "128.0.0.1:1",
        "unknown:0",
        "",
        "127.0.0.1.evil.example:1",
        "localhost:1",
        "[::2]:127",
    ],
)
def test_without_a_token_nobody_else_may(peer: str) -> None:
    assert not may({}, peer)


@pytest.mark.parametrize(
    "header", [b"x-forwarded-for", b"forwarded", b"via", b"x-real-ip", b"origin", b"sec-fetch-site"]
)
def test_what_was_passed_on_or_comes_from_a_web_page_does_not_count_as_this_machine(header: bytes) -> None:
    assert not may({header: b"anything"}, LOCAL)
    with pytest.raises(Unauthorized, match=f"has a header {header.decode()}"):
        Admission(ServerSettings()).authorise_admin({header: b"x"}, LOCAL)


def test_without_a_token_api_keys_count_too() -> None:
    assert not may({}, LOCAL, api_keys=("key",))
    assert may({b"x-api-key": b"key"}, LOCAL, api_keys=("key",))
    assert not may({b"x-api-key": b"key"}, "10.0.0.1:1", api_keys=("key",))


def test_with_a_token_it_alone_counts_from_anywhere() -> None:
    settings = {"admin_token": "secret", "api_keys": ("key",)}
    assert may({b"x-admin-token": b"secret"}, "10.0.0.1:1", **settings)
    assert may({b"authorization": b"Bearer secret"}, "10.0.0.1:1", **settings)
    assert may({b"x-admin-token": b"secret", b"x-forwarded-for": b"1.2.3.4"}, "10.0.0.1:1", **settings)
    assert not may({}, LOCAL, **settings)
    assert not may({b"x-api-key": b"key"}, LOCAL, **settings)
    assert not may({b"x-api-key": b"secret"}, LOCAL, **settings)
    assert not may({b"x-admin-token": b"secret "}, LOCAL, **settings)
    assert not may({b"x-admin-token": "sécret".encode()}, LOCAL, **settings)
