"""One load from as many generator processes as its rate needs; their histograms are merged, never their percentiles.

Owns the processes: they end with the run, however it ends. Must never know what is measured.
"""

import asyncio
import math
import os
import sys
import time
from typing import Final, TypeVar

import uvloop
from msgspec import DecodeError

from hybrid.errors import StartupError
from hybrid.load.arrivals import Closed, mean_rate_rps
from hybrid.load.driver import drive
from hybrid.load.frames import LENGTH, Done, Failed, Frame, Job, Ready, Start, decode, encode
from hybrid.load.report import LoadResult, merge
from hybrid.load.spec import LoadSpec

PER_PROCESS_RPS: Final = 4000.0  # a generator uses about a third of a core then, and is seldom late
_LEAD_S: Final = 0.05
_START_S: Final = 20.0
_ENDING_S: Final = 10.0
T = TypeVar("T", Ready, Done)


def processes_for(spec: LoadSpec) -> int:
    """Return how many generators a load takes; one where the rate is not known before, as in a closed loop."""
    if isinstance(spec.arrivals, Closed):
        return 1
    wanted = math.ceil(mean_rate_rps(spec.arrivals) / PER_PROCESS_RPS)
    return max(1, min(wanted, len(os.sched_getaffinity(0))))


def run(spec: LoadSpec, processes: int | None = None) -> LoadResult:
    """Run a load on an event loop of its own and return its result.

    Raises:
        ConfigError: the URL is none of HTTP.
        StartupError: nobody listens there, or a generator process failed.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(drive_many(spec, processes))


async def drive_many(spec: LoadSpec, processes: int | None = None) -> LoadResult:
    """Send a load from `processes` generators (None: as many as it needs; one runs in this process).

    Raises:
        ConfigError, StartupError: as `run`.
    """
    parts = processes_for(spec) if processes is None else processes
    if parts == 1:
        return await drive(spec)
    children = [await _start() for _ in range(parts)]
    try:
        for part, child in enumerate(children):
            _send(child, Job(spec, part, parts))
        async with asyncio.timeout(_START_S):
            for child in children:
                await _expect(child, Ready)
        start = Start(time.monotonic() + _LEAD_S)
        for child in children:
            _send(child, start)
        async with asyncio.timeout(spec.warmup_s + spec.seconds + spec.drain_s + _ENDING_S):
            return merge([(await _expect(child, Done)).result for child in children])
    except TimeoutError as error:
        raise StartupError("a generator process did not answer in time") from error
    finally:
        await _end(children)


async def _start() -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hybrid.load.generate"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for who started it; it ends with its stdin
    )


def _send(child: asyncio.subprocess.Process, frame: Frame) -> None:
    assert child.stdin is not None
    child.stdin.write(encode(frame))


async def _expect(child: asyncio.subprocess.Process, kind: type[T]) -> T:
    assert child.stdout is not None
    try:
        (length,) = LENGTH.unpack(await child.stdout.readexactly(LENGTH.size))
        frame = decode(await child.stdout.readexactly(length))
    except (asyncio.IncompleteReadError, DecodeError) as error:
        raise StartupError(f"a generator process ended: {error}") from error
    if isinstance(frame, Failed):
        raise StartupError(frame.why)
    if not isinstance(frame, kind):
        raise StartupError(f"a generator process said {type(frame).__name__}, expected {kind.__name__}")
    return frame


async def _end(children: list[asyncio.subprocess.Process]) -> None:
    for child in children:
        if child.returncode is None:
            child.kill()
    await asyncio.gather(*(child.wait() for child in children))
