"""The driver's one timer, on the loop that the server runs on."""

from types import SimpleNamespace
from typing import Any

import pytest
import uvloop

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import Outcome, Ticket
from hybrid.batching.scheduler import Scheduler
from hybrid.config import WorkerSettings


@pytest.mark.parametrize("left_s", [0.0, 0.0001, 0.0004, 0.0006, 0.02])
def test_deadlines_however_near_are_kept(left_s: float):
    """uvloop gives a plain handle for less than half a millisecond, and one that is due is looked at again."""
    loop = uvloop.new_event_loop()
    faults: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: faults.append(context))
    pool: Any = SimpleNamespace(model=SimpleNamespace(workers=WorkerSettings()), listener=None)
    scheduler = Scheduler(BatchPolicy(), pool, {}, loop, loop.time)
    ended: list[Outcome | None] = []
    try:
        for more_s in (0.0, 0.0002, -0.0001):
            deadline = loop.time() + left_s + more_s
            ticket = Ticket(rows=1, payload=(), deadline=deadline, on_done=lambda ticket: ended.append(ticket.outcome))
            scheduler.submit(ticket)
            loop.call_soon(scheduler._pump)
        loop.call_later(0.1 if left_s > 0.01 else 0.02, loop.stop)
        loop.run_forever()
    finally:
        loop.close()
    assert not faults
    assert ended == [Outcome.EXPIRED] * 3
