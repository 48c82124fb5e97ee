"""The gRPC server: listens, turns calls into bytes and back, drains and closes. The only file that imports grpcio.

Own HTTP/2 was rejected: flow control, deadlines and cancellation of grpcio are what clients were tested against. Its
price is a task or two per call and a thread that waits for the library's events, which is idle while there are none.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import unquote

import grpc
import grpc.aio

from hybrid.config import HttpLimits, TlsFiles
from hybrid.errors import HybridError, NotReady, StartupError
from hybrid.frontend.grpc_service import Call, Method, Result, Service
from hybrid.frontend.listen import grpc_addresses

log = logging.getLogger(__name__)

SERVICE: Final = "inference.GRPCInferenceService"
_BIND_ATTEMPTS: Final = 16
#: Status texts travel in a trailer, where a byte that is not ASCII takes three. Clients refuse trailers over 8 KiB.
_TEXT_BYTES: Final = 2000
#: A connection whose client does not answer a ping for so long is closed: its machine or network is gone.
_PING_S: Final = 60
_PING_TIMEOUT_S: Final = 20


class Bodies(Protocol):
    """The account of all bytes that front ends hold; see `HttpServer`."""

    def hold(self, nbytes: int) -> None:
        """Count a message, or raise NotReady."""

    def let_go(self, nbytes: int) -> None:
        """It is done with."""


class GrpcServer:
    """Serves the methods of `service`. The limits of HTTP hold: body bytes per message, connections as open calls.

    Messages of open calls count in `bodies`, as the library has no bound for all of them together.
    """

    def __init__(self, service: Service, limits: HttpLimits, bodies: Bodies) -> None:
        self.inflight = 0
        self.service = service
        self._limits = limits
        self._bodies = bodies
        self._server: grpc.aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, tls: TlsFiles | None = None) -> int:
        """Listen on every address of `host` and return the real port; 0 takes a free one.

        The port is tried first with sockets of ours, which are closed again. Between the two another process may take
        it, which is an error as well.

        Raises:
            StartupError: With one line that says what is wrong with host or port.
        """
        credentials = None if tls is None else _credentials(tls)
        for _ in range(1 if port else _BIND_ATTEMPTS):
            names = await grpc_addresses(host, port)
            server = self._make()
            try:
                for name in names:
                    _listen(server, f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}", credentials)
            except RuntimeError:
                continue
            self._server = server  # before it starts: who is cancelled meanwhile closes it
            await server.start()
            return int(names[0][1])
        raise StartupError(f"gRPC: cannot listen on {host} port {port}: another process was faster")

    def begin_drain(self, timeout_s: float) -> None:
        """Take no new calls and tell clients to go elsewhere; open calls go on, but not for longer than the time."""
        if self._server is not None and self._stopping is None:
            self.service.draining = True
            self._stopping = asyncio.ensure_future(self._server.stop(timeout_s))

    async def close(self, timeout_s: float) -> None:
        """End. Calls that are still open after the time get UNAVAILABLE or CANCELLED from the library."""
        if self._server is not None:
            await self._server.stop(timeout_s or None)
            if self._stopping is not None:
                await self._stopping
            self._server = None
        self.service.close()

    def _make(self) -> grpc.aio.Server:
        server: grpc.aio.Server = grpc.aio.server(
            options=(
                ("grpc.so_reuseport", 0),  # or a second server would share the port in silence
                ("grpc.max_receive_message_length", self._limits.max_body_bytes),
                ("grpc.max_send_message_length", -1),  # checked by the service, with a better message
                ("grpc.keepalive_time_ms", 1000 * _PING_S),
                ("grpc.keepalive_timeout_ms", 1000 * _PING_TIMEOUT_S),
            ),
            maximum_concurrent_rpcs=self._limits.max_connections,
        )
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(self._handler(method))
            for name, method in self.service.methods().items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        return server

    def _handler(self, method: Method) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def handle(data: bytes, context: Any) -> bytes:
            self.inflight += 1
            held = 0
            try:
                self._bodies.hold(len(data))
                held = len(data)
                result: Result = await method(data, _call(context))
            except HybridError as error:
                result = error
            except asyncio.CancelledError:
                if context.cancelled():
                    raise
                # Not by the client, so it waits; the library would send it nothing.
                result = NotReady("the call was cancelled inside the server")
            except Exception:
                log.exception("an error that nobody foresaw, in a gRPC call")
                result = HybridError("an error inside the server that nobody foresaw; its log has more")
            finally:
                self.inflight -= 1
                self._bodies.let_go(held)
            return result if isinstance(result, bytes) else _fail(context, result)

        return handle


def _call(context: Any) -> Call:
    now = time.monotonic()
    remaining: float | None = context.time_remaining()
    metadata = {
        key.encode(): value if isinstance(value, bytes) else value.encode()
        for key, value in context.invocation_metadata() or ()
    }
    peer = unquote(context.peer().partition(":")[2])  # "ipv4:127.0.0.1:1234", "ipv6:%5B::1%5D:1234"
    return Call(metadata, now, float("inf") if remaining is None else now + remaining, peer)


def _fail(context: Any, error: HybridError) -> bytes:
    """Set status, text and trailers. The library's `abort` does the same by raising, which costs more and is logged."""
    text = (str(error) or error.code).encode(errors="backslashreplace")
    cut = text if len(text) <= _TEXT_BYTES else text[:_TEXT_BYTES] + b"..."
    context.set_code(getattr(grpc.StatusCode, error.grpc_code))
    context.set_details(cut.decode(errors="ignore"))
    context.set_trailing_metadata(
        (("hybrid-code", error.code), *((name.lower(), value) for name, value in error.headers.items()))
    )
    return b""


def _listen(server: grpc.aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> None:
    if credentials is None:
        server.add_insecure_port(address)
    else:
        server.add_secure_port(address, credentials)


def _credentials(files: TlsFiles) -> grpc.ServerCredentials:
    """Read the files, which the HTTP server has checked before."""
    try:
        key, certificate = Path(files.key).read_bytes(), Path(files.certificate).read_bytes()
        roots = None if files.client_ca is None else Path(files.client_ca).read_bytes()
    except OSError as error:
        raise StartupError(f"gRPC: cannot read {error.filename} ({error.strerror})") from None
    credentials: grpc.ServerCredentials = grpc.ssl_server_credentials(
        [(key, certificate)], roots, require_client_auth=roots is not None
    )
    return credentials
