"""The load generator: sends at intended times, whatever the server does, and measures from those times.

Owns the pace of one run. An open loop that waited for answers would hide every stall (coordinated omission): here a
request whose time has come is sent, on a new connection if all are busy, or waits for one within its own latency. The
generator measures how late it is itself. Must never know models or protocols above HTTP.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from typing import Final

from hybrid.errors import StartupError
from hybrid.load.arrivals import Closed, Sending, mean_rate_rps, sendings
from hybrid.load.carriers import Carriers, Shot
from hybrid.load.punctual import first_in_line, undisturbed_by_collections
from hybrid.load.report import LoadResult
from hybrid.load.spec import Address, LoadSpec
from hybrid.load.tally import Tally
from hybrid.load.ticker import Ticker

#: To go first at each of many sends takes more from a server on the same CPUs than clients elsewhere would: with
#: thousands a second on two CPUs a small model held its objective at half of what it carries, otherwise at 0.8 of it.
_FIRST_RPS_PER_CPU: Final = 1000.0
_SENDS_PER_TICK: Final = 64  # then answers are read, even when the generator is behind
_SWEEP_S: Final = 0.02
_RETRY_S: Final = 0.05  # of a client in a closed loop whose connection failed
_FIRST_CONNECTIONS: Final = 8


async def drive(spec: LoadSpec) -> LoadResult:
    """Send the whole load from this process and return what became of it; cancelled, it leaves nothing open.

    Raises:
        ConfigError: the URL is none of HTTP.
        StartupError: nobody listens there.
    """
    generator = Generator(spec)
    try:
        await generator.connect()
        return await generator.run(time.monotonic())
    finally:
        generator.close()


class Generator:
    """One of `parts` generators of a run. Connect, run, close; once each. `close` may come at any time."""

    def __init__(self, spec: LoadSpec, part: int = 0, parts: int = 1) -> None:
        self._spec = spec
        self._address = Address(spec.url)
        self._data = [self._address.request(payload) for payload in spec.payloads]
        self._sizes = [payload.size for payload in spec.payloads]
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()
        self._ticker = Ticker(self._loop, self._tick)
        self._carriers = Carriers(self._address, spec.max_connections, self)
        self._part, self._parts = part, parts
        self._sent_n = 0
        self._users_n = 0
        self._times: Iterator[Sending] = iter(())
        self._next: Sending | None = None
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._closed = self._stopped = False

    async def connect(self) -> None:
        """Open the first connections.

        Raises:
            StartupError: none could be opened within five seconds.
        """
        wanted = self._users() if isinstance(self._spec.arrivals, Closed) else _FIRST_CONNECTIONS
        why = await self._carriers.connect(wanted)
        if why:
            raise StartupError(f"cannot connect to {self._address.name}: {why}")

    async def run(self, start_s: float) -> LoadResult:
        """Send from `start_s` of the monotonic clock on, and return when the window and its answers are over."""
        spec = self._spec
        self._start_s = start_s
        self._window_s = start_s + spec.warmup_s
        self._end_s = self._window_s + spec.seconds
        closed = isinstance(spec.arrivals, Closed)
        self._tally = Tally(self._end_s, spec.slo_s, closed=closed)
        began_cpu_s = time.process_time()
        self._sweep()
        if closed:
            self._users_n = self._users()
            self._loop.call_later(max(0.0, start_s - time.monotonic()), self._start_users)
        else:
            self._times = self._sendings()
            self._wait_for_next()
        with undisturbed_by_collections(), first_in_line() if self._goes_first() else nullcontext():
            await self._done
        self._tally.unfinished_n = sum(shot.counts for shot in self._carriers.under_way())
        cpu_s = time.process_time() - began_cpu_s
        return self._tally.result(spec.seconds, spec.lag_limit_s, cpu_s, stopped=self._stopped)

    def close(self) -> None:
        """Close every connection and timer, whatever is under way."""
        self._closed = True
        self._ticker.close()
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        self._carriers.close()
        self._done.cancel()

    # Open loop -----------------------------------------------------------------------------------------------------

    def _goes_first(self) -> bool:
        """Whether the load takes little enough of the CPUs to go before the server: less than a tenth."""
        arrivals = self._spec.arrivals
        if isinstance(arrivals, Closed):
            return False
        return mean_rate_rps(arrivals) <= _FIRST_RPS_PER_CPU * len(os.sched_getaffinity(0))

    def _sendings(self) -> Iterator[Sending]:
        spec = self._spec
        assert not isinstance(spec.arrivals, Closed)
        times = sendings(spec.arrivals, spec.warmup_s + spec.seconds, self._part, self._parts)
        return islice(times, spec.max_requests)

    def _wait_for_next(self) -> None:
        """Look at the next send time, and ask to be called then."""
        self._next = next(self._times, None)
        if self._next is not None:
            self._ticker.arm(self._start_s + self._next.t_s)
        else:
            self._maybe_done()

    def _tick(self) -> None:
        """Send what is due."""
        for _ in range(_SENDS_PER_TICK):
            sending = self._next
            if sending is None:
                self._maybe_done()
                return
            due_s = self._start_s + sending.t_s
            late_s = time.monotonic() - due_s
            if late_s < 0.0:
                break
            self._next = next(self._times, None)
            shot = self._shot(due_s, sending.size)
            if shot.counts:
                self._tally.lag(late_s)
            self._carriers.launch(shot)
        if self._next is not None:
            self._ticker.arm(self._start_s + self._next.t_s)

    # Closed loop ---------------------------------------------------------------------------------------------------

    def _users(self) -> int:
        assert isinstance(self._spec.arrivals, Closed)
        whole, rest = divmod(self._spec.arrivals.concurrency, self._parts)
        return whole + (self._part < rest)

    def _start_users(self) -> None:
        for _ in range(self._users_n):
            self._user_sends()
        self._maybe_done()

    def _user_sends(self) -> None:
        if self._closed:
            return
        now = time.monotonic()
        if now < self._end_s and self._sent_n < self._spec.max_requests:
            self._carriers.launch(self._shot(now, None))
        else:
            self._users_n -= 1
            self._maybe_done()

    def _goes_on(self, failed: bool) -> None:
        """One request is over: in a closed loop its client sends again, later if it thinks or lost its connection."""
        arrivals = self._spec.arrivals
        if isinstance(arrivals, Closed):
            pause_s = max(arrivals.think_s, _RETRY_S if failed else 0.0)
            if pause_s:
                self._loop.call_later(pause_s, self._user_sends)
            else:
                self._user_sends()
        self._maybe_done()

    # Shots ---------------------------------------------------------------------------------------------------------

    def _shot(self, intended_s: float, size: int | None) -> Shot:
        if size is None:
            index = (self._sent_n * self._parts + self._part) % len(self._data)
        else:
            index = min(range(len(self._sizes)), key=lambda i: abs(self._sizes[i] - size))
        self._sent_n += 1
        counts = intended_s >= self._window_s
        self._tally.offered_n += counts
        return Shot(intended_s, self._data[index], counts)

    def answered(self, shot: Shot, status: int, error: str) -> None:
        """Count an answer."""
        now = time.monotonic()
        if shot.counts:
            self._tally.answered(status, error, shot.intended_s, now)
        elif now >= self._window_s:
            self._tally.came_in_window(status, now)
        self._goes_on(failed=False)

    def broken(self, shot: Shot, why: str) -> None:
        """Count a lost request."""
        if shot.counts:
            self._tally.broken(why)
        self._goes_on(failed=True)

    def timed_out(self, shot: Shot) -> None:
        """Count a request that was given up."""
        if shot.counts:
            self._tally.timed_out(self._spec.timeout_s)
        self._goes_on(failed=False)

    # The end -------------------------------------------------------------------------------------------------------

    def _sweep(self) -> None:
        """Give up on requests over their time limit, and on all when the time for draining is over."""
        now = time.monotonic()
        self._carriers.expire(now - self._spec.timeout_s)
        self._tally.connections_n = max(self._tally.connections_n, self._carriers.open_n)
        limit = self._spec.late_limit
        if limit is not None and self._tally.late_n >= limit:
            self._stopped = not self._done.done() or self._stopped
            self._finish()
        elif now >= self._end_s + self._spec.drain_s:
            self._finish()
        self._sweep_timer = self._loop.call_later(_SWEEP_S, self._sweep)

    def _maybe_done(self) -> None:
        if self._next is None and not self._users_n and self._carriers.idle:
            self._finish()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)
