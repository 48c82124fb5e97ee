"""Trouble that no request has caused is held against none: workers that somebody kills, and one that stands still."""

import asyncio
import json
import os
import signal
import time
from collections import Counter

import psutil
import pytest
from abuse import assert_all_well, model_folder, pids, restarts, seats_ready
from clients import Answer, Client, fp32
from server import Server

pytestmark = pytest.mark.slow

MIB = 1 << 20


async def ask(client: Client, body: bytes) -> Answer:
    return await asyncio.wait_for(client.post("/v2/models/m/infer", body), 30)


def killed_under_load(server: Server, seconds: float) -> Counter[str]:
    """32 clients that all send the same body, while a worker is killed with its batch every half second."""
    seen: Counter[str] = Counter()
    ends = time.monotonic() + seconds
    body = json.dumps(fp32([1.0], [1, 1])).encode()

    async def one() -> None:
        async with Client(server.port) as client:
            while time.monotonic() < ends:
                answer = await ask(client, body)
                seen["ok" if answer.status == 200 else answer.body["code"]] += 1

    async def killer() -> None:
        while time.monotonic() < ends:
            busy = [worker["pid"] for worker in await asyncio.to_thread(server.workers) if worker["state"] == "busy"]
            if busy:
                os.kill(busy[0], signal.SIGKILL)
            await asyncio.sleep(0.5)

    async def both() -> None:
        await asyncio.gather(killer(), *(one() for _ in range(32)))

    asyncio.run(both())
    return seen


def test_equal_bodies_under_kill_9_are_never_refused_as_poison(tmp_path):
    text = "[simulated]\nfixed_ms = 80\n[batching]\nmax_batch = 8\n[workers]\ninstances = 2\n"
    with Server(model_folder(tmp_path / "m", text)) as server:
        seen = killed_under_load(server, 6.0)
        print(dict(seen))
        assert set(seen) <= {"ok", "worker_lost"}
        assert seen["worker_lost"] > 0, "some were hit twice, or this shows nothing"
        assert seen["ok"] > 50
        assert restarts(server) >= 6
        assert_all_well(server, "m", 2)


STALLED = """
[simulated]
[workers]
instances = 1
heartbeat_timeout_s = 60
hang_min_s = 60
"""


def test_bodies_for_a_stalled_worker_do_not_pile_up(tmp_path):
    """MEM-09: 500 clients with 1 MB each, while the only worker stands still."""
    config = f"[server.http]\nmax_buffered_bytes = {40 * MIB}\nbody_timeout_s = 10\n"
    body = json.dumps(fp32([0.5] * 170_000, [1, 170_000])).encode()
    body += b" " * (MIB - len(body))
    with Server(model_folder(tmp_path / "m", STALLED), config=config) as server:
        assert server.infer_x("m", 1.0)[0] == 200
        main, worker = psutil.Process(server.process.pid), pids(server)["w0"]
        before, highest = main.memory_info().rss, 0
        os.kill(worker, signal.SIGSTOP)
        refused_s: list[float] = []

        async def one(opened: asyncio.Semaphore) -> int:
            async with opened, Client(server.port) as client:
                began = time.monotonic()
                answer = await ask(client, body)
                if answer.status != 200:
                    refused_s.append(time.monotonic() - began)
                    assert (answer.status, answer.body["code"]) == (503, "not_ready")
                    assert answer.headers["retry-after"] == "1"
                return answer.status

        async def crowd() -> list[int]:
            nonlocal highest
            gate = asyncio.Semaphore(500)
            tasks = [asyncio.create_task(one(gate)) for _ in range(500)]
            ends = time.monotonic() + 30
            while sum(task.done() for task in tasks) < 450 and time.monotonic() < ends:
                highest = max(highest, main.memory_info().rss)
                await asyncio.sleep(0.02)
            live = await asyncio.to_thread(server.get, "/v2/health/live")
            assert live[0] == 200
            os.kill(worker, signal.SIGCONT)
            return await asyncio.gather(*tasks)

        statuses = Counter(asyncio.run(crowd()))
        print(f"{dict(statuses)}, grew by {(highest - before) / MIB:.0f} MiB, refused within {max(refused_s):.2f} s")
        assert statuses[503] >= 450
        assert statuses[200] >= 20
        assert highest - before < 150 * MIB
        server.until(lambda: seats_ready(server, 1), what="the worker goes on")
        assert server.snapshot()["front"]["http"]["refused_bodies_n"] == statuses[503]
        server.until(lambda: server.snapshot()["front"]["bytes_queued"] == 0, what="all bodies are gone")
        assert pids(server)["w0"] == worker
        assert server.post("/v2/models/m/infer", body)[0] == 200
        assert_all_well(server, "m")
