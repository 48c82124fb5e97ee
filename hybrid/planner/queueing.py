"""How long requests wait and run on identical workers behind one queue, and how much load that carries. Pure.

Arrivals are Poisson and of one row each; an idle worker takes what waits, up to a largest batch. The mean on one worker
has a closed form. Tails are read off one fixed Poisson sample that is replayed through many settings side by side: on
several workers batches bunch as buses do (who comes late finds more rows and gets later still), and no small Markov
chain knows of that; for one worker the replay walks the very chain of batch sizes. Knows no engine and no setting.
"""

from collections.abc import Sequence
from functools import cache
from math import exp
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

#: Above this share of what full batches carry a queue grows for so long that no measurement is long enough.
STABLE_SHARE: Final = 0.95
_WARM_UP_SHARE: Final = 0.1
#: Arrivals in a sample, enough for a p99.
SAMPLE_ROWS: Final = 4000
#: Multiples of a rough guess; then points between two rates, and below the lowest one when that is too much already.
_AROUND: Final = np.array([0.3, 0.5, 0.65, 0.8, 1.0, 1.3])
_BETWEEN: Final = np.array([0.25, 0.5, 0.75])
_BELOW: Final = np.array([0.1, 0.3, 0.6])
_TURNS: Final = 256
_FIXED_POINT: Final = 12
_UNLUCKY: Final = 2.0  # standard deviations of a Poisson number of rows
#: Of 120 samples those whose means and tails come nearest to those of long runs, over loads of 0.3 to 0.85 on 1 to 16
#: workers: the first is off by 4 % in the mean, an arbitrary one by twice that.
_SEEDS: Final = (74, 37, 13, 4)
_OTHER_SEEDS: Final = 1000
_APART: Final = 1e6
#: Shares of their time for which workers are busy with batches of one row.
_LOADS: Final = np.array([0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])


class Server(Struct, frozen=True):
    """Workers behind one queue. `batch_s[b - 1]` is the time of a batch of b rows; its length is the largest batch.

    `held_up_s` is how much longer the slowest answers take for what keeps no worker busy.
    """

    batch_s: Floats
    instances: int = 1
    max_wait_s: float = 0.0
    held_up_s: float = 0.0

    @property
    def capacity_rps(self) -> float:
        """Rows per second when every batch has its best size."""
        return self.instances * float(np.max(np.arange(1, len(self.batch_s) + 1) / self.batch_s))


class Latencies(Struct, frozen=True):
    """Seconds from arrival to answer, one element per server."""

    mean_s: Floats
    p50_s: Floats
    tail_s: Floats


def mean_latency_s(rate_rps: float, fixed_s: float, per_row_s: float) -> float:
    """Mean latency on one worker whose batches take `fixed_s + per_row_s * rows`, without a largest batch.

    Infinite when the rate is more than the worker can do.
    """
    load = rate_rps * per_row_s
    if load >= 1.0:
        return float("inf")
    if rate_rps <= 0.0:
        return fixed_s + per_row_s
    fixed_rows = rate_rps * fixed_s
    mean_rows = max(1.0, fixed_rows / (1.0 - load))
    for _ in range(_FIXED_POINT):  # a batch during which nobody arrives is followed by one of a single row
        mean_rows = (fixed_rows + exp(-fixed_rows - load * mean_rows)) / (1.0 - load)
    mean_rows = max(1.0, mean_rows)
    met_rows = (1.0 + 2.0 * load * fixed_rows + fixed_rows**2 / mean_rows) / (1.0 - load**2)
    return (met_rows - 1.0) / (2.0 * rate_rps) + per_row_s * met_rows + fixed_s


def rough_goodput_rps(server: Server, slo_s: float, quantile: float = 0.99) -> float:
    """A first idea of `goodput_rps` in microseconds, to choose what is worth the replay.

    The unluckiest arrival waits for the first of `instances` workers to become free, each at a random moment of its
    batch, and then for a batch of its own. Where workers are idle in between, most arrivals wait for nobody.
    """
    return float(rough_goodputs_rps(server, [len(server.batch_s)], slo_s, quantile)[0])


def rough_goodputs_rps(server: Server, largest: Sequence[int], slo_s: float, quantile: float = 0.99) -> Floats:
    """The same for several largest batches of the same workers, none above that of `server`."""
    sizes = np.arange(1, len(server.batch_s) + 1, dtype=np.float64)
    caps = np.asarray(largest)[:, None]
    mean_rows = np.concatenate((_LOADS, sizes))  # below 1: the worker is idle in between
    wait_share = np.ones_like(mean_rows) - (1.0 - quantile) ** (1.0 / server.instances)
    wait_share[: len(_LOADS)] = _wait_shares(server.instances, quantile)
    unlucky_rows = np.minimum(mean_rows + _UNLUCKY * np.sqrt(mean_rows), caps)
    fits = np.interp(unlucky_rows, sizes, server.batch_s) * (1.0 + wait_share) <= slo_s - server.held_up_s
    rates = server.instances * mean_rows / np.interp(mean_rows, sizes, server.batch_s)
    best = np.max(np.where(fits & (mean_rows <= caps), rates, 0.0), axis=1)
    capacity = server.instances * np.maximum.accumulate(sizes / server.batch_s)[caps[:, 0] - 1]
    return np.asarray(np.minimum(STABLE_SHARE * capacity, best), dtype=np.float64)


@cache
def _wait_shares(instances: int, quantile: float) -> Floats:
    """The wait for a worker at each of `_LOADS`, in times of a batch, that only 1 - `quantile` of arrivals exceed.

    Whether any is idle is told by Erlang's formulas for Poisson arrivals that do and that do not wait (B and C).
    """
    lost = np.ones_like(_LOADS)
    for count in range(1, instances + 1):
        lost = _LOADS * instances * lost / (count + _LOADS * instances * lost)
    waiting = lost / (1.0 - _LOADS * (1.0 - lost))
    share = 1.0 - ((1.0 - quantile) / np.maximum(waiting, 1.0 - quantile)) ** (1.0 / instances)
    return np.asarray(share, dtype=np.float64)


def goodput_rps(
    servers: Sequence[Server], slo_s: float, quantile: float = 0.99, samples: Sequence[int] = (0,)
) -> Floats:
    """The largest Poisson rate of each server whose latency at `quantile` is within `slo_s`; 0 where none is."""
    most = np.array([STABLE_SHARE * server.capacity_rps for server in servers])
    rough = np.array([rough_goodput_rps(server, slo_s, quantile) for server in servers])
    # Side by side costs hardly more than one: a few rates around the guess, then a few between the last that holds and
    # the first that does not.
    tried = np.minimum(np.maximum(rough, 0.05 * most)[:, None] * _AROUND, most[:, None])
    held, failed, _ = _bracket(servers, tried, slo_s, quantile, samples)
    failed = np.where(np.isnan(failed), most, failed)
    inside = held[:, None] + (failed - held)[:, None] * _BETWEEN
    inside = np.where((held == 0.0)[:, None], failed[:, None] * _BELOW, inside)
    finer, failed, share = _bracket(servers, inside, slo_s, quantile, samples, held, failed)
    # Between the two the tail is taken as a straight line.
    return np.asarray(np.where(finer < most, finer + (failed - finer) * share, most), dtype=np.float64)


def replay(
    servers: Sequence[Server], rates_rps: Floats, quantile: float = 0.99, samples: Sequence[int] = (0,)
) -> Latencies:
    """Latencies of Poisson arrivals, the same ones for every server but for the scale of their `rates_rps`.

    One sample has `SAMPLE_ROWS` arrivals, of which the first tenth does not count; several side by side are more exact.
    """
    settled = _settled(servers, rates_rps, samples)
    settled.sort(axis=1)
    last = settled.shape[1] - 1
    held_up_s = np.array([server.held_up_s for server in servers])
    return Latencies(settled.mean(axis=1), settled[:, last // 2], settled[:, round(quantile * last)] + held_up_s)


def _tails(servers: Sequence[Server], rates: Floats, quantile: float, samples: Sequence[int]) -> Floats:
    """Latency at `quantile` of each server at each of its rates."""
    settled = _settled([server for server in servers for _ in range(rates.shape[1])], rates.ravel(), samples)
    place = round(quantile * (settled.shape[1] - 1))
    settled.partition(place, axis=1)
    held_up_s = np.array([[server.held_up_s] for server in servers])
    return np.asarray(settled[:, place].reshape(rates.shape) + held_up_s, dtype=np.float64)


def _settled(servers: Sequence[Server], rates_rps: Floats, samples: Sequence[int]) -> Floats:
    """Latencies after the warm-up, (servers, arrivals of all samples)."""
    warm = int(_WARM_UP_SHARE * SAMPLE_ROWS)
    latencies = _run([one for one in servers for _ in samples], np.repeat(rates_rps, len(samples)), samples)
    return latencies[:, warm:].reshape(len(servers), -1)


def _bracket(
    servers: Sequence[Server],
    rates: Floats,
    slo_s: float,
    quantile: float,
    samples: Sequence[int],
    held: Floats | None = None,
    failed: Floats | None = None,
) -> tuple[Floats, Floats, Floats]:
    """Per server the largest of the rising `rates` that holds, the next one, and how far in between the bound lies.

    `held` and `failed` are known already and stand for what lies outside of `rates`; without them 0 and nan do.
    """
    count, width = rates.shape
    tails = _tails(servers, rates, quantile, samples)
    first_bad = np.where((tails > slo_s).any(axis=1), (tails > slo_s).argmax(axis=1), width)
    lane = np.arange(count)
    low = np.zeros(count) if held is None else held
    high = np.full(count, np.nan) if failed is None else failed
    below = np.where(first_bad > 0, rates[lane, np.maximum(first_bad - 1, 0)], low)
    above = np.where(first_bad < width, rates[lane, np.minimum(first_bad, width - 1)], high)
    good_s, bad_s = tails[lane, np.maximum(first_bad - 1, 0)], tails[lane, np.minimum(first_bad, width - 1)]
    known = (first_bad > 0) & (first_bad < width)
    share = np.where(known, (slo_s - good_s) / np.where(known, bad_s - good_s, 1.0), 0.0)
    return below, above, np.clip(share, 0.0, 1.0)


def _run(servers: Sequence[Server], rates_rps: Floats, samples: Sequence[int]) -> Floats:
    """Latency of each arrival of a sample, (servers, arrivals); the samples go round among the servers."""
    arrivals = np.stack([_unit_arrivals(one)[:-1] for one in samples])[np.arange(len(servers)) % len(samples)]
    ends = np.empty_like(arrivals)
    batching = np.array([len(server.batch_s) > 1 for server in servers])
    for lane in np.flatnonzero(~batching).tolist():
        ends[lane] = _one_by_one(arrivals[lane], servers[lane], rates_rps[lane])
    alive: Ints = np.flatnonzero(batching)
    lanes = _Lanes([servers[n] for n in alive.tolist()], rates_rps[alive], samples, alive % len(samples))
    while len(alive):
        before = lanes.taken
        sizes, finished = lanes.advance(_TURNS)
        counts = lanes.taken - before
        # Lane after lane, each arrival gets the end of its batch.
        places = np.repeat(alive * SAMPLE_ROWS + before - (np.cumsum(counts) - counts), counts)
        ends.reshape(-1)[places + np.arange(len(places))] = np.repeat(finished.T.ravel(), sizes.T.ravel())
        # Small batches need the most turns; whoever took larger ones is done earlier and costs no more time.
        kept = lanes.taken < SAMPLE_ROWS
        alive = alive[kept]
        lanes.keep(kept)
    return np.asarray((ends - arrivals) / rates_rps[:, None], dtype=np.float64)


def _one_by_one(arrivals: Floats, server: Server, rate_rps: float) -> Floats:
    """Ends of batches of one row, in gaps between arrivals; whoever answers is free for the row `instances` later."""
    count, batch = server.instances, float(server.batch_s[0]) * rate_rps
    rounds = -(-len(arrivals) // count)
    padded = np.full(rounds * count, np.inf)
    padded[: len(arrivals)] = arrivals
    earlier = batch * np.arange(rounds)[:, None]
    starts = np.maximum.accumulate(padded.reshape(rounds, count) - earlier, axis=0) + earlier
    return np.asarray(starts.ravel()[: len(arrivals)] + batch, dtype=np.float64)


class _Lanes:
    """Servers that take in arrivals side by side, each at its own rate; one turn starts one batch on each.

    A lane measures time in mean gaps between its arrivals, so that all share the same arrivals.
    """

    def __init__(self, servers: Sequence[Server], rates_rps: Floats, samples: Sequence[int], sample: Ints) -> None:
        # All samples stand in one rising row, far apart, so that one look-up serves lanes of different samples.
        self._arrivals = np.concatenate([_unit_arrivals(one) + place * _APART for place, one in enumerate(samples)])
        self._shift = sample * _APART
        self._head: Ints = sample * (SAMPLE_ROWS + 1)
        self._end: Ints = self._head + SAMPLE_ROWS
        self._caps = np.array([len(server.batch_s) for server in servers], dtype=np.int64)
        self._waits = np.array([server.max_wait_s for server in servers]) * rates_rps
        self._curves = np.zeros((len(servers), self._caps.max(initial=0) + 1))
        self._free = np.full((len(servers), max((server.instances for server in servers), default=1)), np.inf)
        for n, server in enumerate(servers):
            self._curves[n, 1 : self._caps[n] + 1] = server.batch_s * rates_rps[n]
            self._free[n, : server.instances] = self._shift[n]

    def advance(self, turns: int) -> tuple[Ints, Floats]:
        """Return sizes and ends of batches, (turns, lanes) each; a lane without arrivals left has batches of 0 rows."""
        count = len(self._head)
        sizes, ends = np.empty((turns, count), dtype=np.int64), np.empty((turns, count))
        arrivals, caps, head, end = self._arrivals, self._caps, self._head, self._end
        free, curves = self._free.reshape(-1), self._curves.reshape(-1)
        free_row, curve_row = np.arange(count) * self._free.shape[1], np.arange(count) * self._curves.shape[1]
        waiting, single = bool(self._waits.any()), self._free.shape[1] == 1
        for turn in range(turns):
            oldest = arrivals[head]
            worker = free_row if single else free_row + self._free.argmin(axis=1)
            start = np.maximum(free[worker], oldest)
            if waiting:
                full = arrivals[np.minimum(head + caps - 1, end)]
                start = np.maximum(start, np.minimum(full, oldest + self._waits))
            taken = np.minimum(arrivals.searchsorted(start, side="right") - head, caps)
            sizes[turn] = taken = np.minimum(taken, end - head)
            free[worker] = ends[turn] = start + curves[curve_row + taken]
            head = head + taken
        self._head = head
        return sizes, ends - self._shift

    @property
    def taken(self) -> Ints:
        """Arrivals that have been taken, per lane."""
        return self._head - self._end + SAMPLE_ROWS

    def keep(self, which: np.ndarray[Any, np.dtype[np.bool_]]) -> None:
        """Go on with these lanes only."""
        self._head, self._end, self._shift = self._head[which], self._end[which], self._shift[which]
        self._caps, self._waits = self._caps[which], self._waits[which]
        self._curves, self._free = self._curves[which], self._free[which]


@cache
def _unit_arrivals(sample: int) -> Floats:
    """Arrival times at a rate of 1, with one more that ends the sample. Always the same, so that plans are, too."""
    seed = _SEEDS[sample] if sample < len(_SEEDS) else _OTHER_SEEDS + sample
    gaps = np.random.default_rng(seed).exponential(size=SAMPLE_ROWS + 1)
    return np.asarray(np.cumsum(gaps), dtype=np.float64)
