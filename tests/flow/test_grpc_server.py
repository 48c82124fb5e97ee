"""The gRPC server as a whole: ports, keys, TLS, drain, and calls that are cancelled inside."""

import asyncio
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from clients import Counters, executing, folder
from server import Server
from tritonclient.grpc import service_pb2 as pb

from hybrid.config import HttpLimits
from hybrid.errors import HybridError, StartupError
from hybrid.frontend.grpc import GrpcServer
from hybrid.frontend.http import HttpServer

pytestmark = pytest.mark.slow

SERVICE = "/inference.GRPCInferenceService/"


def body(model: str) -> bytes:
    request = pb.ModelInferRequest(model_name=model, raw_input_contents=[np.ones((1, 1), np.float32).tobytes()])
    request.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    return request.SerializeToString()


async def status(call: Any) -> str:
    try:
        await call
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def grpc_server(service: Any, **limits: int) -> GrpcServer:
    """A server beside one of HTTP that has nothing to do."""
    given = HttpLimits(**limits)
    return GrpcServer(service, given, HttpServer(lambda exchange: None, given))


def plain(port: int) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{port}")


# Ports -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]


def test_a_taken_port_is_named_before_any_model_is_loaded(taken: int):
    began = time.monotonic()
    server = Server("simulated:null", options=["--grpc-port", str(taken)]).start()
    assert server.wait() == 1
    assert f"gRPC: port {taken} on 127.0.0.1 is already in use" in server.err
    assert len(server.err.splitlines()) == 1
    assert time.monotonic() - began < 10
    server.stop()


async def test_a_second_server_does_not_share_the_port():
    """PRT-01: the first one is undisturbed."""
    with Server("simulated:null") as first:
        second = Server("simulated:null", options=["--grpc-port", str(first.grpc_port)]).start()
        assert await asyncio.to_thread(second.wait) == 1
        assert str(first.grpc_port) in second.err
        second.stop()
        async with plain(first.grpc_port) as channel:
            answers = [await status(channel.unary_unary(SERVICE + "ModelInfer")(body("null"))) for _ in range(20)]
    assert answers == ["OK"] * 20


async def test_free_ports_are_distinct():
    """PRT-03: many starts at once that ask for any port."""
    servers = [grpc_server(Cancelling()) for _ in range(20)]
    ports = await asyncio.gather(*(server.start("127.0.0.1", 0) for server in servers))
    assert len(set(ports)) == 20
    await asyncio.gather(*(server.close(0.1) for server in servers))


@pytest.mark.parametrize(
    ("host", "reached"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("localhost", ["127.0.0.1"]),
        ("0.0.0.0", ["127.0.0.1"]),
        ("::1", ["[::1]"]),
        ("[::1]", ["[::1]"]),
        ("::", ["127.0.0.1", "[::1]"]),
    ],
)
async def test_every_way_to_write_a_host(host: str, reached: list[str]):
    """PRT-04."""
    if "::" in host and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    server = grpc_server(Cancelling())
    port = await server.start(host, 0)
    for address in reached:
        async with grpc.aio.insecure_channel(f"{address}:{port}") as channel:
            assert await status(channel.unary_unary(SERVICE + "ServerReady")(b"", timeout=5)) == "INTERNAL"
    await server.close(0.1)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "", "192.0.2.1"])
async def test_hosts_that_are_none_of_this_machine(host: str):
    with pytest.raises(StartupError, match="gRPC: host"):
        await grpc_server(Cancelling()).start(host, 0)


def test_it_can_be_switched_off():
    with Server("simulated:null", options=["--grpc-port", "-1"]) as server:
        assert server.infer_x("null", 1.0)[0] == 200
        assert server.process is not None
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert "gRPC on" not in server.out
    assert "cygrpc" not in maps


# Keys and TLS ------------------------------------------------------------------------------------------------------


async def test_keys_and_tls_are_those_of_http(tmp_path: Path):
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    config = f"""
        [server]
        api_keys = ["open-sesame"]
        [server.tls]
        certificate = "{tmp_path}/cert.pem"
        key = "{tmp_path}/key.pem"
    """
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    with Server("simulated:null", config=config) as server:
        async with grpc.aio.secure_channel(f"localhost:{server.grpc_port}", credentials) as channel:
            infer = channel.unary_unary(SERVICE + "ModelInfer")
            assert await status(infer(body("null"))) == "UNAUTHENTICATED"
            assert await status(infer(body("null"), metadata=(("x-api-key", "wrong"),))) == "UNAUTHENTICATED"
            assert await status(infer(body("null"), metadata=(("x-api-key", "open-sesame"),))) == "OK"
            assert await status(infer(body("null"), metadata=(("authorization", "Bearer open-sesame"),))) == "OK"
            for method in ("ServerLive", "ServerReady"):
                assert await status(channel.unary_unary(SERVICE + method)(b"")) == "OK"
            for method in ("ServerMetadata", "ModelMetadata", "ModelReady", "RepositoryIndex", "RepositoryModelLoad"):
                assert await status(channel.unary_unary(SERVICE + method)(b"")) == "UNAUTHENTICATED"
        async with plain(server.grpc_port) as channel:
            assert await status(channel.unary_unary(SERVICE + "ServerLive")(b"", timeout=5)) == "UNAVAILABLE"


# Drain -------------------------------------------------------------------------------------------------------------


async def test_drain_finishes_what_is_open_and_idle_channels_hold_nothing(tmp_path: Path):
    """SIG-01, SIG-05, SIG-07."""
    model = folder(tmp_path, "held", simulated="fixed_ms = 600")
    config = "[server]\ndrain_delay_s = 0.2\n"
    with Server(model, config=config) as server:
        async with plain(server.grpc_port) as busy, plain(server.grpc_port) as idle:
            assert await idle.unary_unary(SERVICE + "ServerReady")(b"") == b"\x08\x01"
            counters = Counters(server, "held")
            running = busy.unary_unary(SERVICE + "ModelInfer")(body("held"))
            await executing(counters)
            server.signal()
            ready = b"\x08\x01"
            while ready:
                ready = await idle.unary_unary(SERVICE + "ServerReady")(b"")
            assert await idle.unary_unary(SERVICE + "ServerLive")(b"") == b"\x08\x01"
            while await status(idle.unary_unary(SERVICE + "ServerLive")(b"")) == "OK":
                pass
            assert await status(idle.unary_unary(SERVICE + "ModelInfer")(body("held"))) == "UNAVAILABLE"
            assert await status(running) == "OK"
            answered = time.monotonic()
            assert await asyncio.to_thread(server.wait) == 0
            assert time.monotonic() - answered < 3


async def test_calls_that_outlast_the_drain_are_told_so(tmp_path: Path):
    model = folder(tmp_path, "held", simulated="fixed_ms = 1200", batching="max_batch = 1")
    with Server(model, config="[server]\ndrain_timeout_s = 0.3\n") as server:
        async with plain(server.grpc_port) as channel:
            counters = Counters(server, "held")
            calls = [channel.unary_unary(SERVICE + "ModelInfer")(body("held")) for _ in range(3)]
            await executing(counters)
            began = time.monotonic()
            server.signal()
            assert await asyncio.gather(*map(status, calls)) == ["UNAVAILABLE"] * 3
            assert time.monotonic() - began < 1.2
            assert await asyncio.to_thread(server.wait) == 1


# Inside ------------------------------------------------------------------------------------------------------------


class Cancelling:
    """A service whose first method never ends by itself; each call of it puts its task and future into `begun`."""

    def __init__(self) -> None:
        self.draining = False
        self.begun: asyncio.Queue[tuple[Any, Any]] = asyncio.Queue()

    def methods(self) -> dict[str, Any]:
        return {"ServerLive": self._wait, "ServerReady": self._break, "ModelReady": self._refuse}

    def close(self) -> None:
        self.draining = True

    async def _wait(self, data: bytes, call: Any) -> bytes:
        future = asyncio.get_running_loop().create_future()
        self.begun.put_nowait((asyncio.current_task(), future))
        return await future

    async def _break(self, data: bytes, call: Any) -> bytes:
        raise KeyError("secret")

    async def _refuse(self, data: bytes, call: Any) -> HybridError:
        return HybridError("\udc80 €" * 5000)


async def test_messages_are_bounded_together_and_with_bodies():
    service = Cancelling()
    limits = HttpLimits(max_buffered_bytes=250)
    http = HttpServer(lambda exchange: None, limits)
    server = GrpcServer(service, limits, http)
    port = await server.start("127.0.0.1", 0)
    async with plain(port) as channel:
        live = channel.unary_unary(SERVICE + "ServerLive")
        held = [asyncio.ensure_future(status(live(bytes(100)))) for _ in range(2)]
        futures = [(await service.begun.get())[1] for _ in held]
        assert await status(live(bytes(100))) == "UNAVAILABLE"
        assert (http.stats().body_bytes, http.stats().refused_bodies_n) == (200, 1)
        for future in futures:
            future.set_result(b"ok")
        assert await asyncio.gather(*held) == ["OK", "OK"]
        http.hold(200)  # as if a connection of HTTP had so much
        assert await status(live(bytes(100))) == "UNAVAILABLE"
        http.let_go(200)
        again = asyncio.ensure_future(status(live(bytes(100))))
        (await service.begun.get())[1].set_result(b"ok")
        assert await again == "OK"
    assert http.stats().body_bytes == 0
    await server.close(0.5)


@pytest.mark.parametrize("which", [0, 1])
async def test_a_call_that_is_cancelled_inside_is_answered(which: int):
    """CAN-05: the library alone would leave the client waiting for ever."""
    service = Cancelling()
    server = grpc_server(service)
    port = await server.start("127.0.0.1", 0)
    async with plain(port) as channel:
        call = asyncio.ensure_future(status(channel.unary_unary(SERVICE + "ServerLive")(b"", timeout=5)))
        (await service.begun.get())[which].cancel()
        assert await call == "UNAVAILABLE"
    await server.close(0.5)
    assert server.inflight == 0


async def test_errors_that_nobody_foresaw_and_texts_that_no_trailer_holds(caplog: pytest.LogCaptureFixture):
    server = grpc_server(Cancelling())
    port = await server.start("127.0.0.1", 0)
    async with plain(port) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary(SERVICE + "ServerReady")(b"")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert "secret" not in caught.value.details()
        with pytest.raises(grpc.RpcError) as caught:
            await channel.unary_unary(SERVICE + "ModelReady")(b"")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
        assert caught.value.details().startswith("\\udc80 €")
    await server.close(0.5)
    assert "secret" in caplog.text
