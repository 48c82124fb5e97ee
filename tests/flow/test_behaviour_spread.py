"""Rows that wait are spread over the workers that idle: seen from outside, by executions, order and time."""

import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pytest
from clients import Counters, executing, folder, fp32, path, post, post_all
from moments import in_a_quiet_moment
from server import Server

pytestmark = pytest.mark.slow

EIGHT = "max_batch = 8"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "rows", batching=EIGHT, simulated="fixed_ms = 10\nper_row_ms = 20"),
        folder(root, "slow", batching=EIGHT, simulated="fixed_ms = 200\nper_row_ms = 40"),
        folder(root, "flat", batching=EIGHT, simulated="fixed_ms = 50"),
        folder(root, "waits", batching=f"{EIGHT}\nmax_wait_s = 0.02", simulated="fixed_ms = 5\nper_row_ms = 5"),
        folder(root, "faulty", batching=EIGHT, simulated="fixed_ms = 5\nper_row_ms = 5\nfaults = true"),
    ]
    with Server("minilm", *models, options=("--workers", "2")) as running:
        yield running


@in_a_quiet_moment
async def test_one_request_runs_on_both_workers_and_comes_back_in_order(server: Server):
    before = Counters(server, "rows")
    taken = []
    for _ in range(3):
        began = time.monotonic()
        answer = await post(server.port, path("rows"), fp32([float(k) for k in range(8)], (8, 1)))
        taken.append(time.monotonic() - began)
        assert answer.data == [float(k) for k in range(8)]
    assert before.since() == {"ok": 3, "rows": 24, "batches": 6, "size_4": 6}
    assert 0.09 <= min(taken) < 0.16, "0.09 s for four rows, 0.17 s for eight"


async def test_requests_that_come_at_once_are_shared_out(server: Server):
    before = Counters(server, "rows")
    answers = await post_all(server.port, path("rows"), [fp32([float(k)], (1, 1)) for k in range(8)])
    assert [answer.data for answer in answers] == [[float(k)] for k in range(8)]
    assert before.since()["batches"] >= 2


async def test_while_a_worker_is_busy_the_other_takes_all(server: Server):
    before = Counters(server, "slow")
    first = asyncio.ensure_future(post(server.port, path("slow"), fp32([1.0], (1, 1))))
    await executing(before)
    assert (await post(server.port, path("slow"), fp32([2.0] * 8, (8, 1)))).data == [2.0] * 8
    assert (await first).data == [1.0]
    assert before.since() == {"ok": 2, "rows": 9, "batches": 2, "size_1": 1, "size_8": 1}


@pytest.mark.parametrize("model", ["flat", "waits"])
async def test_not_where_it_would_not_help(server: Server, model: str):
    before = Counters(server, model)
    answer = await post(server.port, path(model), fp32([1.0] * 8, (8, 1)))
    assert answer.data == [1.0] * 8
    assert before.since() == {"ok": 1, "rows": 8, "batches": 1, "size_8": 1}


async def test_a_bad_row_fails_its_whole_request_and_no_other(server: Server):
    before = Counters(server, "faulty")
    bad = [1.0] * 7 + [-6001.0]
    assert (await post(server.port, path("faulty"), fp32(bad, (8, 1)))).status >= 400
    assert (await post(server.port, path("faulty"), fp32([1.0] * 8, (8, 1)))).data == [1.0] * 8
    assert before.since()["ok"] == 1


async def test_a_real_model_gives_the_same_rows_however_they_are_shared(server: Server):
    texts = [
        f"{word} ships sail to the old harbour" for word in ("Seven", "Two", "No", "All", "My", "Our", "Red", "Big")
    ]

    async def embed(rows: list[str]) -> np.ndarray:
        body = {"inputs": [{"name": "text", "shape": [len(rows)], "datatype": "BYTES", "data": rows}]}
        answer = await post(server.port, path("minilm"), body)
        return np.array(answer.data, np.float32).reshape(len(rows), -1)

    alone = np.concatenate([await embed([text]) for text in texts])
    before = Counters(server, "minilm")
    together = await embed(texts)
    assert np.min(np.sum(alone * together, axis=1)) > 0.999
    assert before.since()["batches"] >= 2
