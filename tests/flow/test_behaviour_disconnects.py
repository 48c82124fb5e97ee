"""Clients that leave: their work leaves with them, and nobody else notices; rows of `field-reports.md` are named."""

import asyncio
import random
import socket
import struct
import time
from collections.abc import Iterator

import pytest
from clients import (
    Client,
    Counters,
    executing,
    folder,
    fp32,
    leave_after_sending,
    path,
    post,
    post_all,
    request_bytes,
    waiting_rows,
)
from moments import in_a_quiet_moment
from server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "one", batching="max_batch = 1", simulated="fixed_ms = 400"),
        folder(root, "four", batching="max_batch = 4", simulated="fixed_ms = 400"),
        folder(root, "quick", batching="max_batch = 8", simulated="fixed_ms = 10"),
    ]
    with Server(*models) as running:
        yield running


@pytest.fixture(autouse=True)
def everything_returns_to_zero(server: Server):
    yield
    server.until(lambda: settled(server), 5, "the gauges of a server at rest")


def settled(server: Server) -> bool:
    front = server.snapshot()["front"]
    metrics = server.get("/metrics")[1]
    depths = [line for line in metrics.splitlines() if line.startswith(("hybrid_queue_rows{", "hybrid_queue_bytes{"))]
    at_rest = all(float(line.rsplit(" ", 1)[1]) == 0 for line in depths)
    return front["inflight"] == 1 and front["bytes_queued"] == 0 and at_rest  # the one is the snapshot's own


def reset(sock: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("how", ["close", "reset"])
@in_a_quiet_moment
async def test_who_leaves_the_queue_is_gone_within_100_ms_and_never_computed(server: Server, how: str):
    before = Counters(server, "one")
    first = asyncio.ensure_future(post(server.port, path("one"), fp32([1.0], (1, 1))))
    await executing(before)
    waiting = leave_after_sending(server.port, path("one"), fp32([2.0], (1, 1)))
    await waiting_rows(before, 1)
    (waiting.close if how == "close" else lambda: reset(waiting))()
    left_at = time.monotonic()
    while before.depth():
        assert time.monotonic() - left_at < 0.1
    assert (await first).data == [1.0]
    assert before.since() == {"ok": 1, "rows": 1, "batches": 1, "size_1": 1, "left": 1}


async def test_40_of_50_leave_and_only_10_are_computed(server: Server):
    """DIS-04."""
    before = Counters(server, "four")
    first = asyncio.ensure_future(post(server.port, path("four"), fp32([0.0], (1, 1))))
    await executing(before)
    leaving = [leave_after_sending(server.port, path("four"), fp32([-1.0], (1, 1))) for _ in range(40)]
    staying = asyncio.ensure_future(post_all(server.port, path("four"), [fp32([float(k)], (1, 1)) for k in range(10)]))
    await waiting_rows(before, 50)
    for sock in leaving:
        sock.close()
    assert [answer.data for answer in await staying] == [[float(k)] for k in range(10)]
    assert (await first).status == 200
    assert before.since() == {"ok": 11, "rows": 11, "batches": 4, "size_1": 1, "size_4": 2, "size_2": 1, "left": 40}


async def test_200_that_give_up_after_10_ms_leave_a_healthy_server(server: Server):
    """DIS-01."""

    async def normal() -> float:
        began = time.monotonic()
        answers = await post_all(server.port, path("quick"), [fp32([float(k)], (1, 1)) for k in range(20)])
        assert [answer.data for answer in answers] == [[float(k)] for k in range(20)]
        return time.monotonic() - began

    async def hasty(number: int) -> None:
        async with Client(server.port) as client:
            client.send(path("quick"), fp32([float(number)], (1, 1)))
            await asyncio.sleep(0.01)

    before_s = await normal()
    counters = Counters(server, "quick")
    await asyncio.gather(*(hasty(number) for number in range(200)))
    server.until(lambda: sum(counters.since().get(name, 0) for name in ("ok", "left")) == 200, 3, "each ends once")
    after_s = await normal()
    assert after_s < 3 * before_s + 0.1


async def test_500_cancelled_at_once_end_exactly_once(server: Server):
    """CAN-03: at random moments, so that some come between two hand-over steps."""
    before = Counters(server, "quick")
    draw = random.Random(5)

    async def one(number: int) -> int:
        async with Client(server.port) as client:
            client.send(path("quick"), fp32([float(number)], (1, 1)))
            try:
                async with asyncio.timeout(draw.random() * 0.15):
                    return (await client.read()).status
            except TimeoutError:
                return 0

    statuses = [status for batch in range(5) for status in await asyncio.gather(*(one(k) for k in range(100)))]
    assert set(statuses) <= {0, 200}
    server.until(lambda: settled(server), 5, "everything ended")
    since = before.since()
    assert since.get("ok", 0) + since.get("left", 0) == 500
    assert since.get("ok", 0) >= statuses.count(200)
    assert since["rows"] < 500, "nobody left while waiting, or all were computed nevertheless"


async def test_half_closed_clients_still_get_every_answer(server: Server):
    payload = b"".join(request_bytes(path("quick"), fp32([float(k)], (1, 1))) for k in range(3))
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(payload + request_bytes(path("one"), fp32([9.0], (1, 1))))
    writer.write_eof()
    received = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert received.count(b"HTTP/1.1 200 OK") == 4
    at = [received.index(f'"data":[{value}]'.encode()) for value in ("0.0", "1.0", "2.0", "9.0")]
    assert at == sorted(at)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_clients_that_vanish_in_the_middle_of_a_body(server: Server, how: str):
    before = Counters(server, "quick")
    for size in (0, 10, 100, 900_000):
        whole = request_bytes(path("quick"), fp32([0.5] * 200_000, (1, 200_000)))
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.sendall(whole[: 60 + size])
        (sock.close if how == "close" else lambda sock=sock: reset(sock))()
    server.until(lambda: settled(server), 5, "partial bodies are given back")
    assert before.since() == {}


async def test_who_leaves_while_executing_is_counted_and_harms_no_neighbour(server: Server):
    before = Counters(server, "four")
    bodies = [fp32([float(k)], (1, 1)) for k in range(2)]
    leaver = leave_after_sending(server.port, path("four"), fp32([7.0], (1, 1)))
    await executing(before)
    stayers = asyncio.ensure_future(post_all(server.port, path("four"), bodies))
    leaver.close()
    assert [answer.data for answer in await stayers] == [[0.0], [1.0]]
    assert before.since() == {"ok": 2, "left": 1, "rows": 3, "batches": 2, "size_1": 1, "size_2": 1}
