"""What a run of load is asked to do, and the bytes that go out for it."""

import ssl
from typing import Annotated
from urllib.parse import urlsplit

from msgspec import Meta, Struct

from hybrid.errors import ConfigError
from hybrid.load.arrivals import Arrivals
from hybrid.load.payloads import Payload

Seconds = Annotated[float, Meta(gt=0, le=86_400)]


class LoadSpec(Struct, frozen=True, kw_only=True):
    """What to send, where and for how long: `warmup_s` that do not count, then a window of `seconds`.

    After the window, at most `drain_s` are waited for answers. `max_connections` bounds the connections and
    `max_requests` all requests of one generator. `lag_limit_s` is the lag p99 above which the run is void. A generator
    with a `late_limit` ends its run at so many requests that were not answered within `slo_s`: more would change no
    verdict, and an overloaded server would keep its queue for the next run.
    """

    url: str
    payloads: Annotated[tuple[Payload, ...], Meta(min_length=1)]
    arrivals: Arrivals
    seconds: Seconds
    warmup_s: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    timeout_s: Seconds = 30.0
    drain_s: Annotated[float, Meta(ge=0, le=86_400)] = 30.0
    slo_s: Seconds | None = None
    lag_limit_s: Seconds = 0.002
    late_limit: Annotated[int, Meta(ge=1)] | None = None
    max_connections: Annotated[int, Meta(ge=1, le=16_384)] = 1024
    max_requests: Annotated[int, Meta(ge=1)] = 10_000_000


class Address:
    """Where requests go.

    Raises:
        ConfigError: the URL is none of HTTP.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ConfigError(f"url `{url}`: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"url `{url}`: expected http://HOST[:PORT]/PATH or https://...")
        secure = parts.scheme == "https"
        self.host = parts.hostname
        self.port = port or (443 if secure else 80)
        self.tls = ssl.create_default_context() if secure else None
        self.tls_name = parts.hostname if secure else None
        self._authority = parts.netloc.rpartition("@")[2]
        self.name = f"{parts.scheme}://{self._authority}"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def request(self, payload: Payload) -> bytes:
        """Return a whole HTTP/1.1 request for a payload."""
        lines = [f"POST {self._path} HTTP/1.1", f"Host: {self._authority}", f"Content-Length: {len(payload.body)}"]
        lines += [f"{name}: {value}" for name, value in payload.headers]
        return "\r\n".join([*lines, "", ""]).encode() + payload.body
