"""Every client gets its own rows, all of them, in its order."""

import asyncio
import os
import random
from collections.abc import Iterator

import pytest
from clients import Client, Counters, folder, fp32, post, post_all
from server import Server

pytestmark = pytest.mark.slow

LONG = os.environ.get("HYBRID_LONG") == "1"
CLIENTS = 64
REQUESTS = 1000 if LONG else 100
PATH = "/v2/models/m/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    model = folder(root, "m", batching="max_batch = 8", simulated="fixed_ms = 0.3\nper_row_ms = 0.05\nnoise = 0.5")
    with Server(model, options=["--workers", "2"]) as running:
        yield running


@pytest.mark.timeout(600)
async def test_no_answer_is_ever_mixed_up(server: Server):
    mixed = failed = 0

    async def one(number: int) -> None:
        nonlocal mixed, failed
        draw = random.Random(number)
        async with Client(server.port) as client:
            for turn in range(REQUESTS):
                rows, columns = draw.choice(((1, 2), (1, 3), (2, 2), (3, 2)))
                mine = [float(number * 8192 + turn * 8 + k) for k in range(rows * columns)]  # exact in FP32
                answer = await client.post(PATH, fp32(mine, (rows, columns), id=f"{number}-{turn}"))
                failed += answer.status != 200
                if answer.status == 200:
                    output = answer.body["outputs"][0]
                    mixed += output["data"] != mine or output["shape"] != [rows, columns]
                    mixed += answer.body["id"] != f"{number}-{turn}"

    before = Counters(server, "m")
    await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    assert (mixed, failed) == (0, 0)
    since = before.since()
    assert since["ok"] == CLIENTS * REQUESTS
    assert since["batches"] < since["rows"], "nothing was batched, so nothing could have been mixed up"
    assert server.snapshot()["front"]["inflight"] <= 1  # the snapshot's own


async def test_all_rows_come_back_in_order_whatever_their_number(server: Server):
    bodies = {rows: [rows * 1000.0 + k for k in range(rows)] for rows in range(1, 41)}
    before = Counters(server, "m")
    order = list(bodies)
    random.Random(1).shuffle(order)
    answers = await post_all(server.port, PATH, [fp32(bodies[rows], (rows, 1)) for rows in order])
    for rows, answer in zip(order, answers, strict=True):
        assert answer.status == 200, answer
        assert answer.body["outputs"][0]["shape"] == [rows, 1]
        assert answer.data == bodies[rows]
    since = before.since()
    assert since["rows"] == sum(bodies)
    assert max(int(name[5:]) for name in since if name.startswith("size_")) <= 8


async def test_33_rows_into_batches_of_8(server: Server):
    before = Counters(server, "m")
    mine = [float(k) for k in range(66)]
    answer = await post(server.port, PATH, fp32(mine, (33, 2)))
    assert answer.data == mine
    assert answer.body["parameters"]["batch_rows"] == 8
    assert before.since() | {"ok": 1} == {"ok": 1, "rows": 33, "batches": 5, "size_8": 4, "size_1": 1}


async def test_a_large_request_does_not_hold_up_small_ones_wrongly(server: Server):
    """BAT-05, mixed: 33 rows among requests of one row."""
    ones = [fp32([float(k)], (1, 1)) for k in range(20)]
    large = fp32([100.0 + k for k in range(33)], (33, 1))
    answers = await post_all(server.port, PATH, [*ones[:10], large, *ones[10:]])
    data = [answer.data for answer in answers]
    assert data.pop(10) == [100.0 + k for k in range(33)]
    assert data == [[float(k)] for k in range(20)]


async def test_requests_with_the_same_id_are_kept_apart(server: Server):
    """DTY-15: no id, an empty one, a long one, and the same one many times."""
    answers = await post_all(server.port, PATH, [fp32([float(k)], (1, 1), id="same") for k in range(50)])
    assert [answer.data for answer in answers] == [[float(k)] for k in range(50)]
    assert {answer.body["id"] for answer in answers} == {"same"}
    for given in ({}, {"id": ""}, {"id": None}):
        answer = await post(server.port, PATH, fp32([1.0], (1, 1), **given))
        assert answer.status == 200
        assert answer.body.get("id", "absent") is not None
    long = "x" * 10_240
    assert (await post(server.port, PATH, fp32([1.0], (1, 1), id=long))).body["id"] == long
    refused = await post(server.port, PATH, fp32([1.0], (1, 1), id=long + "x"))
    assert refused.status == 400
    assert refused.body["error"].startswith("id: expected a string of at most 10240 characters")
