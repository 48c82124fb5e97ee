"""The pool of one model's workers, without a server around it."""

import asyncio
import errno
import os
import resource
import signal
import time

import numpy as np
import pytest
from children import cause_of, nothing_leaks, quiet_hub, until

from hybrid.config import ModelSettings, SimulatedSettings, WorkerSettings
from hybrid.messages import Tensor
from hybrid.planner.types import Plan
from hybrid.workers.arena import Slab
from hybrid.workers.pack import Rows
from hybrid.workers.pool import BatchOrder, WorkerPool

pytestmark = pytest.mark.slow


class Heard:
    """A listener that writes down what it is told."""

    def __init__(self):
        self.said, self.ran, self.failed = [], {}, {}

    def on_worker_ready(self, worker, slots, ready):
        self.said.append(f"ready {worker} {slots}")

    def on_worker_retired(self, worker):
        self.said.append(f"retired {worker}")

    def on_worker_lost(self, worker, end):
        self.said.append(f"lost {worker} {cause_of(end)}")

    def on_no_hope(self):
        self.said.append("no hope")

    def on_batch_ran(self, batch, outputs, ran):
        self.ran[batch] = outputs

    def on_batch_failed(self, batch, kind, text):
        self.failed[batch] = (kind.value, text)


@pytest.fixture
async def make_pool():
    pools = []
    with nothing_leaks(), quiet_hub() as hub:

        async def make(simulated=None, depth=1, instances=1, ready=True, **workers):
            settings = ModelSettings(
                name="m", simulated=simulated or SimulatedSettings(faults=True), workers=WorkerSettings(**workers)
            )
            plan = Plan(
                "m", "cpu", "simulated", instances, 1, 4, 0.0, 4, "dynamic", 99, 10**9, 0, (), pipeline_depth=depth
            )
            pool = WorkerPool(settings, plan, hub, asyncio.get_running_loop(), time.monotonic)
            pool.listener = heard = Heard()
            pools.append(pool)
            pool.start()
            if ready:
                await until(lambda: pool.ready == instances)
            return pool, heard

        yield make
        for pool in pools:
            await pool.stop(2.0)
            assert pool.members == {}


def send(pool, batch, values, worker=None):
    worker = next(iter(pool.members)) if worker is None else worker
    array = np.array(values, np.float32).reshape(-1, 1)
    tensors = (Tensor("x", "FP32", array),)
    pool.send(BatchOrder(batch, worker, len(array), 0.1, 5.0), [Rows(tensors, 0, len(array))], {})


async def test_batches_come_back(make_pool):
    pool, heard = await make_pool()
    for batch in range(1, 20):
        send(pool, batch, [batch, batch + 0.5])
        await until(lambda batch=batch: batch in heard.ran)
    assert all(out[0].array.tolist() == [[batch], [batch + 0.5]] for batch, out in heard.ran.items())
    assert heard.said == ["ready 1 1"]
    heard.ran[1][0].array[0] = 77.0  # the caller's own: the slab has served 18 other batches since
    assert heard.ran[2][0].array[0] == 2.0


async def test_two_slots_of_one_worker_do_not_share_memory(make_pool):
    pool, heard = await make_pool(SimulatedSettings(fixed_ms=30, faults=True), depth=2)
    assert heard.said == ["ready 1 2"]
    send(pool, 1, [1.0])
    send(pool, 2, [2.0])
    await until(lambda: len(heard.ran) == 2)
    assert [heard.ran[batch][0].array.tolist() for batch in (1, 2)] == [[[1.0]], [[2.0]]]


async def test_results_that_were_sent_before_the_end_still_count(make_pool):
    pool, heard = await make_pool(depth=2)
    send(pool, 1, [1.0])
    send(pool, 2, [-6002.0])  # the worker exits with the second, right after it has answered the first
    await until(lambda: len(heard.said) == 4)
    assert heard.ran[1][0].array.tolist() == [[1.0]]
    # Retired first, so that no batch is given to what is as good as gone.
    assert heard.said == ["ready 1 2", "retired 1", "lost 1 exit code 3", "ready 2 2"]


async def test_shared_memory_that_is_not_to_be_had_leaves_the_worker_as_it_was(make_pool):
    pool, heard = await make_pool()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(MemoryError):
            send(pool, 1, np.ones(1 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    send(pool, 2, [2.0])
    await until(lambda: 2 in heard.ran)


async def test_no_descriptors_for_a_new_worker(make_pool, monkeypatch):
    """The seat is tried again until there are some."""
    pool, heard = await make_pool()
    tries = []

    def refuse():
        tries.append(time.monotonic())
        if len(tries) <= 2:
            raise OSError(errno.EMFILE, "Too many open files")
        return create()

    create = Slab.create
    monkeypatch.setattr(Slab, "create", refuse)
    os.kill(pool.members[1].child.pid, signal.SIGKILL)
    await until(lambda: heard.said[-1].startswith("ready") and len(heard.said) > 1)
    assert len(tries) >= 4
    assert "Too many open files" in pool.seats[0].last_end
    assert tries[2] - tries[1] > tries[1] - tries[0]  # ever longer pauses


async def test_stop_waits_for_the_batch_in_hand_but_not_for_ever(make_pool):
    pool, heard = await make_pool(SimulatedSettings(fixed_ms=200, faults=True))
    send(pool, 1, [1.0])
    await asyncio.sleep(0.05)
    began = time.monotonic()
    await pool.stop(5.0)
    assert heard.ran[1][0].array.tolist() == [[1.0]]
    assert time.monotonic() - began < 2.0

    pool, heard = await make_pool()
    send(pool, 1, [-6003.0])
    began = time.monotonic()
    await pool.stop(0.5)
    assert 0.4 < time.monotonic() - began < 5.0
    assert heard.ran == {}


async def test_stop_while_starting_is_at_once(make_pool):
    pool, heard = await make_pool(SimulatedSettings(start_s=30.0), ready=False)
    await asyncio.sleep(0.3)
    began = time.monotonic()
    await pool.stop(10.0)
    assert time.monotonic() - began < 5.0
    assert not [text for text in heard.said if text.startswith("ready")]


async def test_a_start_that_takes_too_long_and_hope_that_ends(make_pool):
    pool, heard = await make_pool(SimulatedSettings(start_s=30.0), ready=False, start_timeout_s=0.05)
    await until(lambda: "no hope" in heard.said, 30.0)
    assert pool.failing
    assert pool.first_error == "not ready after 0.05 s"
