"""One answer that cannot be given must not keep the others of its batch from theirs."""

import asyncio
import time

import numpy as np

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import LaneKey, Outcome, Ticket
from hybrid.batching.scheduler import Scheduler
from hybrid.config import ModelSettings
from hybrid.messages import FailureKind, Tensor
from hybrid.workers import wire
from hybrid.workers.pool import Output


class FakePool:
    model = ModelSettings(name="m")
    listener = None

    def __init__(self):
        self.orders = []

    def send(self, order, pieces, pad):
        self.orders.append(order)


async def test_an_answer_that_raises_is_logged_and_the_next_one_is_given(caplog):
    pool = FakePool()
    scheduler = Scheduler(BatchPolicy(), pool, {}, asyncio.get_running_loop(), time.monotonic)
    answered = []

    def refuse(ticket):
        raise ZeroDivisionError

    for value, on_done in ((1.0, refuse), (2.0, answered.append), (3.0, refuse), (4.0, answered.append)):
        payload = (Tensor("x", "FP32", np.full((1, 1), value, np.float32)),)
        ticket = Ticket(rows=1, payload=payload, nbytes=4, lane_key=LaneKey(("x",)), deadline=1e9, on_done=on_done)
        scheduler.submit(ticket)
    scheduler.on_worker_ready(1, 1, wire.Ready(None))
    await asyncio.sleep(0)
    (order,) = pool.orders
    rows = np.arange(1.0, 5.0, dtype=np.float32).reshape(4, 1)
    scheduler.on_batch_ran(order.id, [Output("y", "FP32", rows, True)], wire.Ran(order.id, 0, (), 0.0, 0.0, 0.0))
    assert [float(ticket.result[0].array[0, 0]) for ticket in answered] == [2.0, 4.0]
    assert all(ticket.outcome is Outcome.OK for ticket in answered)
    assert caplog.text.count("could not be answered") == 2
    assert scheduler.idle


async def test_a_failed_batch_is_logged_with_its_model(caplog):
    pool, answered = FakePool(), []
    scheduler = Scheduler(BatchPolicy(), pool, {}, asyncio.get_running_loop(), time.monotonic)
    payload = (Tensor("x", "FP32", np.ones((1, 1), np.float32)),)
    scheduler.submit(
        Ticket(rows=1, payload=payload, nbytes=4, lane_key=LaneKey(("x",)), deadline=1e9, on_done=answered.append)
    )
    scheduler.on_worker_ready(1, 1, wire.Ready(None))
    await asyncio.sleep(0)
    (order,) = pool.orders
    scheduler.on_batch_failed(order.id, FailureKind.INPUT, "index out of range")
    assert caplog.messages == [f"m: batch {order.id} of 1 rows failed (input): index out of range"]
    assert [ticket.outcome for ticket in answered] == [Outcome.FAILED]
