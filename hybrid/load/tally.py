"""Counting one run while it goes on. Pure: times are handed in."""

from hybrid.load.report import LoadResult, counted
from hybrid.telemetry.histogram import Histogram


class Tally:
    """What became of the requests that count; `end_s` is the monotonic end of the window."""

    def __init__(self, end_s: float, slo_s: float | None, *, closed: bool) -> None:
        self.offered_n = self.unfinished_n = self.connections_n = 0
        self._end_s = end_s
        self._slo_s = slo_s
        self._closed = closed
        self._statuses: dict[int, int] = {}
        self._timeouts_n = self._broken_n = self._in_window_n = self._good_n = self._ended_n = 0
        self._latency, self._lag = Histogram(), Histogram()
        self._latency_max_s = self._lag_max_s = 0.0
        self._first_error = ""

    def lag(self, late_s: float) -> None:
        """Count how late a send was."""
        self._lag.observe(late_s)
        self._lag_max_s = max(self._lag_max_s, late_s)

    def answered(self, status: int, error: str, intended_s: float, now: float) -> None:
        """Count an answer; only those of 200..299 have a latency, or overload would look fast."""
        self._ended_n += 1
        self._statuses[status] = self._statuses.get(status, 0) + 1
        if not 200 <= status < 300:
            self._first_error = self._first_error or f"{status} {error}".strip()
            return
        took_s = now - intended_s
        self._took(took_s)
        self._in_window_n += now <= self._end_s
        self._good_n += self._slo_s is not None and took_s <= self._slo_s

    def came_in_window(self, status: int, now: float) -> None:
        """Count an answer in the window to a request from before it.

        In a closed loop it is throughput: clients of a slow model would all wait from before the window to its end. An
        open loop is judged by what was offered in the window, and leaves it out.
        """
        self._in_window_n += self._closed and 200 <= status < 300 and now <= self._end_s

    def timed_out(self, limit_s: float) -> None:
        """Count a request that was given up; it took at least so long."""
        self._ended_n += 1
        self._timeouts_n += 1
        self._took(limit_s)
        self._first_error = self._first_error or f"no answer within {limit_s:g} s"

    def broken(self, why: str) -> None:
        """Count a request whose connection was lost or never made."""
        self._ended_n += 1
        self._broken_n += 1
        self._first_error = self._first_error or why

    @property
    def late_n(self) -> int:
        """Requests that have ended and were not answered within the objective."""
        return self._ended_n - self._good_n

    def result(self, seconds: float, lag_limit_s: float, cpu_s: float, *, stopped: bool = False) -> LoadResult:
        """Return the counts at rest."""
        return LoadResult(
            mode="closed" if self._closed else "open",
            seconds=seconds,
            offered_n=self.offered_n,
            statuses=counted(self._statuses),
            timeouts_n=self._timeouts_n,
            broken_n=self._broken_n,
            unfinished_n=self.unfinished_n,
            in_window_n=self._in_window_n,
            slo_s=self._slo_s,
            good_n=self._good_n,
            latency=self._latency.sparse(),
            latency_max_s=self._latency_max_s,
            lag=self._lag.sparse(),
            lag_max_s=self._lag_max_s,
            lag_limit_s=lag_limit_s,
            connections_n=self.connections_n,
            cpu_s=cpu_s,
            first_error=self._first_error,
            stopped=stopped,
        )

    def _took(self, seconds: float) -> None:
        self._latency.observe(seconds)
        self._latency_max_s = max(self._latency_max_s, seconds)
