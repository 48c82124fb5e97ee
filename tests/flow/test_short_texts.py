"""Short texts are tokenised in the server, others by a process; a client sees no difference but the time."""

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import psutil
import pytest
from clients import Answer, post, post_all
from server import Server

pytestmark = pytest.mark.slow

MINILM = "/v2/models/minilm/infer"
SHORT = "a small boat sails over the quiet lake"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("minilm") as running:
        yield running


def body_of(*texts: str) -> dict[str, Any]:
    return {"inputs": [{"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": list(texts)}]}


async def ask(server: Server, *texts: str) -> Answer:
    return await post(server.port, MINILM, body_of(*texts))


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^hybrid_preprocess_{name} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


async def test_both_ways_give_the_same_vector_and_are_counted_alike(server: Server):
    before = {name: metric(server, name) for name in ("items_total", "busy_seconds_total")}
    alone = await ask(server, SHORT)
    among_others = await ask(server, *[SHORT] * 6)  # too many rows to be made in the server
    assert alone.status == among_others.status == 200
    vector = np.array(alone.data)
    assert all(np.dot(vector, row) > 0.9999 for row in np.array(among_others.data).reshape(6, -1))
    assert alone.body["parameters"]["timings_us"]["preprocess"] > 0
    assert metric(server, "items_total") - before["items_total"] == 7
    assert metric(server, "busy_seconds_total") > before["busy_seconds_total"]


async def test_short_texts_are_answered_while_no_process_works(server: Server):
    assert server.process is not None
    children = psutil.Process(server.process.pid).children()
    processes = [child for child in children if "hybrid.preprocess.process" in child.cmdline()]
    assert processes
    for child in processes:
        os.kill(child.pid, signal.SIGSTOP)
    try:
        answers = await post_all(server.port, MINILM, [body_of(SHORT)])
        assert [answer.status for answer in answers] == [200]
    finally:
        for child in processes:
            os.kill(child.pid, signal.SIGCONT)
