"""Goodput: the largest Poisson rate at which 99 of 100 requests are answered within an objective.

Owns how a rate is judged and how the largest good one is found. Knows nothing of what is compared with what. Latency
counts from the intended send time; a rate is given up as soon as it has more late answers than it may have, because
most of the time of a search goes into rates that fail. One that failed may be offered again, with other arrivals: on a
machine that is shared, one stall of some milliseconds is more than a tight objective leaves, and what a search takes
for too much it never comes back to.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Final

import uvloop
from msgspec import Struct

from hybrid.load.arrivals import Closed, Poisson
from hybrid.load.carriers import Shot
from hybrid.load.driver import Generator
from hybrid.load.many import run
from hybrid.load.payloads import Payload
from hybrid.load.spec import LoadSpec

LATE_SHARE: Final = 0.01
_CLIENTS: Final = 48
_PAUSE_S: Final = 0.15  # the server drops what a rate that was given up has left behind
_SETTLE_S: Final = 0.5
_FIRST: Final = 0.92
_DOWN: Final = (0.87, 0.8, 0.65, 0.5)
_SEED_STEP: Final = 1000
_UP: Final = 1.08  # a short closed loop of slow requests stays below what an open one reaches


class Windows(Struct, frozen=True):
    """How long one looks: `seconds` for a rate, at least `least_n` requests, `steps` rates; `saturate_s` before.

    A rate is too much when it failed in `chances` windows.
    """

    seconds: float = 2.0
    least_n: int = 300
    most_s: float = 6.0
    steps: int = 5
    saturate_s: float = 1.5
    chances: int = 1

    def window_s(self, rate_rps: float) -> float:
        """Seconds for a rate, longer where requests are few."""
        return min(self.most_s, max(self.seconds, self.least_n / rate_rps))


class RateTrial(Struct, frozen=True):
    """One rate: `late_n` of `offered_n` were late, refused or lost. `p99_ms` is None where it was given up early."""

    rate_rps: float
    offered_n: int
    late_n: int
    passed: bool
    p50_ms: float | None
    p99_ms: float | None
    lag_p99_ms: float | None


class Goodput(Struct, frozen=True):
    """What was found for one server: the best rate that passed (0: none did), and what a closed loop got."""

    rate_rps: float
    saturated_rps: float
    saturated_p50_ms: float
    took_s: float
    trials: tuple[RateTrial, ...]

    @property
    def best(self) -> RateTrial | None:
        """The trial of the best rate."""
        return max((trial for trial in self.trials if trial.passed), key=lambda trial: trial.rate_rps, default=None)


def goodput(url: str, payloads: Sequence[Payload], slo_s: float, windows: Windows, seed: int = 0) -> Goodput:
    """Saturate the server, then look for the largest good rate, up and down from there.

    Raises:
        RuntimeError: the server answered nothing.
    """
    began_s = time.monotonic()
    saturated = run(
        LoadSpec(
            url=url,
            payloads=tuple(payloads),
            arrivals=Closed(_CLIENTS),
            seconds=windows.saturate_s,
            warmup_s=0.5,
            drain_s=0.3,
        )
    )
    if not saturated.in_window_n:
        raise RuntimeError(f"{url} answered nothing: {saturated.first_error}")
    time.sleep(_SETTLE_S)
    low, high = 0.0, float("inf")
    trials: list[RateTrial] = []
    for step in range(windows.steps):
        # Most servers are good up to nine tenths of saturation, so looking begins there and goes down in growing steps.
        rate = _next_rate(saturated.rps, low, high, step)
        for chance in range(windows.chances):
            arrivals = seed + _SEED_STEP * chance
            trials.append(try_rate(url, payloads, rate, slo_s, windows.window_s(rate), arrivals))
            if trials[-1].passed:
                break
        low, high = (rate, high) if trials[-1].passed else (low, rate)
    median_s = saturated.latency_at(0.5) or 0.0
    return Goodput(low, saturated.rps, median_s * 1e3, time.monotonic() - began_s, tuple(trials))


def try_rate(
    url: str, payloads: Sequence[Payload], rate_rps: float, slo_s: float, seconds: float, seed: int = 0
) -> RateTrial:
    """Offer one rate for `seconds`, or until it cannot pass any more."""
    spec = LoadSpec(
        url=url,
        payloads=tuple(payloads),
        arrivals=Poisson(rate_rps, seed),
        seconds=seconds,
        warmup_s=0.3,
        drain_s=slo_s * 1.5,
        slo_s=slo_s,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        trial = runner.run(_watch(spec, rate_rps))
    time.sleep(_PAUSE_S)
    return trial


def _next_rate(saturated_rps: float, low: float, high: float, step: int) -> float:
    if step == 0:
        return saturated_rps * _FIRST
    if low and high == float("inf"):
        return low * _UP
    return (low + high) / 2 if low else high * _DOWN[min(step, len(_DOWN)) - 1]


class _Watched(Generator):
    """A generator that says when more answers were late than may be."""

    def __init__(self, spec: LoadSpec, may_be_late_n: float) -> None:
        super().__init__(spec)
        self.over = asyncio.get_running_loop().create_future()
        self.offered_n = self.late_n = 0
        self._may_be_late_n = may_be_late_n
        self._objective_s = spec.slo_s or 0.0

    def answered(self, shot: Shot, status: int, error: str) -> None:
        if shot.counts:
            self.offered_n += 1
            self._count_late(status != 200 or time.monotonic() - shot.intended_s > self._objective_s)
        super().answered(shot, status, error)

    def broken(self, shot: Shot, why: str) -> None:
        self._count_late(shot.counts)
        super().broken(shot, why)

    def _count_late(self, late: bool) -> None:
        self.late_n += late
        if self.late_n > self._may_be_late_n and not self.over.done():
            self.over.set_result(None)


async def _watch(spec: LoadSpec, rate_rps: float) -> RateTrial:
    generator = _Watched(spec, LATE_SHARE * rate_rps * spec.seconds)
    try:
        await generator.connect()
        running = asyncio.ensure_future(generator.run(time.monotonic()))
        await asyncio.wait((running, generator.over), return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            running.cancel()
            await asyncio.wait((running,))
            return RateTrial(rate_rps, generator.offered_n, generator.late_n, False, None, None, None)
        found = running.result()
    finally:
        generator.close()
    late_n = found.offered_n - found.good_n
    p50_s, p99_s, lag_s = found.latency_at(0.5), found.latency_at(0.99), found.lag_p99_s
    return RateTrial(
        rate_rps=rate_rps,
        offered_n=found.offered_n,
        late_n=late_n,
        passed=late_n <= LATE_SHARE * found.offered_n,
        p50_ms=None if p50_s is None else p50_s * 1e3,
        p99_ms=None if p99_s is None else p99_s * 1e3,
        lag_p99_ms=None if lag_s is None else lag_s * 1e3,
    )
