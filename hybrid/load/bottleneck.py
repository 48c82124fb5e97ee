"""Where the time of a load goes, by the operational laws of queueing, and whether larger batches would help.

A station is what can be busy: the preprocess processes, the workers, the event loop. Its utilisation is `U = X * D`
(throughput times demand per request), so no load can be above `X <= servers / D`: the bottleneck is the station for
which that bound is lowest. Pure: works on what was counted between two Snapshots, and measures nothing.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

PREPROCESS: Final = "preprocess"
QUEUE: Final = "queue"
MODEL: Final = "model"
POST: Final = "post"
FRONT_END: Final = "front end"

#: A gain below this is not worth the latency that larger batches cost.
WORTH: Final = 1.05
_IDLE: Final = 0.5  # below this nobody is a bottleneck
_MUCH: Final = 0.5  # of the requests' time spent in the queue, and of the batches held back


class Station(Struct, frozen=True):
    """Something that can be busy: `busy_s` is summed over its `servers` (processes, or one event loop)."""

    name: str
    servers: int
    busy_s: float


class Window(Struct, frozen=True, kw_only=True):
    """What a server did in `seconds` of load. `queue_s` and `total_s` are sums over its `requests_n` answers.

    Of its `batches_n`, `held_n` left because they had waited long enough, not because a worker was free or they were
    full.
    """

    seconds: float
    requests_n: int
    stations: tuple[Station, ...]
    queue_s: float = 0.0
    total_s: float = 0.0
    batches_n: int = 0
    held_n: int = 0
    rows_n: int = 0
    cpu_s: float | None = None
    memory_bytes: int | None = None

    def utilisation(self, station: Station) -> float:
        """Return the fraction of its time that a station was busy."""
        return station.busy_s / (station.servers * self.seconds)

    @property
    def mean_batch(self) -> float | None:
        """Rows per batch; None when there was none."""
        return self.rows_n / self.batches_n if self.batches_n else None


class Line(Struct, frozen=True):
    """Seconds of a batch: `fixed_s + per_row_s * rows`."""

    fixed_s: float
    per_row_s: float

    def at(self, rows: float) -> float:
        """Return the seconds of a batch."""
        return self.fixed_s + self.per_row_s * rows

    def gain(self, rows: float, over: float = 1.0) -> float:
        """Return the rows per second of batches of `rows`, relative to batches of `over` rows."""
        return (rows / self.at(rows)) / (over / self.at(over))


class BatchTime(Struct, frozen=True):
    """Measured: the mean seconds of a batch of so many rows."""

    rows: float
    seconds: float


class Verdict(Struct, frozen=True):
    """What limits the server, and what to do.

    `gain` is the throughput of the largest batch relative to single rows, None where the line of batch times is not
    known; `batching_helps` None where it cannot be said.
    """

    bottleneck: str | None
    utilisation: float | None
    limit_rps: float | None
    batching_helps: bool | None
    gain: float | None
    advice: str


def fit(points: Sequence[BatchTime]) -> Line | None:
    """Fit batch times over rows; None without two different sizes. Relative errors count, so that small ones do too."""
    known = [(point.rows, point.seconds) for point in points if point.rows > 0.0 and point.seconds > 0.0]
    weights = [1.0 / (seconds * seconds) for _, seconds in known]
    total = sum(weights)
    if not known or max(x for x, _ in known) < 1.2 * min(x for x, _ in known):
        return None
    mean_x = sum(w * x for w, (x, _) in zip(weights, known, strict=True)) / total
    mean_y = sum(w * y for w, (_, y) in zip(weights, known, strict=True)) / total
    variance = sum(w * (x - mean_x) ** 2 for w, (x, _) in zip(weights, known, strict=True))
    slope = sum(w * (x - mean_x) * (y - mean_y) for w, (x, y) in zip(weights, known, strict=True)) / variance
    slope = max(0.0, slope)
    fixed = mean_y - slope * mean_x
    if fixed >= 0.0:
        return Line(fixed, slope)
    return Line(
        0.0,
        sum(w * x * y for w, (x, y) in zip(weights, known, strict=True))
        / sum(w * x * x for w, (x, _) in zip(weights, known, strict=True)),
    )


def find(window: Window) -> tuple[str, Station] | None:
    """Return the name of the bottleneck and the busiest station; None when there is nothing to judge.

    While no station is busy and requests still spend their time in the queue, because batches are held back, it is the
    queue. A long queue alone is no sign of that: requests also wait in it for a busy event loop or worker.
    """
    busiest = max(window.stations, key=window.utilisation, default=None)
    if busiest is None or not window.requests_n:
        return None
    waits = window.queue_s > _MUCH * window.total_s and window.held_n > _MUCH * window.batches_n
    if window.utilisation(busiest) < _IDLE and waits:
        return QUEUE, busiest
    return busiest.name, busiest


def judge(window: Window, times: Sequence[BatchTime], max_batch: int) -> Verdict:
    """Judge the window of the highest throughput; `max_batch` is the largest batch that the server makes."""
    found = find(window)
    if found is None:
        text = "The server shows nothing of itself (no /hybrid/v1/snapshot), so only latency and throughput are known."
        return Verdict(None, None, None, None, None, text)
    name, station = found
    line = fit(times)
    gain = line.gain(max_batch) if line is not None and max_batch > 1 else None
    helps = None if gain is None else gain >= WORTH
    if name not in (MODEL, QUEUE):
        helps = False
    limit_rps = station.servers * window.requests_n / station.busy_s if station.busy_s > 0.0 else None
    busy = window.utilisation(station)
    advice = _advice(name, busy, window, line, gain, max_batch)
    return Verdict(name, busy, limit_rps, helps, gain, advice)


def _advice(name: str, busy: float, window: Window, line: Line | None, gain: float | None, max_batch: int) -> str:
    share = f"{100 * min(1.0, busy):.0f} %"
    match name:
        case "preprocess":
            return (
                f"Preprocess is busy {share} of the time: give it more processes or a cache (preprocess.processes,"
                " preprocess.cache_bytes); larger batches would only wait for it."
            )
        case "front end":
            return (
                f"The event loop is busy {share} of the time while the workers wait for it: send several rows per"
                " request, or binary instead of JSON tensors; larger batches change nothing."
            )
        case "queue":
            return (
                f"Nothing is busy more than {share} of the time, yet batches are held back: lower batching.max_wait_s."
            )
        case "post":
            return f"Postprocess takes most of the workers' time ({share} busy): ask for fewer or smaller outputs."
        case _:
            return _model_advice(share, window, line, gain, max_batch)


def _model_advice(share: str, window: Window, line: Line | None, gain: float | None, max_batch: int) -> str:
    begin = f"The model is busy {share} of the time"
    if max_batch == 1:
        return f"{begin}, and the plan runs every row alone, so whether batches would help was not seen."
    if line is None or gain is None:
        return f"{begin}, and batches of one size only were seen: whether larger ones would help is not known."
    if gain < WORTH:
        return f"{begin}, and batches of {max_batch} rows give only {gain:.2f}x of single rows: add workers, not batch."
    mean = window.mean_batch or 1.0
    more = line.gain(max_batch, mean)
    if more < WORTH:
        return (
            f"{begin}; batching already gives what it can ({line.gain(mean):.2f}x of single rows at {mean:.1f} rows):"
            " more throughput needs more workers or a faster device."
        )
    return (
        f"{begin}; batches of {max_batch} rows would give {gain:.2f}x of single rows, and {more:.2f}x of the"
        f" {mean:.1f} rows reached here: more requests at once, or more rows per request, raise throughput."
    )
