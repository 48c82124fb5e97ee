"""A server that exists on paper: answers what `hybrid tune` asks by simulating a queue, in milliseconds."""

import heapq
import math
import random
from collections import deque

import numpy as np

from hybrid.tune.values import Answer, Load, Seen


class World:
    """`batch_s(setting, rows)` gives the time of a batch, `refuse(setting)` why it cannot run. Keeps what was asked."""

    def __init__(self, batch_s, refuse=lambda setting: ""):
        self.batch_s = batch_s
        self.refuse = refuse
        self.asked = []
        self.spent_s = 0.0

    def drive(self, search, budget_s=1e9):
        """Run a search to its end and return what it found."""
        try:
            ask = next(search)
            while True:
                self.asked.append(ask)
                self.spent_s += ask.load.seconds + 1.0
                ask = search.send(Answer(self.see(ask.setting, ask.load), budget_s - self.spent_s))
        except StopIteration as end:
            return end.value

    def see(self, setting, load):
        why = self.refuse(setting)
        if why:
            return Seen(failure=why)
        answers = np.array(simulate(self.batch_s, setting, load))
        if not len(answers):
            return Seen()
        latencies, ends = answers.T
        counted_n = int(np.sum(ends <= load.seconds)) if load.clients else len(latencies)
        late_n = 0 if load.slo_s is None else int(np.sum(latencies > load.slo_s))
        stopped = load.late_limit is not None and late_n >= load.late_limit
        p50, p95, p99 = (float(value) for value in np.quantile(latencies, (0.5, 0.95, 0.99)))
        return Seen(
            rps=counted_n / load.seconds, offered_n=len(latencies), late_n=late_n, p50_s=p50, p95_s=p95, p99_s=p99,
            stopped=stopped,
        )  # fmt: skip


def simulate(batch_s, setting, load: Load):
    """Return (latency, when it ended) of each request that was sent within the time of the load."""
    chance = random.Random(load.seed)
    arrivals = []  # heap of times at which requests come
    if load.clients:
        arrivals = [1e-6 * n for n in range(load.clients)]
    else:
        now = 0.0
        while (now := now + chance.expovariate(load.rate_rps)) < load.seconds:
            arrivals.append(now)
    heapq.heapify(arrivals)
    free, queue, latencies, now = setting.instances, deque(), [], 0.0
    ends = []  # heap of (time, number, arrivals of its requests)
    number = 0
    most = max(1, setting.max_batch // load.rows)
    while arrivals or ends:
        if arrivals and (not ends or arrivals[0] <= ends[0][0]):
            now = heapq.heappop(arrivals)
            queue.append(now)
        else:
            now, _, came = heapq.heappop(ends)
            free += 1
            latencies += [(now - at, now) for at in came]
            if load.clients and now < load.seconds:
                for _ in came:
                    heapq.heappush(arrivals, now)
        if arrivals and arrivals[0] <= now:
            continue  # those that come at the same moment are seen together
        while free and queue:
            came = [queue.popleft() for _ in range(min(most, len(queue)))]
            number += 1
            free -= 1
            took = batch_s(setting, len(came) * load.rows) * math.exp(chance.gauss(0.0, 0.03))
            heapq.heappush(ends, (now + took, number, came))
    return latencies
