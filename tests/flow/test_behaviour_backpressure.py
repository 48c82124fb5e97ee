"""Full means refuse now: bounds in rows and bytes, with numbers in the text; rows of `field-reports.md` are named."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import psutil
import pytest
from clients import Answer, Client, Counters, executing, folder, fp32, path, post, post_all
from server import Server

from hybrid.messages import Tensor
from hybrid.protocol.oip import encode_request

pytestmark = pytest.mark.slow

MB = 1 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "rows", batching="max_batch = 4\nqueue_rows = 8", simulated="fixed_ms = 300"),
        folder(root, "bytes", batching=f"max_batch = 4\nqueue_bytes = {16 * MB}", simulated="fixed_ms = 20"),
        folder(root, "quick", batching="max_batch = 8", simulated=""),
    ]
    with Server(*models) as running:
        yield running


def large(megabytes: float) -> tuple[bytes, dict[str, str]]:
    """A binary request of one row."""
    row = np.zeros((1, int(megabytes * MB) // 4), np.float32)
    body, length = encode_request([Tensor("x", "FP32", row)], binary=True)
    return body, {"Inference-Header-Content-Length": str(length)}


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(server: Server):
    await post(server.port, path("rows"), fp32([0.0], (1, 1)))  # so that the time of a batch is known
    before = Counters(server, "rows")
    answers = await post_all(server.port, path("rows"), [fp32([float(k)], (1, 1)) for k in range(60)])
    full = [answer for answer in answers if answer.status == 429]
    assert {answer.status for answer in answers} == {200, 429}
    assert len(full) >= 60 - 8 - 2 * 4
    served = [answer for answer in answers if answer.status == 200]
    assert max(answer.at for answer in full) < max(answer.at for answer in served), "refusals waited for the queue"
    for answer in full:
        assert answer.body["code"] == "queue_full"
        assert "8 of 8 rows wait and the request has 1" in answer.body["error"]
        assert int(answer.headers["retry-after"]) >= 1
    since = before.since()
    assert (since["ok"], since["queue_full"]) == (60 - len(full), len(full))
    assert before.depth() == 0


async def test_a_request_that_is_larger_than_the_queue_is_not_asked_to_come_back(server: Server):
    for body, headers in ((fp32([1.0] * 9, (9, 1)), {}), large(1)):
        model = "rows" if not headers else "bytes"
        assert (await post(server.port, path(model), body, headers)).status == (413 if model == "rows" else 200)
    rows = await post(server.port, path("rows"), fp32([1.0] * 9, (9, 1)))
    assert rows.body["error"] == "9 rows in one request; the queue of rows holds 8 (queue_rows)"
    body, headers = large(17)
    answer = await post(server.port, path("bytes"), body, headers)
    assert answer.status == 413
    assert "(queue_bytes)" in answer.body["error"]
    assert "retry-after" not in answer.headers


async def test_white_space_counts_as_much_as_numbers(server: Server):
    """A body is held until its answer, whatever it is made of."""
    body = b'{"inputs":[{"name":"x","shape":[1,1],"datatype":"FP32","data":[1.0]}]}' + b" " * (5 * MB)
    answers = await post_all(server.port, path("bytes"), [body] * 8)
    assert {answer.status for answer in answers} == {200, 429}
    assert (await post(server.port, path("bytes"), b" " * (17 * MB) + body[:80])).status == 413


async def test_a_stalled_worker_bounds_what_is_admitted(server: Server):
    """MEM-09: 200 clients with 1 MB each, the worker stopped; it recovers when the worker goes on."""
    assert server.process is not None
    process = psutil.Process(server.process.pid)
    worker = next(worker for worker in server.workers() if worker["model"] == "bytes")["pid"]
    before = Counters(server, "bytes")
    body, headers = large(1)
    rss = process.memory_info().rss
    admitted: list[Answer] = []
    refused: list[Answer] = []
    refusals: asyncio.Queue[None] = asyncio.Queue()

    async def one() -> None:
        answer = await post(server.port, path("bytes"), body, headers)
        (refused if answer.status == 429 else admitted).append(answer)
        if answer.status == 429:
            refusals.put_nowait(None)

    os.kill(worker, signal.SIGSTOP)
    try:
        tasks = [asyncio.ensure_future(one()) for _ in range(200)]
        await asyncio.wait_for(asyncio.gather(*(refusals.get() for _ in range(200 - 16 - 4))), 2.5)
        front = server.snapshot()["front"]
        grown = process.memory_info().rss - rss
        assert front["bytes_queued"] < 2.2 * 16 * MB
        assert grown < 6 * 16 * MB
    finally:
        os.kill(worker, signal.SIGCONT)
    await asyncio.gather(*tasks)
    assert {answer.status for answer in admitted} == {200}
    assert 14 <= len(admitted) <= 20
    assert {answer.body["code"] for answer in refused} == {"queue_full"}
    assert "bytes held and the request has" in refused[0].body["error"]
    assert before.since()["ok"] == len(admitted)
    assert (await post(server.port, path("bytes"), fp32([1.0], (1, 1)))).status == 200


async def test_four_bodies_of_16_mb_of_json_do_not_delay_the_probes(server: Server):
    """BIG-04."""
    body = b'{"inputs":[{"name":"x","shape":[1,3000000],"datatype":"FP32","data":[' + b"0.125," * 2_999_999 + b"0.5]}]}"
    assert len(body) > 16 * MB
    slowest = 0.0

    async def probe() -> None:
        nonlocal slowest
        async with Client(server.port) as client:
            while True:
                began = time.monotonic()
                client.writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: t\r\n\r\n")
                assert (await client.read()).status == 200
                slowest = max(slowest, time.monotonic() - began)
                await asyncio.sleep(0.1)

    probing = asyncio.ensure_future(probe())
    answers = await post_all(server.port, path("quick"), [body] * 4)
    probing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await probing
    assert [answer.status for answer in answers] == [200] * 4
    assert slowest < 1


async def test_large_answers_in_json_are_whole_and_exact(server: Server):
    """They are encoded beside the event loop; a client that leaves meanwhile counts as one that left."""
    mine = [k / 8 for k in range(300_000)]
    answers = await post_all(server.port, path("quick"), [fp32(mine, (3, 100_000)), fp32(mine[:5], (1, 5))])
    assert answers[0].body["outputs"][0]["shape"] == [3, 100_000]
    assert answers[0].data == mine
    assert answers[1].data == mine[:5]
    before = Counters(server, "quick")
    async with Client(server.port) as leaver:
        leaver.send(path("quick"), fp32(mine, (1, 300_000)))
        await executing(before)
    server.until(lambda: sum(before.since().get(name, 0) for name in ("ok", "left")) == 1, 5, "it ends once")


async def test_a_full_queue_of_one_model_leaves_the_other_alone(server: Server):
    before = Counters(server, "rows")
    crowd = asyncio.ensure_future(post_all(server.port, path("rows"), [fp32([1.0], (1, 1))] * 30))
    await executing(before)
    assert (await post(server.port, path("quick"), fp32([5.0], (1, 1)))).data == [5.0]
    assert not crowd.done()
    await crowd
