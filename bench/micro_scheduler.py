"""What one request costs in the batching core: submit, expire, pump, wake_at and its share of complete.

The driver's loop without the driver: every client sends its next request as soon as it has its answer, so the queue
stays at its depth. CPU time of this process, best of several rounds (neighbours only ever make it slower).

    python -m bench.micro_scheduler [--requests 20000] [--rounds 5]
"""

import argparse
import gc
import random
import sys
import time
from collections import deque

import msgspec
from msgspec import Struct

from hybrid.batching.policy import BatchPolicy
from hybrid.batching.queue import LaneKey, Ticket
from hybrid.batching.state import BatchState

_TICK_S = 1e-4  # virtual time per batch
_TIMEOUT_S = 60.0  # every request has a deadline in the default settings


class Case(Struct, frozen=True):
    """One load: `queue` requests are open at any time, spread over `lanes` size classes."""

    name: str
    queue: int
    lanes: int = 1
    workers: int = 2
    slots: int = 1
    max_batch: int = 8
    max_wait_s: float = 0.0
    sorted: bool = False  # lengths 4..256 in one lane, batches of neighbours
    goal_us: float | None = None


class Measured(Struct, frozen=True):
    """Microseconds of CPU per request of one case, and the rows per batch that it came to."""

    case: Case
    us_per_request: float
    rows_per_batch: float


CASES = (
    Case("alone", 1),
    Case("concurrent-64", 64, goal_us=5.0),
    Case("concurrent-64-slots-2", 64, slots=2),
    Case("concurrent-64-wait-2ms", 64, max_wait_s=0.002),
    Case("concurrent-64-lanes-4", 64, lanes=4),
    Case("concurrent-64-workers-32", 64, workers=32),
    Case("queue-1k", 1_000, goal_us=20.0),
    Case("queue-1k-lanes-8", 1_000, lanes=8, goal_us=20.0),
    Case("queue-1k-sorted", 1_000, sorted=True, goal_us=20.0),
    Case("queue-1k-sorted-batch-32", 1_000, max_batch=32, sorted=True, goal_us=20.0),
    Case("queue-10k", 10_000, goal_us=40.0),
    Case("queue-10k-sorted", 10_000, sorted=True, goal_us=40.0),
    Case("queue-10k-slots-2", 10_000, slots=2, goal_us=40.0),
    Case("queue-10k-wait-2ms", 10_000, max_wait_s=0.002, goal_us=40.0),
    Case("queue-10k-lanes-100", 10_000, lanes=100, goal_us=40.0),
)


def main(argv: list[str] | None = None) -> int:
    """Measure every case and print one JSON document."""
    parser = argparse.ArgumentParser(description="CPU time of the batching core per request")
    parser.add_argument("--requests", type=int, default=20_000, help="requests per round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds per case; the best one counts")
    options = parser.parse_args(argv)
    measured = [measure(case, options.requests, options.rounds) for case in CASES]
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(measured)) + b"\n")
    return 0


def measure(case: Case, requests: int, rounds: int) -> Measured:
    """Run one case."""
    loop = _ClosedLoop(case)
    loop.run(case.queue)
    best = min(_timed(loop, requests) for _ in range(rounds))
    stats = loop.state.stats
    rows = sum(counters.rows_n for counters in loop.state.lanes.classes.values())
    return Measured(case, round(best / requests * 1e6, 2), round(rows / stats.batches_n, 2))


def _timed(loop: "_ClosedLoop", requests: int) -> float:
    gc.collect()
    began = time.process_time()
    done = loop.run(requests)
    return (time.process_time() - began) * requests / done


class _ClosedLoop:
    """Clients that send again at once, and workers that finish in the order they were given work."""

    def __init__(self, case: Case) -> None:
        policy = BatchPolicy(
            max_batch=case.max_batch,
            max_wait_s=case.max_wait_s,
            early_trigger=case.max_batch,
            queue_rows=2 * case.queue + 64,
            formation="sorted" if case.sorted else "fifo",
        )
        self._lengths = random.Random(7)
        self.state = BatchState(policy)
        for worker in range(case.workers):
            self.state.worker_up(worker, case.slots)
        self._sorted = case.sorted
        self._keys = [LaneKey(None, f"class {lane}") for lane in range(case.lanes)]
        self._sent_n = 0
        self._now = 1000.0
        self._flying: deque[int] = deque()
        for _ in range(case.queue):
            self._submit()

    def run(self, requests: int) -> int:
        """Answer at least `requests` requests and return how many it were."""
        done = 0
        state, flying = self.state, self._flying
        while done < requests:
            self._now += _TICK_S
            if not flying:
                self._now = state.wake_at(self._now)
                self._pump()
                continue
            batch = state.batches[flying.popleft()]
            ended = state.complete(batch.id, 2e-3 + 2.5e-4 * batch.rows * batch.size, self._now)
            self._pump()
            for ticket in ended:
                ticket.pieces = []  # as the driver does once it has the results
                self._submit()
            done += len(ended)
        return done

    def _submit(self) -> None:
        self._sent_n += 1
        key = self._keys[self._sent_n % len(self._keys)]
        deadline = self._now + _TIMEOUT_S
        size = min(256, max(4, round(self._lengths.lognormvariate(3.3, 0.9)))) if self._sorted else 0
        ticket = Ticket(rows=1, payload=None, nbytes=64, lane_key=key, size=size, deadline=deadline)
        self.state.submit(ticket, self._now)
        self._pump()

    def _pump(self) -> None:
        self.state.expire(self._now)
        for batch in self.state.pump(self._now):
            self._flying.append(batch.id)
        self.state.wake_at(self._now)


if __name__ == "__main__":
    sys.exit(main())
