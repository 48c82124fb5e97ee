"""What happens to gRPC calls: deadlines, cancellation, overload. Each is counted once and leaves nothing behind."""

import asyncio
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
import raw_http2
from clients import Counters, executing, folder, waiting_rows
from server import Server
from tritonclient.grpc import service_pb2 as pb

pytestmark = pytest.mark.slow

METHOD = "/inference.GRPCInferenceService/ModelInfer"
HELD_S = 0.4
LONG = os.environ.get("HYBRID_LONG") == "1"
ROUNDS = 5
CALLS_PER_ROUND = 2000 if LONG else 100
CHANNELS_N = 2000 if LONG else 200
MIB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    held = folder(root, "held", simulated=f"fixed_ms = {1000 * HELD_S}", batching="max_batch = 1\nqueue_rows = 8")
    brisk = folder(root, "brisk", simulated="fixed_ms = 5", batching="max_batch = 8")
    with Server(held, brisk) as running:
        yield running


def body(model: str, value: float = 1.0, rows: int = 1, **parameters: int) -> bytes:
    request = pb.ModelInferRequest(model_name=model)
    request.inputs.add(name="x", datatype="FP32", shape=[rows, 1])
    request.raw_input_contents.append(np.full((rows, 1), value, np.float32).tobytes())
    for name, number in parameters.items():
        request.parameters[name].int64_param = number
    return request.SerializeToString()


def channel_to(server: Server) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}")


async def outcome(call: Any) -> str:
    """How a call ended, by the name of its status."""
    try:
        await call
    except asyncio.CancelledError:
        return "CANCELLED"
    except grpc.RpcError as error:
        return error.code().name
    return "OK"


def busy(server: Server) -> bool:
    return any(worker["state"] == "busy" for worker in server.workers())


async def idle(server: Server) -> None:
    """Wait until nothing is open any more."""
    ends = time.monotonic() + 5
    while time.monotonic() < ends:
        snapshot = await asyncio.to_thread(server.snapshot)
        depth = sum(entry["depth"] for model in snapshot["models"] for entry in model["classes"])
        if not snapshot["front"]["inflight"] - 1 and not depth:  # the snapshot's own request
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still open: {snapshot['front']['inflight'] - 1} requests, {depth} rows")


# Deadlines ---------------------------------------------------------------------------------------------------------


async def test_a_call_in_the_queue_ends_at_its_deadline_and_is_never_run(server: Server):
    """DIS-07: the deadline of the call empties the queue."""
    counters = Counters(server, "held")
    async with channel_to(server) as channel:
        call = channel.unary_unary(METHOD)
        first = asyncio.ensure_future(outcome(call(body("held"))))
        await executing(counters)
        began = time.monotonic()
        late = [outcome(call(body("held"), timeout=0.1)) for _ in range(5)]
        assert await asyncio.gather(*late) == ["DEADLINE_EXCEEDED"] * 5
        assert time.monotonic() - began < HELD_S
        await waiting_rows(counters, 0)
        assert await first == "OK"
    await idle(server)
    assert counters.since() == {"batches": 1, "rows": 1, "size_1": 1, "ok": 1, "late": 5}


async def test_the_earlier_of_parameter_header_and_call_holds(server: Server):
    async with channel_to(server) as channel:
        call = channel.unary_unary(METHOD)
        for given in (
            {"request": body("held", timeout=100_000), "timeout": 30},
            {"request": body("held", timeout=30_000_000), "timeout": 0.1},
            {"request": body("held"), "metadata": (("x-request-timeout-ms", "100"),)},
        ):
            began = time.monotonic()
            assert await outcome(call(**given)) == "DEADLINE_EXCEEDED"
            assert time.monotonic() - began < HELD_S * 0.9
            await asyncio.to_thread(server.until, lambda: not busy(server), what="the worker is free again")
    await idle(server)


async def test_the_server_keeps_the_deadline_of_a_client_that_does_not(server: Server):
    """DLN-07: behind a proxy that forwards no cancel, the call ends all the same."""
    counters = Counters(server, "held")
    async with channel_to(server) as channel:
        blocking = [asyncio.ensure_future(outcome(channel.unary_unary(METHOD)(body("held")))) for _ in range(2)]
        await executing(counters)
        args = (server.grpc_port, "ModelInfer", body("held"), "200m", 5.0)
        assert 0.15 < await asyncio.to_thread(raw_http2.call, *args) < HELD_S
        await waiting_rows(counters, 0 if blocking[1].done() else 1)
        assert await asyncio.gather(*blocking) == ["OK", "OK"]
    await idle(server)
    assert counters.since()["late"] == 1
    assert counters.since()["batches"] == 2


# Cancellation ------------------------------------------------------------------------------------------------------


async def test_a_cancelled_call_leaves_the_queue_at_once(server: Server):
    counters = Counters(server, "held")
    async with channel_to(server) as channel:
        call = channel.unary_unary(METHOD)
        first = asyncio.ensure_future(outcome(call(body("held"))))
        await executing(counters)
        waiting = [call(body("held")) for _ in range(4)]
        await waiting_rows(counters, 4)
        for one in waiting[:3]:
            one.cancel()
        await waiting_rows(counters, 1)
        assert not first.done()
        assert await outcome(waiting[3]) == "OK"
        assert await first == "OK"
    await idle(server)
    assert counters.since() == {"batches": 2, "rows": 2, "size_1": 2, "ok": 2, "left": 3}


async def test_calls_cancelled_at_random_times(server: Server):
    """CAN-01: every call ends once, gauges return to 0, and neither memory nor files grow."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    counters = Counters(server, "brisk")
    chance = random.Random(1)
    seen: dict[str, int] = {}
    memory: list[int] = []
    files: list[int] = []

    async with channel_to(server) as channel:
        call = channel.unary_unary(METHOD)
        latencies = []
        for _ in range(5):
            began = time.monotonic()
            assert await outcome(call(body("brisk"))) == "OK"
            latencies.append(time.monotonic() - began)
        longest_s = 2 * max(latencies)

        async def one() -> str:
            await asyncio.sleep(chance.random() * CALLS_PER_ROUND / 500)
            running = call(body("brisk"))
            cancel = asyncio.get_running_loop().call_later(chance.random() * longest_s, running.cancel)
            ended = await outcome(running)
            cancel.cancel()
            return ended

        for _ in range(ROUNDS):
            for ended in await asyncio.gather(*(one() for _ in range(CALLS_PER_ROUND))):
                seen[ended] = seen.get(ended, 0) + 1
            await idle(server)
            memory.append(process.memory_info().rss)
            files.append(process.num_fds())
        assert await outcome(call(body("brisk"))) == "OK"
    assert seen.keys() <= {"OK", "CANCELLED"}
    assert min(seen.get("OK", 0), seen.get("CANCELLED", 0)) > ROUNDS * CALLS_PER_ROUND // 20, seen
    counted = counters.since()
    print(f"{seen}, counted {counted}, memory {[m // MIB for m in memory]} MiB, files {files}")
    assert counted["ok"] >= seen["OK"] + 6  # an answer may cross the cancellation
    assert counted["ok"] + counted.get("left", 0) <= ROUNDS * CALLS_PER_ROUND + 6
    assert not counted.keys() - {"ok", "left", "batches", "rows"} - {f"size_{n}" for n in range(1, 9)}
    assert memory[-1] - memory[1] < 4 * MIB
    await asyncio.to_thread(server.until, lambda: process.num_fds() <= files[0], what="no file stays open")


async def test_channels_that_come_and_go(server: Server):
    """MEM-08: memory, files and threads of the server are flat."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)

    async def open_and_close(times: int) -> None:
        for number in range(times):
            # An argument of its own, or the library would use one connection for all of them.
            options = (("grpc.channel_id", number), ("grpc.use_local_subchannel_pool", 1))
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}", options=options) as channel:
                assert await outcome(channel.unary_unary(METHOD)(body("brisk"))) == "OK"

    files, threads = process.num_fds(), process.num_threads()
    memory = []
    for _ in range(2):
        await open_and_close(CHANNELS_N // 2)
        await asyncio.to_thread(server.until, lambda: process.num_fds() <= files + 2, what="connections are closed")
        memory.append(process.memory_info().rss)
    print(f"memory {[m // MIB for m in memory]} MiB, threads {threads} and {process.num_threads()}")
    assert memory[1] - memory[0] < 4 * MIB
    assert process.num_threads() <= threads + 2


# Overload ----------------------------------------------------------------------------------------------------------


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(server: Server):
    counters = Counters(server, "held")
    async with channel_to(server) as channel:
        call = channel.unary_unary(METHOD)
        first = call(body("held"))
        await executing(counters)
        second = call(body("held", rows=8))
        await waiting_rows(counters, 8)
        with pytest.raises(grpc.RpcError) as caught:
            await call(body("held"))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        trailers = dict(caught.value.trailing_metadata())
        assert trailers["hybrid-code"] == "queue_full"
        assert int(trailers["retry-after"]) >= 1
        second.cancel()
        assert await outcome(first) == "OK"
    await idle(server)
    assert counters.since()["queue_full"] == 1
