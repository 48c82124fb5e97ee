"""Batching policies for mixed lengths on a simulated device: what others do, the best there is, and ours.

All see the same clients in a closed loop and the same cost line, `fixed_s + per_token_s * rows * longest`.
"""

import random
from bisect import bisect_left
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import islice

from msgspec import Struct

from bench.length_load import lengths
from hybrid.batching.policy import BatchPolicy, Formation
from hybrid.batching.queue import LaneKey, Ticket
from hybrid.batching.state import BatchState

Waiting = list[int]  # lengths in order of arrival
Choose = Callable[[Waiting], list[int]]  # places of those that travel
_EDGES = (16, 32, 64, 128, 256)


class Line(Struct, frozen=True):
    """The cost of a batch on one of `workers` devices, and the largest batch."""

    fixed_s: float
    per_token_s: float
    max_batch: int = 8
    workers: int = 2


class Simulated(Struct, frozen=True):
    """Rows per second and the share of padding in what was computed."""

    rate: float
    padding: float


def baselines(line: Line) -> dict[str, Choose]:
    """Policies that are not in the server, and their parameters."""
    batch = line.max_batch
    return {
        "alone": lambda waiting: [0],
        "fifo": lambda waiting: list(range(min(batch, len(waiting)))),
        "sort-4 (the next 4 batches sorted, then in turn)": _sort_4(batch),
        "token FIFO (padded tokens <= 512)": lambda waiting: _token_fifo(waiting, 512, batch),
        "fixed edges 16..256": lambda waiting: _edges(waiting, batch),
    }


def simulate(choose: Choose, line: Line, clients: int, rows: int = 4000) -> Simulated:
    """Run one policy until `rows` rows are answered."""
    source = lengths(3)
    noise = random.Random(5)
    waiting = list(islice(source, clients))
    now, done, real, computed, idle = 0.0, 0, 0, 0, line.workers
    ends: list[tuple[float, int]] = []
    while done < rows:
        while idle and waiting:
            places = set(choose(waiting))
            batch = [length for place, length in enumerate(waiting) if place in places]
            waiting = [length for place, length in enumerate(waiting) if place not in places]
            work = len(batch) * max(batch)
            real, computed, idle = real + sum(batch), computed + work, idle - 1
            heappush(ends, (now + (line.fixed_s + work * line.per_token_s) * noise.lognormvariate(0, 0.05), len(batch)))
        now, answered = heappop(ends)
        idle, done = idle + 1, done + answered
        waiting += islice(source, answered)
    return Simulated(done / now, 1.0 - real / computed)


def simulate_ours(formation: Formation, line: Line, clients: int, rows: int = 4000) -> Simulated:
    """The same with the server's own batching core."""
    source, noise = lengths(3), random.Random(5)
    state = BatchState(BatchPolicy(max_batch=line.max_batch, formation=formation, size_edges=_EDGES, queue_rows=9999))
    for worker in range(line.workers):
        state.worker_up(worker, 1)
    now, done = 0.0, 0
    ends: list[tuple[float, int]] = []
    for length in islice(source, clients):
        state.submit(Ticket(rows=1, payload=None, lane_key=LaneKey("ids"), size=length), now)
    while done < rows:
        for batch in state.pump(now):
            seconds = line.fixed_s + batch.rows * batch.size * line.per_token_s
            heappush(ends, (now + seconds * noise.lognormvariate(0, 0.05), batch.id))
        now, batch_id = heappop(ends)
        ended = state.complete(batch_id, now - state.batches[batch_id].sent_at, now)
        done += len(ended)
        for length in islice(source, len(ended)):
            state.submit(Ticket(rows=1, payload=None, lane_key=LaneKey("ids"), size=length), now)
    counters = state.lanes.classes.values()
    padding, real = sum(one.pad_n for one in counters), sum(one.real_n for one in counters)
    return Simulated(done / now, padding / (padding + real))


def ragged_bound(line: Line) -> Simulated:
    """Full batches without any padding: no policy is faster."""
    mean = sum(islice(lengths(3), 4000)) / 4000
    return Simulated(line.workers / (line.fixed_s / line.max_batch + mean * line.per_token_s), 0.0)


def _sort_4(batch: int) -> Choose:
    planned: list[int] = []  # row counts of the batches that are left of the group in front

    def choose(waiting: Waiting) -> list[int]:
        if not planned:
            group = min(4 * batch, len(waiting))
            waiting[:group] = sorted(waiting[:group])
            planned.extend([batch] * (group // batch) + [group % batch] * (group % batch > 0))
        return list(range(planned.pop(0)))

    return choose


def _token_fifo(waiting: Waiting, tokens: int, batch: int) -> list[int]:
    longest, count = 0, 0
    for length in waiting[:batch]:
        longest = max(longest, length)
        if count and longest * (count + 1) > tokens:
            break
        count += 1
    return list(range(count))


def _edges(waiting: Waiting, batch: int) -> list[int]:
    first = bisect_left(_EDGES, waiting[0])
    return [place for place, length in enumerate(waiting) if bisect_left(_EDGES, length) == first][:batch]
