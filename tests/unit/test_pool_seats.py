"""Who comes after whom on the seats of a pool. No worker is a process."""

import asyncio
import errno
import os

import numpy as np
import pytest
from model_world import ModelWorld
from msgspec.structs import replace

from hybrid.config import ModelSettings, WorkerSettings
from hybrid.messages import Tensor
from hybrid.workers import wire
from hybrid.workers.arena import Slab
from hybrid.workers.pack import Rows
from hybrid.workers.pool import BatchOrder, WorkerPool

LIMIT = 2 << 20


@pytest.fixture
async def make_pool(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    world = ModelWorld(monkeypatch)
    loop = asyncio.get_running_loop()
    pools = []

    def make(instances=1):
        settings = ModelSettings(name="m", workers=WorkerSettings(rss_limit_bytes=LIMIT))
        pool = WorkerPool(settings, replace(world.plan, instances=instances), None, loop, loop.time)
        pools.append(pool)
        pool.start()
        for child in world.children:
            child.ready()
            child.rss_bytes = 2 * LIMIT
        return pool, world.children

    yield make
    for pool in pools:
        pool._stopping = True
        pool._ticker.cancel()
        for member in pool.members.values():
            member.close()


def states(pool):
    return [member.state.value for member in pool.members.values()]


async def test_a_seat_is_filled_again_while_its_old_worker_still_finishes(make_pool):
    pool, children = make_pool()
    pool.send(BatchOrder(1, 1, 1, 60.0, 600.0), [Rows((Tensor("x", "FP32", np.zeros((1, 1), np.float32)),), 0, 1)], {})
    pool._tick()
    children[1].ready()
    assert (states(pool), pool.ready) == (["retiring", "ready"], 1)
    children[1].gone(own=True)
    await asyncio.sleep(0.01)
    assert states(pool) == ["retiring", "starting"]  # and not only once the batch of the old one is done
    children[2].ready()
    children[0].gone("stopped")
    await asyncio.sleep(0.01)
    assert (states(pool), pool.ready) == (["ready"], 1)


async def test_workers_that_grow_together_are_replaced_few_at_a_time(make_pool):
    pool, children = make_pool(instances=5)
    pool._tick()
    assert states(pool) == ["ready"] * 5 + ["starting"] * 2
    children[5].ready()
    assert children[0].sent == [wire.Stop()]
    children[0].gone("stopped")
    pool._tick()
    assert states(pool) == ["ready"] * 5 + ["starting"] * 2


async def test_a_successor_for_which_there_is_no_memory_is_tried_once_in_a_while(make_pool, monkeypatch):
    pool, children = make_pool()

    def refuse():
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Slab, "create", refuse)
        for _ in range(20):
            pool._tick()
    assert pool.counts.seat(0).restarts_n == 0
    await asyncio.sleep(0.01)
    assert len(children) == 1
    assert (states(pool), pool.failing) == (["ready"], False)
