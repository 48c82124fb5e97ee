"""When requests are sent: Poisson, constant, bursts, a recorded trace, or a closed loop.

Owns the intended send times, as seconds since the start of a run. Pure: no clock, no socket; the same seed gives the
same times. Must never know what became of a request, since times that wait for answers hide every stall.
"""

import random
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from hybrid.errors import ConfigError

Rate = Annotated[float, Meta(gt=0, le=1_000_000)]
MAX_CONCURRENCY: Final = 4096
MAX_TRACE_POINTS: Final = 5_000_000


class Sending(Struct, frozen=True, gc=False):
    """One intended request: when, and how large (in the trace's own unit) where the trace says so."""

    t_s: Annotated[float, Meta(ge=0)]
    size: Annotated[int, Meta(ge=0)] | None = None


class Poisson(Struct, frozen=True, tag="poisson"):
    """Independent clients: exponential gaps."""

    rate_rps: Rate
    seed: int = 0


class Constant(Struct, frozen=True, tag="constant"):
    """Equal gaps."""

    rate_rps: Rate


class Bursts(Struct, frozen=True, tag="bursts"):
    """`burst` requests at once, then a pause, so that the mean is `rate_rps`; pauses are exponential."""

    rate_rps: Rate
    burst: Annotated[int, Meta(ge=1, le=100_000)] = 10
    seed: int = 0


class Trace(Struct, frozen=True, tag="trace"):
    """Recorded arrivals in rising order, played once, `speed` times as fast as they were recorded."""

    points: tuple[Sending, ...]
    speed: Annotated[float, Meta(gt=0)] = 1.0


class Closed(Struct, frozen=True, tag="closed"):
    """`concurrency` clients that each wait for their answer, then for `think_s`, before they send again.

    Such clients slow down with the server and so never see how long a stall would have been for others: good for
    finding what a server can do at most, not for latency that users see.
    """

    concurrency: Annotated[int, Meta(ge=1, le=MAX_CONCURRENCY)]
    think_s: Annotated[float, Meta(ge=0)] = 0.0


OpenArrivals = Poisson | Constant | Bursts | Trace
Arrivals = OpenArrivals | Closed


def sendings(arrivals: OpenArrivals, seconds: float, part: int = 0, parts: int = 1) -> Iterator[Sending]:
    """Yield what is to be sent in the first `seconds`, in rising order.

    Of several generators each takes every `parts`-th request of the same sequence, so that the load as a whole does
    not depend on their number. Halved rates with seeds of their own would do so only for Poisson.
    """
    return islice(takewhile(lambda sending: sending.t_s < seconds, _all(arrivals)), part, None, parts)


def mean_rate_rps(arrivals: OpenArrivals) -> float:
    """Return requests per second in the mean; of a trace, over its length, or one second where that is longer."""
    if not isinstance(arrivals, Trace):
        return arrivals.rate_rps
    length_s = arrivals.points[-1].t_s / arrivals.speed if arrivals.points else 0.0
    return len(arrivals.points) / max(length_s, 1.0)


def read_trace(lines: Iterator[bytes | str], name: str = "trace") -> Trace:
    """Read a trace: one JSON object per line, `{"t_s": 0.25, "size": 12}`; `size` may be left out.

    Raises:
        ConfigError: a line is no such object, times fall, or there are no points or too many; says which line.
    """
    decoder = msgspec.json.Decoder(Sending)
    points: list[Sending] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            point = decoder.decode(line)
        except msgspec.DecodeError as error:
            raise ConfigError(f'{name}, line {number}: expected {{"t_s": seconds, "size": number}}: {error}') from error
        if points and point.t_s < points[-1].t_s:
            raise ConfigError(f"{name}, line {number}: t_s is {point.t_s:g} after {points[-1].t_s:g}; they must rise")
        points.append(point)
        if len(points) > MAX_TRACE_POINTS:
            raise ConfigError(f"{name}: more than {MAX_TRACE_POINTS} lines")
    if not points:
        raise ConfigError(f"{name}: no arrivals in it")
    return Trace(tuple(points))


def _all(arrivals: OpenArrivals) -> Iterator[Sending]:
    match arrivals:
        case Poisson():
            return _poisson(arrivals)
        case Constant():
            return _constant(arrivals)
        case Bursts():
            return _bursts(arrivals)
        case Trace():
            return (Sending(point.t_s / arrivals.speed, point.size) for point in arrivals.points)


def _poisson(arrivals: Poisson) -> Iterator[Sending]:
    draw = random.Random(arrivals.seed).expovariate
    now = 0.0
    while True:
        now += draw(arrivals.rate_rps)
        yield Sending(now)


def _constant(arrivals: Constant) -> Iterator[Sending]:
    sent = 0
    while True:  # a product and not a sum of gaps, which would drift
        yield Sending(sent / arrivals.rate_rps)
        sent += 1


def _bursts(arrivals: Bursts) -> Iterator[Sending]:
    draw = random.Random(arrivals.seed).expovariate
    now = 0.0
    while True:
        now += draw(arrivals.rate_rps / arrivals.burst)
        for _ in range(arrivals.burst):
            yield Sending(now)
