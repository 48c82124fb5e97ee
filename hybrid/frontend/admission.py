"""Who may ask, and until when: keys and deadlines, the same for every protocol."""

import hmac
from collections.abc import Mapping

from hybrid.config import ServerSettings
from hybrid.errors import BadRequest, Unauthorized

INFINITY = float("inf")


class Admission:
    """Checks keys and turns what a client says about time into a deadline."""

    def __init__(self, settings: ServerSettings) -> None:
        self._keys = tuple(key.encode() for key in settings.api_keys)
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


def _milliseconds(value: bytes) -> float:
    try:
        milliseconds = float(value)
    except ValueError:
        milliseconds = -1.0
    if not 0.0 <= milliseconds < 1e12:
        shown = value.decode("latin-1")[:40]
        raise BadRequest(f"header X-Request-Timeout-Ms: expected milliseconds as a number from 0, got {shown!r}")
    return milliseconds / 1000.0
