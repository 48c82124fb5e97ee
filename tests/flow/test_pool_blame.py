"""Whether a worker's end is told as its own doing: what it ran is held against content only then."""

import asyncio
import os
import signal
import time

import numpy as np
import pytest
from children import nothing_leaks, quiet_hub, until

from hybrid.config import ModelSettings, SimulatedSettings, WorkerSettings
from hybrid.engines import simulated_engine as sim
from hybrid.messages import Tensor
from hybrid.planner.types import Plan
from hybrid.workers.pack import Rows
from hybrid.workers.pool import BatchOrder, WorkerPool

pytestmark = pytest.mark.slow


class Ends:
    """A listener that keeps how workers ended."""

    def __init__(self):
        self.seen = []

    def on_worker_lost(self, worker, end):
        self.seen.append(end)

    def __getattr__(self, name):
        return lambda *told: None


@pytest.mark.parametrize(
    ("marker", "sent", "own", "says"),
    [
        (sim.CRASH, None, True, "exit code 3"),
        (sim.ABORT, None, True, "SIGABRT"),
        (sim.HANG, None, True, "hung"),
        (sim.HANG, signal.SIGSTOP, False, "hung"),  # whoever stops it makes it hang
        (sim.HANG, signal.SIGKILL, False, "SIGKILL"),
        (sim.HANG, signal.SIGUSR1, False, "SIGUSR1"),
        (sim.HANG, signal.SIGSEGV, True, "SIGSEGV"),
    ],
)
async def test_who_brought_it_about(marker, sent, own, says):
    settings = ModelSettings(
        name="m", simulated=SimulatedSettings(faults=True), workers=WorkerSettings(heartbeat_timeout_s=30.0)
    )
    plan = Plan("m", "cpu", "simulated", 1, 1, 4, 0.0, 4, "dynamic", 99, 10**9, 0, ())
    with nothing_leaks(), quiet_hub() as hub:
        pool = WorkerPool(settings, plan, hub, asyncio.get_running_loop(), time.monotonic)
        pool.listener = ends = Ends()
        pool.start()
        try:
            await until(lambda: pool.ready == 1)
            tensors = (Tensor("x", "FP32", np.array([[marker]], np.float32)),)
            pool.send(BatchOrder(1, next(iter(pool.members)), 1, 0.1, 0.6), [Rows(tensors, 0, 1)], {})
            if sent is not None:
                await asyncio.sleep(0.1)
                os.kill(pool.members[1].child.pid, sent)
            await until(lambda: ends.seen)
        finally:
            await pool.stop(2.0)
    assert says in ends.seen[0].cause
    assert ends.seen[0].own is own
