"""Who may ask, and until when: keys and deadlines, the same for every protocol."""

import hmac
import ipaddress
from collections.abc import Mapping

from hybrid.config import ServerSettings
from hybrid.errors import BadRequest, Unauthorized

INFINITY = float("inf")
#: Headers of requests that somebody passed on, or that a web page made.
_FOREIGN = (b"forwarded", b"x-forwarded-for", b"x-real-ip", b"via", b"origin", b"sec-fetch-site")


class Admission:
    """Checks keys and turns what a client says about time into a deadline."""

    def __init__(self, settings: ServerSettings) -> None:
        self._keys = tuple(key.encode() for key in settings.api_keys)
        self._admin_token = None if settings.admin_token is None else settings.admin_token.encode()
        self._default_s = settings.default_timeout_s or INFINITY
        self._max_s = settings.max_timeout_s

    @property
    def open(self) -> bool:
        """Whether no key is asked for."""
        return not self._keys

    def authorise(self, headers: Mapping[bytes, bytes]) -> None:
        """Check `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        Raises:
            Unauthorized: keys are configured and the request has none of them.
        """
        if not self._keys:
            return
        given = headers.get(b"x-api-key") or _bearer(headers.get(b"authorization", b""))
        # Every key is compared, in constant time, so that timing tells nothing about them.
        if not any([hmac.compare_digest(given, key) for key in self._keys]):
            raise Unauthorized("a valid API key is needed: send it as `Authorization: Bearer KEY` or `X-API-Key: KEY`")

    def authorise_admin(self, headers: Mapping[bytes, bytes], peer: str) -> None:
        """Check whether a client may change what is served; `peer` is its address, with or without a port.

        With an admin token: `Authorization: Bearer TOKEN` or `X-Admin-Token: TOKEN`, and no API key beside it. Without
        one only this machine may, with an API key if there are any; not through a proxy, behind which anybody may
        stand, and not from a web page, which a browser lets speak to the machine that it runs on.

        Raises:
            Unauthorized: it may not.
        """
        if self._admin_token is not None:
            given = headers.get(b"x-admin-token") or _bearer(headers.get(b"authorization", b""))
            if not hmac.compare_digest(given, self._admin_token):
                raise Unauthorized("the admin token is needed: `Authorization: Bearer TOKEN` or `X-Admin-Token: TOKEN`")
            return
        foreign = next((name for name in _FOREIGN if name in headers), None)
        if foreign is not None or not _is_loopback(peer):
            why = (
                f"the request has a header {foreign.decode()}" if foreign is not None else f"this one comes from {peer}"
            )
            raise Unauthorized(f"without server.admin_token only direct clients on this machine may do that; {why}")
        self.authorise(headers)

    def deadline(self, received_at: float, timeout_s: float | None, headers: Mapping[bytes, bytes]) -> float:
        """Return the monotonic deadline: the earliest of request parameter, header, and the server's limits.

        A client that names no time gets the server's default; `X-Request-Timeout-Ms: 0` is the same as not sent.

        Raises:
            BadRequest: the header is no number of milliseconds.
        """
        header = headers.get(b"x-request-timeout-ms")
        if header is not None:
            header_s = _milliseconds(header)
            if header_s:
                timeout_s = min(timeout_s or header_s, header_s)
        return received_at + min(timeout_s or self._default_s, self._max_s)


def _bearer(value: bytes) -> bytes:
    scheme, _, key = value.partition(b" ")
    return key.strip() if scheme.lower() == b"bearer" else b""


def _is_loopback(peer: str) -> bool:
    host = peer[1:].partition("]")[0] if peer.startswith("[") else peer.rpartition(":")[0] if "." in peer else peer
    try:
        address = ipaddress.ip_address((host or peer).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _milliseconds(value: bytes) -> float:
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0.0 <= milliseconds < 1e12:
        shown = value.decode("latin-1")[:40]
        raise BadRequest(f"header X-Request-Timeout-Ms: expected milliseconds as a number from 0, got {shown!r}")
    return milliseconds / 1000.0
