"""Which requests run together, counted by executions; rows of `field-reports.md` are named."""

import asyncio
import time
from collections.abc import Iterator

import pytest
from clients import Client, Counters, executing, folder, fp32, path, post, post_all
from moments import in_a_quiet_moment
from server import Server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "slow", batching="max_batch = 8", simulated="fixed_ms = 200"),
        folder(root, "wait", batching="max_batch = 8\nmax_wait_s = 0.05", simulated="fixed_ms = 1"),
        folder(root, "fast", batching="max_batch = 8", simulated="fixed_ms = 5"),
        folder(root, "four", batching="max_batch = 4\nmax_wait_s = 0.3", simulated="fixed_ms = 0.5"),
        folder(root, "early", batching="max_batch = 8\nmax_wait_s = 5\nearly_trigger = 3", simulated=""),
        folder(root, "off", batching="enabled = false", simulated="fixed_ms = 5"),
        folder(root, "single", batching="max_batch = 1", simulated="fixed_ms = 40"),
    ]
    with Server(*models) as running:
        yield running


async def test_what_piles_up_while_the_worker_is_busy_leaves_together(server: Server):
    """BAT-01."""
    before = Counters(server, "slow")
    first = asyncio.ensure_future(post(server.port, path("slow"), fp32([0.0], (1, 1))))
    await executing(before)
    rest = await post_all(server.port, path("slow"), [fp32([float(k)], (1, 1)) for k in range(1, 8)])
    answers = [await first, *rest]
    assert [answer.data for answer in answers] == [[float(k)] for k in range(8)]
    assert before.since() == {"ok": 8, "rows": 8, "batches": 2, "size_1": 1, "size_7": 1}
    stats = server.get("/v2/models/slow/stats")[1]["model_stats"][0]
    assert (stats["execution_count"], stats["inference_count"]) == (2, 8)


async def test_odd_row_counts_leave_when_the_delay_is_over(server: Server):
    """BAT-02: and the delay counts from the oldest."""
    before = Counters(server, "wait")
    began = time.monotonic()
    a = asyncio.ensure_future(post(server.port, path("wait"), fp32([1.0] * 3, (3, 1))))
    await asyncio.sleep(0.02)
    b = asyncio.ensure_future(post(server.port, path("wait"), fp32([2.0] * 4, (4, 1))))
    times = [(await answer).at - began for answer in (a, b)]
    assert min(times) > 0.049
    assert max(times) < 1.0  # nothing else comes that would fill the batch
    assert before.since() == {"ok": 2, "rows": 7, "batches": 1, "size_7": 1}


async def test_the_limit_counts_rows_not_requests(server: Server):
    """BAT-04."""
    before = Counters(server, "fast")
    answers = await post_all(server.port, path("fast"), [fp32([float(k)] * 6, (6, 1)) for k in range(5)])
    assert [answer.data for answer in answers] == [[float(k)] * 6 for k in range(5)]
    assert before.since() == {"ok": 5, "rows": 30, "batches": 5, "size_6": 5}


@in_a_quiet_moment
async def test_a_full_batch_leaves_at_once_round_after_round(server: Server):
    """BAT-08."""
    before = Counters(server, "four")
    clients = [await Client(server.port).__aenter__() for _ in range(4)]
    longest = 0.0
    for turn in range(200):
        began = time.monotonic()
        answers = await asyncio.gather(
            *(client.post(path("four"), fp32([turn * 4.0 + k], (1, 1))) for k, client in enumerate(clients))
        )
        assert [answer.data for answer in answers] == [[turn * 4.0 + k] for k in range(4)]
        longest = max(longest, time.monotonic() - began)
    for client in clients:
        await client.__aexit__()
    assert before.since() == {"ok": 800, "rows": 800, "batches": 200, "size_4": 200}
    assert longest < 0.25, "a full batch waited for the delay"


async def test_the_early_trigger_releases(server: Server):
    before = Counters(server, "early")
    began = time.monotonic()
    await post_all(server.port, path("early"), [fp32([1.0], (1, 1))] * 3)
    assert time.monotonic() - began < 1
    model = next(m for m in server.snapshot()["models"] if m["name"] == "early")
    assert model["classes"][0]["released"]["early_trigger_n"] == 1
    assert before.since() == {"ok": 3, "rows": 3, "batches": 1, "size_3": 1}


async def test_shapes_are_grouped_not_mixed_and_not_split(server: Server):
    """SHP-01: two lengths interleaved."""
    before = Counters(server, "fast")
    lengths = [16, 20] * 32
    answers = await post_all(server.port, path("fast"), [fp32([float(k)] * n, (1, n)) for k, n in enumerate(lengths)])
    for k, (length, answer) in enumerate(zip(lengths, answers, strict=True)):
        assert answer.data == [float(k)] * length
    since = before.since()
    assert since["rows"] == since["ok"] == 64
    assert since["batches"] <= 16  # 8 full ones at best, and some that left early because a worker was idle


async def test_batching_off_runs_every_row_alone(server: Server):
    """BAT-09: and a request of many rows is still answered in order."""
    before = Counters(server, "off")
    answers = await post_all(server.port, path("off"), [fp32([float(k)], (1, 1)) for k in range(6)])
    assert [answer.data for answer in answers] == [[float(k)] for k in range(6)]
    assert (await post(server.port, path("off"), fp32([1.0, 2.0, 3.0], (3, 1)))).data == [1.0, 2.0, 3.0]
    assert before.since() == {"ok": 7, "rows": 9, "batches": 9, "size_1": 9}
    plan = next(p for p in server.get("/hybrid/v1/plan")[1] if p["model"] == "off")
    assert (plan["batching"], plan["max_batch"]) == ("off", 1)


async def test_the_urgent_overtake(server: Server):
    """Priority 1 before 5 (not said) before 9, in each the order of arrival."""
    before = Counters(server, "single")
    order: list[tuple[int, int]] = []

    async def one(priority: int, number: int) -> None:
        said = {"parameters": {"priority": priority}} if priority else {}
        answer = await post(server.port, path("single"), fp32([1.0], (1, 1), **said))
        assert answer.status == 200, answer
        order.append((priority or 5, number))

    tasks = [asyncio.ensure_future(one(9, -1))]
    await executing(before)
    for number in range(3):
        for priority in (9, 0, 1):
            tasks.append(asyncio.ensure_future(one(priority, number)))
            await asyncio.sleep(0.002)
    await asyncio.gather(*tasks)
    assert order[1:] == sorted(order[1:])


async def test_32_closed_loop_clients_share_batches(server: Server):
    """SML-03: mean batch well above 1, and the queue's own time says why an answer took as long as it did."""
    before = Counters(server, "fast")
    ends = time.monotonic() + 2
    done = 0

    async def one() -> None:
        nonlocal done
        async with Client(server.port) as client:
            while time.monotonic() < ends:
                answer = await client.post(path("fast"), fp32([1.0], (1, 1)))
                assert answer.status == 200
                done += 1

    await asyncio.gather(*(one() for _ in range(32)))
    since = before.since()
    assert since["rows"] / since["batches"] > 6
    assert done / 2 > 2 / 0.005, "throughput is hardly above what one client at a time could get"
