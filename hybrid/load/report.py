"""What a run of load found, as frozen values: merged from several generators, shown as a table or as JSON.

Owns the definitions of throughput, goodput, attainment and of a void run. Knows no socket, clock or process.
"""

from collections.abc import Sequence
from math import ceil
from typing import Any, Final, Literal

from msgspec import Struct
from rich.console import Console
from rich.table import Table

from hybrid.telemetry.histogram import Hist, Histogram

#: What is late is shown as this many times the objective at least, so that it is not rounded to it.
_PAST: Final = 1.001
_QUANTILES: Final = (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99), ("p999_ms", 0.999))


class StatusCount(Struct, frozen=True):
    """How many answers had this HTTP status."""

    status: int
    n: int


class LoadResult(Struct, frozen=True, kw_only=True):
    """One run. Times in seconds; every intended request of the window is in exactly one of the counts.

    `offered_n` were intended, `statuses` answered, `timeouts_n` given up after the time limit, `broken_n` lost with
    their connection (or never got one), `unfinished_n` still open when the run ended. `in_window_n` answers of 200..299
    came before the window ended, `good_n` within `slo_s` of their intended time. In a closed loop `in_window_n` counts
    those as well that came in the window to requests from before it.

    `stopped` when the run ended early, at its limit of late requests.

    `latency` is that of answers of 200..299 since their intended send time, and of timeouts, which took at least so
    long. `lag` is how late the generator itself was; its limit is `lag_limit_s`. A closed loop intends to send when it
    sends, so it has no lag.
    """

    mode: Literal["open", "closed"]
    seconds: float
    offered_n: int = 0
    statuses: tuple[StatusCount, ...] = ()
    timeouts_n: int = 0
    broken_n: int = 0
    unfinished_n: int = 0
    in_window_n: int = 0
    slo_s: float | None = None
    good_n: int = 0
    latency: Hist = Hist()
    latency_max_s: float = 0.0
    lag: Hist = Hist()
    lag_max_s: float = 0.0
    lag_limit_s: float = 0.002
    connections_n: int = 0
    processes_n: int = 1
    cpu_s: float = 0.0
    first_error: str = ""
    stopped: bool = False

    @property
    def ok_n(self) -> int:
        """Answers of 200..299."""
        return sum(entry.n for entry in self.statuses if 200 <= entry.status < 300)

    @property
    def errors_n(self) -> int:
        """Everything that was not answered with 200..299, but for what was still open."""
        return self.offered_n - self.ok_n - self.unfinished_n

    @property
    def rps(self) -> float:
        """Answers of 200..299 per second of the window."""
        return self.in_window_n / self.seconds

    @property
    def goodput_rps(self) -> float | None:
        """Answers within the objective per second of the window; None without one."""
        return None if self.slo_s is None else self.good_n / self.seconds

    @property
    def attainment(self) -> float | None:
        """The share of what was offered that was answered within the objective; None without one, or with no load."""
        return None if self.slo_s is None or not self.offered_n else self.good_n / self.offered_n

    def latency_at(self, quantile: float) -> float | None:
        """Return a latency quantile (0..1) in seconds, within 2.2 %; None without answers.

        It is never on the wrong side of `slo_s`: its bucket may be on both, but answers within it were counted.
        """
        about_s = Histogram.from_sparse(self.latency).percentile(quantile)
        if about_s is None or self.slo_s is None:
            return about_s
        within = self.good_n >= max(1, ceil(quantile * self.latency.count))
        return min(about_s, self.slo_s) if within else max(about_s, _PAST * self.slo_s)

    @property
    def lag_p99_s(self) -> float | None:
        """How late 1 % of the sends were, at least; None in a closed loop."""
        return Histogram.from_sparse(self.lag).percentile(0.99)

    @property
    def void(self) -> bool:
        """Whether the generator was too late too often for its numbers to be about the server."""
        return (self.lag_p99_s or 0.0) > self.lag_limit_s


def merge(results: Sequence[LoadResult]) -> LoadResult:
    """Return the run that several generators made together, over the same window.

    Raises:
        ValueError: there are none, or they differ in mode, window or limits.
    """
    if len({(r.mode, r.seconds, r.slo_s, r.lag_limit_s) for r in results}) != 1:
        raise ValueError("results to merge: expected one or more of the same mode, window and limits")
    first = results[0]
    statuses: dict[int, int] = {}
    for result in results:
        for entry in result.statuses:
            statuses[entry.status] = statuses.get(entry.status, 0) + entry.n
    sums = ("offered_n", "timeouts_n", "broken_n", "unfinished_n", "in_window_n", "good_n", "connections_n")
    return LoadResult(
        mode=first.mode,
        seconds=first.seconds,
        slo_s=first.slo_s,
        lag_limit_s=first.lag_limit_s,
        statuses=counted(statuses),
        latency=_merged([r.latency for r in results]),
        lag=_merged([r.lag for r in results]),
        latency_max_s=max(r.latency_max_s for r in results),
        lag_max_s=max(r.lag_max_s for r in results),
        processes_n=sum(r.processes_n for r in results),
        cpu_s=sum(r.cpu_s for r in results),
        first_error=next((r.first_error for r in results if r.first_error), ""),
        stopped=any(r.stopped for r in results),
        **{name: sum(getattr(r, name) for r in results) for name in sums},
    )


def counted(statuses: dict[int, int]) -> tuple[StatusCount, ...]:
    """Return counts by status in their resting form."""
    return tuple(StatusCount(status, n) for status, n in sorted(statuses.items()))


def as_json(result: LoadResult) -> dict[str, Any]:
    """Return the result with fixed keys; milliseconds, null where there is nothing to say."""
    return {
        "mode": result.mode,
        "seconds": result.seconds,
        "offered": result.offered_n,
        "ok": result.ok_n,
        "statuses": {str(entry.status): entry.n for entry in result.statuses},
        "timeouts": result.timeouts_n,
        "broken": result.broken_n,
        "unfinished": result.unfinished_n,
        "rps": round(result.rps, 3),
        "slo_ms": _ms(result.slo_s),
        "goodput_rps": result.goodput_rps,
        "attainment": result.attainment,
        **{name: _ms(result.latency_at(quantile)) for name, quantile in _QUANTILES},
        "max_ms": _ms(result.latency_max_s),
        "lag_p99_ms": _ms(result.lag_p99_s),
        "lag_max_ms": _ms(result.lag_max_s),
        "lag_limit_ms": _ms(result.lag_limit_s),
        "void": result.void,
        "stopped": result.stopped,
        "connections": result.connections_n,
        "processes": result.processes_n,
        "first_error": result.first_error,
    }


def print_table(rows: Sequence[tuple[str, LoadResult]], console: Console) -> None:
    """Print one line per run; a void one says so instead of passing for a measurement."""
    table = Table(box=None, pad_edge=False)
    for heading in ("load", "rps", "p50 ms", "p95 ms", "p99 ms", "p99.9 ms", "max ms", "errors", "lag p99 ms"):
        table.add_column(heading, justify="left" if heading == "load" else "right", no_wrap=True)
    for label, result in rows:
        quantiles = [_cell(_ms(result.latency_at(quantile))) for _, quantile in _QUANTILES]
        lag = _cell(_ms(result.lag_p99_s)) + (" (void)" if result.void else "")
        worst = _cell(_ms(result.latency_max_s))
        table.add_row(label, f"{result.rps:.1f}", *quantiles, worst, str(result.errors_n), lag)
    console.print(table)


def _merged(parts: Sequence[Hist]) -> Hist:
    whole = Histogram()
    for part in parts:
        whole.merge(Histogram.from_sparse(part))
    return whole.sparse()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 3)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"
