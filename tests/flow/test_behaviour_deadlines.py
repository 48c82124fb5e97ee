"""Deadlines are kept while every worker is busy; rows of `field-reports.md` are named."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from clients import Answer, Client, Counters, each, executing, folder, fp32, path, post
from moments import in_a_quiet_moment
from server import Server

from hybrid.engines.simulated_engine import SLOW

pytestmark = pytest.mark.slow

HEADER = "X-Request-Timeout-Ms"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(
            root,
            "stuck",
            batching="max_batch = 1",
            simulated="faults = true",
            extra="hang_min_s = 30",
            head='version = "3"',
        ),
        folder(root, "single", batching="max_batch = 1", simulated="fixed_ms = 150"),
        folder(root, "quick", batching="max_batch = 8", simulated=""),
        folder(root, "held", batching="max_batch = 8\nmax_wait_s = 2", simulated="fixed_ms = 1"),
    ]
    with Server(*models, config="[server]\ndefault_timeout_s = 20\nmax_timeout_s = 100\n") as running:
        yield running


def micros(seconds: float) -> dict[str, Any]:
    return {"parameters": {"timeout": round(seconds * 1e6)}}


async def timed(server: Server, model: str, body: Any, headers: dict[str, str] | None = None) -> tuple[Answer, float]:
    async with Client(server.port) as client:
        began = time.monotonic()
        answer = await client.post(path(model), body, headers)
        return answer, answer.at - began


@asynccontextmanager
async def awake(server: Server) -> AsyncIterator[None]:
    """Other requests come meanwhile. Some virtual machines take 50 ms for the first steps after a third of a second."""

    async def ask() -> None:
        async with Client(server.port) as client:
            while True:
                await client.post(path("quick"), fp32([1.0], (1, 1)))
                await asyncio.sleep(0.002)

    asking = asyncio.create_task(ask())
    try:
        yield
    finally:
        asking.cancel()
        await asyncio.wait([asking])


@in_a_quiet_moment
async def test_the_answer_comes_at_the_deadline_while_the_worker_is_busy_for_5_s(server: Server):
    """DLN-01."""
    before = Counters(server, "stuck")
    async with Client(server.port) as busy:
        busy.send(path("stuck"), fp32([SLOW], (1, 1)))
        await executing(before)
        cases = {0.5: micros(0.5), 0.25: micros(0.25), 0.75: micros(0.75)}
        answers = await each(cases, lambda limit: timed(server, "stuck", fp32([1.0], (1, 1), **cases[limit])))
        by_header = await timed(server, "stuck", fp32([1.0], (1, 1)), {HEADER: "500"})
        for limit, (answer, took) in zip([*cases, 0.5], [*answers, by_header], strict=True):
            assert answer.status == 504
            assert answer.body["code"] == "deadline_exceeded"
            assert "waited in the queue" in answer.body["error"]
            assert took == pytest.approx(limit, abs=0.06)
        assert before.since() == {"batches": 1, "rows": 1, "size_1": 1, "late": 4}
        assert (await busy.read()).status == 200  # the slow one has its 20 s


@in_a_quiet_moment
async def test_what_has_expired_is_skipped_and_the_next_is_served_promptly(server: Server):
    """DLN-03."""
    before = Counters(server, "single")
    late = [asyncio.ensure_future(timed(server, "single", fp32([1.0], (1, 1), **micros(0.2)))) for _ in range(20)]
    await asyncio.sleep(0.1)
    live, took = await timed(server, "single", fp32([2.0], (1, 1)))
    answers = await asyncio.gather(*late)
    assert live.data == [2.0]
    assert took < 0.55  # at most the rest of two executions and its own
    statuses = [answer.status for answer, _ in answers]
    assert set(statuses) == {200, 504}
    assert max(took for _, took in answers) < 0.26
    since = before.since()
    assert since["rows"] <= 3
    assert since["late"] == statuses.count(504)


@in_a_quiet_moment
async def test_a_deadline_that_passes_while_it_executes_is_504_too(server: Server):
    """DLN-05: waiting, executing, and in a lane that holds back for a fuller batch."""
    answer, took = await timed(server, "single", fp32([1.0], (1, 1), **micros(0.05)))
    assert answer.status == 504
    assert "while the request executed" in answer.body["error"]
    assert took == pytest.approx(0.05, abs=0.04)
    await timed(server, "single", fp32([1.0], (1, 1)))  # the worker is free again
    async with awake(server):
        held, took = await timed(server, "held", fp32([1.0], (1, 1), **micros(0.3)))
    assert held.status == 200, "a lane that waits for more must leave in time for its earliest deadline"
    assert took < 0.3


@pytest.mark.parametrize(
    ("parameter", "header", "limit"), [(0.1, "3000", 0.1), (3.0, "100", 0.1), (0.1, "0", 0.1), (0, "100", 0.1)]
)
@in_a_quiet_moment
async def test_the_earlier_of_parameter_and_header_wins(server: Server, parameter: float, header: str, limit: float):
    before = Counters(server, "single")
    busy = asyncio.ensure_future(post(server.port, path("single"), fp32([1.0], (1, 1))))
    await executing(before)
    answer, took = await timed(server, "single", fp32([1.0], (1, 1), **micros(parameter)), {HEADER: header})
    assert (answer.status, took) == (504, pytest.approx(limit, abs=0.04))
    await busy


@pytest.mark.parametrize("value", [0, 1e6, 86_400_000_000])
async def test_timeouts_that_mean_something(server: Server, value: float):
    """DLN-04: 0 is unset (the server's default applies), and a day is the most."""
    answer = await post(server.port, path("quick"), fp32([1.0], (1, 1), parameters={"timeout": value}))
    assert answer.status == (400 if isinstance(value, float) else 200), answer


@pytest.mark.parametrize("value", [-1, None, "abc", 1e12, 10**12, 1.5, [1], True])
async def test_nonsense_in_the_parameter_is_refused_by_name(server: Server, value: object):
    """DLN-04."""
    answer = await post(server.port, path("quick"), fp32([1.0], (1, 1), parameters={"timeout": value}))
    assert answer.status == 400
    assert answer.body["error"].startswith("parameters.timeout: expected microseconds, a whole number from 0")


@pytest.mark.parametrize("value", ["-1", "null", "abc", "1e12", "nan", "inf", "", "5s", "0x10"])
async def test_nonsense_in_the_header_is_refused_by_name(server: Server, value: str):
    """DLN-04."""
    answer = await post(server.port, path("quick"), fp32([1.0], (1, 1)), {HEADER: value})
    assert answer.status == 400
    assert answer.body["error"].startswith(f"header {HEADER}: expected milliseconds as a number from 0, got")


@pytest.mark.parametrize("value", ["0", "1000", "250.5", "999999999999"])
async def test_sensible_headers_are_taken(server: Server, value: str):
    assert (await post(server.port, path("quick"), fp32([1.0], (1, 1)), {HEADER: value})).status == 200


@pytest.mark.parametrize("value", [0, -1, 9, 1.5, "1", None])
async def test_priorities(server: Server, value: object):
    answer = await post(server.port, path("quick"), fp32([1.0], (1, 1), parameters={"priority": value}))
    assert answer.status == (200 if value in (0, 9) else 400)
