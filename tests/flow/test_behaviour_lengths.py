"""Rows of different length through a real server: cut, batched with their like, put back in order; classes learned."""

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from clients import Client, Counters, executing, folder, fp32, post, post_all
from server import Server

pytestmark = pytest.mark.slow

MINILM = "/v2/models/minilm/infer"
WORDS = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "ships", "sail", "to", "old", "harbour")
PADDED = "max_batch = 8\npad_inputs = { x = 0 }\n"
CLASSES = PADDED + 'formation = "classes"\nsize_edges = [8, 64]'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "sorted", batching=PADDED, simulated="fixed_ms = 100\nper_token_ms = 1"),
        folder(root, "classes", batching=CLASSES, simulated="fixed_ms = 100"),
        folder(root, "fifo", batching=PADDED + 'formation = "fifo"', simulated="fixed_ms = 100"),
        folder(root, "learns", batching=PADDED + "max_classes = 2", simulated="per_token_ms = 0.02"),
    ]
    with Server("minilm", *models) as running:
        yield running


def texts(rows: list[str]) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "shape": [len(rows)], "datatype": "BYTES", "data": rows}]}


async def embed(server: Server, rows: list[str]) -> np.ndarray:
    answer = await post(server.port, MINILM, texts(rows))
    assert answer.status == 200, answer
    return np.array(answer.data, np.float32).reshape(len(rows), 384)


def model_of(server: Server, name: str) -> dict[str, Any]:
    return next(model for model in server.snapshot()["models"] if model["name"] == name)


async def test_many_texts_in_one_request_are_cut_by_length_and_answered_in_order(server: Server):
    draw = random.Random(4)
    rows = [" ".join(draw.choices(WORDS, k=draw.choice([1, 2, 3, 20, 21, 120, 200]))) for _ in range(30)]
    alone = np.concatenate([await embed(server, [row]) for row in rows])
    before, counted = model_of(server, "minilm"), Counters(server, "minilm")
    together = await embed(server, rows)
    assert np.min(np.sum(alone * together, axis=1)) > 0.999
    after = model_of(server, "minilm")
    padding, real = (after[key] - before[key] for key in ("pad_n", "real_n"))
    assert real == sum(len(row.split()) + 2 for row in rows)
    assert padding / (padding + real) < 0.12, "padded to the longest it would be 0.6"
    assert counted.since()["batches"] > 4
    assert after["pad_n"] == sum(entry["pad_n"] for entry in after["classes"])


async def lengths_of_batches(server: Server, model: str, lengths: list[int]) -> tuple[dict[str, int], dict[str, int]]:
    """Send one request, and while it runs one of each length; return counters and what was padded."""
    path, before, first_seen = f"/v2/models/{model}/infer", Counters(server, model), model_of(server, model)
    first = asyncio.ensure_future(post(server.port, path, fp32([0.0], (1, 1))))
    await executing(before)
    answers = await post_all(server.port, path, [fp32([float(n)] * n, (1, n)) for n in lengths])
    for n, answer in zip(lengths, answers, strict=True):
        assert answer.data[:n] == [float(n)] * n
        assert not any(answer.data[n:])
    await first
    seen = model_of(server, model)
    return before.since(), {key: seen[key] - first_seen[key] for key in ("pad_n", "real_n")}


async def test_neighbours_share_a_batch_and_short_rows_are_not_padded_to_long_ones(server: Server):
    counted, tokens = await lengths_of_batches(server, "sorted", [300, 2, 310, 3, 305, 4])
    assert tokens["real_n"] == 1 + 300 + 310 + 305 + 9
    assert tokens["pad_n"] < 40
    assert counted["batches"] >= 3


async def test_declared_classes_keep_their_own_queues(server: Server):
    counted, tokens = await lengths_of_batches(server, "classes", [60, 2, 62, 8, 61, 9])
    assert counted == {"ok": 7, "rows": 7, "batches": 3, "size_1": 1, "size_2": 1, "size_4": 1}
    assert tokens == {"pad_n": 6 + 2 + 0 + 1 + 53, "real_n": 1 + 60 + 2 + 62 + 8 + 61 + 9}
    classes = {entry["key"]: entry["items_n"] for entry in model_of(server, "classes")["classes"]}
    assert classes == {"8": 3, "64": 4}


async def test_fifo_pads_to_the_longest(server: Server):
    counted, tokens = await lengths_of_batches(server, "fifo", [60, 2, 3])
    assert counted["batches"] == 2
    assert tokens == {"pad_n": 58 + 57, "real_n": 1 + 65}


async def test_classes_are_learned_from_requests_and_shown_in_the_plan(server: Server):
    def plan() -> dict[str, Any]:
        status, plans = server.get("/hybrid/v1/plan")
        assert status == 200
        return next(entry for entry in plans if entry["model"] == "learns")

    assert plan()["size_edges"] == []
    bodies = [fp32([1.0] * n, (1, n)) for n in (5, 6, 7, 100)]

    async def send(count: int) -> None:
        async with Client(server.port) as client:
            for number in range(count):
                assert (await client.post("/v2/models/learns/infer", bodies[number % 4])).status == 200

    await asyncio.gather(*(send(505) for _ in range(4)))
    assert plan()["size_edges"] == [8, 104]
    assert plan()["reasons"]["size_edges"].startswith("Learned from 2000 requests: ")
    seen = model_of(server, "learns")
    assert seen["in_force"]["class_edges"] == [8, 104]
    assert {entry["key"] for entry in seen["classes"]} == {"all", "8", "104"}
    assert sum(entry["arrived_n"] for entry in seen["classes"]) == 2020
