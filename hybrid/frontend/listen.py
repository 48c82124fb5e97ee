"""Listening sockets, open-file limits and TLS contexts, with one clear line for all that can go wrong at start.

Must never know HTTP.
"""

import asyncio
import contextlib
import ctypes
import errno
import logging
import os
import resource
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from hybrid.config import HttpLimits, TlsFiles
from hybrid.errors import StartupError

log = logging.getLogger(__name__)

_BACKLOG = 2048
#: Files that the rest of the process may need besides connections.
_OTHER_FILES = 256
#: Linux's SO_ATTACH_FILTER, and a classic BPF program that drops segments with SYN: (code, jt, jf, k) each.
_ATTACH_FILTER = 26
_NO_NEW_CLIENTS = (
    (0x30, 0, 0, 13),  # load the byte with TCP's flags
    (0x45, 0, 1, 0x02),  # SYN?
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFF),  # pass
)
_NO_SUCH_FAMILY = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def affordable_connections(wanted: int) -> int:
    """Raise the limit of open files as far as needed and allowed; return how many connections fit under it.

    Connections beyond that are refused with an answer, which is kinder than failing in accept().
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    needed = wanted + _OTHER_FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, max(soft - _OTHER_FILES, soft // 2)))


def affordable_bodies(limits: HttpLimits, memory_limit_bytes: int) -> HttpLimits:
    """Return the limits with bodies held to a quarter of the memory: tensors, answers and children need the rest.

    A single body that would never fit must be refused for good, and not be told to come again.
    """
    buffered = max(1, min(limits.max_buffered_bytes, memory_limit_bytes // 4))
    if buffered < limits.max_buffered_bytes:
        log.info("max_buffered_bytes is %d, a quarter of the memory", buffered)
    return replace(limits, max_buffered_bytes=buffered, max_body_bytes=min(limits.max_body_bytes, buffered))


class Listener:
    """One listening socket whose protocol factory serves every accepted connection.

    uvloop closes a listener for good, without a word, on the first accept error that it cannot work around (out of
    files while another thread takes the last one). `revive` notices and opens it again from a duplicate.
    """

    def __init__(self, sock: socket.socket, factory: Callable[[], asyncio.Protocol]) -> None:
        self._sock = sock
        self._spare = sock.dup()
        self._factory = factory
        self._server: asyncio.Server | None = None
        self._tls: ssl.SSLContext | None = None
        self._handshake_timeout_s = 0.0
        self._reviving: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[object]] = set()

    async def open(self, tls: ssl.SSLContext | None, handshake_timeout_s: float) -> None:
        """Begin to accept."""
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._server = await asyncio.get_running_loop().create_server(
            self._factory,
            sock=self._sock,
            ssl=tls,
            backlog=_BACKLOG,
            ssl_handshake_timeout=None if tls is None else handshake_timeout_s,
        )

    def revive(self) -> None:
        """Open again if the event loop has closed the socket."""
        if self._server is None or self._sock.fileno() >= 0:
            return
        if self._reviving is not None and not self._reviving.done():
            return
        try:
            self._sock = self._spare.dup()
        except OSError:
            return  # still out of files: the next sweep tries again
        log.error("the listening socket was closed by the event loop (out of files?); opened it again")
        self._reviving = asyncio.get_running_loop().create_task(self.open(self._tls, self._handshake_timeout_s))

    def close(self) -> None:
        """Stop accepting; connections stay, also those that the kernel has made and nobody has seen yet.

        The kernel is told to make no new ones first: it would go on between our last look at the queue and the end of
        the socket, for milliseconds when this process has to wait for a CPU just then. Who comes in between tries again
        after a second, as after any lost segment, and is refused.
        """
        if self._server is not None:
            with contextlib.suppress(OSError):  # a kernel without filters: as good as can be
                _ignore_new_clients(self._spare)
            self._take_waiting()
            self._server.close()
            self._server = None
        self._spare.close()

    def _take_waiting(self) -> None:
        """Accept what is queued: closing would reset connections whose clients believe that they are connected."""
        loop = asyncio.get_running_loop()
        timeout_s = None if self._tls is None else self._handshake_timeout_s
        for _ in range(_BACKLOG):
            try:
                sock, _ = self._spare.accept()
            except OSError:
                return  # nobody waits (or no descriptor is left)
            sock.setblocking(False)
            task = loop.create_task(
                loop.connect_accepted_socket(self._factory, sock, ssl=self._tls, ssl_handshake_timeout=timeout_s)
            )
            self._late.add(task)
            task.add_done_callback(self._settled)

    def _settled(self, task: asyncio.Task[object]) -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.debug("a connection was lost before it began: %s", task.exception())


async def listening_sockets(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for every address that `host` stands for, all on one port.

    `::` takes IPv4 as well. Port 0 lets the kernel choose. Without SO_REUSEPORT, so a second server on the same port
    fails. Addresses of a family that this machine lacks are skipped while another one works.

    Raises:
        StartupError: Unknown host, port in use, no permission.
    """
    name = host.removeprefix("[").removesuffix("]")
    if not name:
        raise StartupError("host is empty: use 127.0.0.1, 0.0.0.0 or ::")
    try:
        infos = await asyncio.get_running_loop().getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise StartupError(f"host {host}: cannot be resolved ({getattr(error, 'strerror', error)})") from None
    addresses = list(dict.fromkeys((int(info[0]), tuple[object, ...](info[4])) for info in infos))
    for attempts_left in reversed(range(16)):
        try:
            return _listen_all(addresses, port)
        except OSError as error:
            if port or not attempts_left or error.errno != errno.EADDRINUSE:
                raise StartupError(_explain(host, port, error)) from None
    raise AssertionError("this is a bug")


async def grpc_addresses(host: str, port: int) -> list[tuple[str, int]]:
    """Return addresses on which gRPC can listen now, all on one port; its library takes no sockets and says no reason.

    Raises:
        StartupError: As `listening_sockets`.
    """
    try:
        sockets = await listening_sockets(host, port)
    except StartupError as error:
        raise StartupError(
            f"gRPC: {error}; choose another with --grpc-port (server.grpc_port), or -1 for no gRPC"
        ) from error
    names = [sock.getsockname()[:2] for sock in sockets]
    _close(sockets)
    return names


async def check_place(host: str, port: int, grpc_port: int, tls: TlsFiles | None) -> None:
    """Find out whether a server could listen now, and leave nothing open. `grpc_port` -1: no gRPC.

    For what takes its time before a server listens: measuring models must not end with a port that is taken.

    Raises:
        StartupError: It could not, with one line that says why.
    """
    if tls is not None:
        tls_context(tls)
    sockets = await listening_sockets(host, port)
    try:
        if grpc_port >= 0:
            await grpc_addresses(host, grpc_port)
    finally:
        _close(sockets)


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a server context (TLS 1.2 or newer); with `client_ca`, clients must show a certificate.

    Raises:
        StartupError: A file is missing, unreadable or not what it should be.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    for what, name in (("certificate", files.certificate), ("key", files.key), ("client_ca", files.client_ca)):
        try:
            if name is not None:
                Path(name).read_bytes()
        except OSError as error:
            raise StartupError(f"tls.{what}: cannot read {name} ({error.strerror})") from None
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: "")  # never ask on the terminal
    except (ssl.SSLError, ValueError) as error:
        raise StartupError(f"tls: {files.certificate} and {files.key} are not a PEM pair ({_reason(error)})") from None
    if files.client_ca is not None:
        try:
            context.load_verify_locations(files.client_ca)
        except ssl.SSLError as error:
            raise StartupError(f"tls.client_ca: {files.client_ca} is not a PEM file ({_reason(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _ignore_new_clients(sock: socket.socket) -> None:
    """Have a listening socket ignore those who want to connect; handshakes that have begun go on."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in _NO_NEW_CLIENTS))
    where = struct.pack("HP", len(_NO_NEW_CLIENTS), ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, where)


def _listen_all(addresses: list[tuple[int, tuple[object, ...]]], port: int) -> list[socket.socket]:
    sockets: list[socket.socket] = []
    skipped: OSError | None = None
    try:
        for family, address in addresses:
            try:
                sockets.append(_listen(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _NO_SUCH_FAMILY:
                    raise
                skipped = error
            else:
                port = sockets[0].getsockname()[1]  # all further addresses get the port the kernel chose for the first
    except OSError:
        _close(sockets)
        raise
    if not sockets and skipped is not None:
        raise skipped
    return sockets


def _close(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


def _listen(family: int, address: tuple[object, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # only skips TIME_WAIT; a listener still blocks us
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, address[0] != "::")
        sock.setblocking(False)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _explain(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is already in use"
    if error.errno == errno.EACCES:
        return f"port {port} on {host}: no permission to listen there"
    if error.errno in _NO_SUCH_FAMILY:
        return f"host {host}: not an address of this machine"
    return f"cannot listen on {host} port {port}: {os.strerror(error.errno or 0)}"


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)
