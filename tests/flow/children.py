"""For tests of child processes without a server: a log for nobody, a check for leaks, waiting."""

import asyncio
import os
import time
from contextlib import contextmanager

import psutil

from hybrid.telemetry.logs import setup_logging


@contextmanager
def quiet_hub():
    with open(os.devnull, "w") as nowhere:
        hub = setup_logging(stream=nowhere)
        try:
            yield hub
        finally:
            hub.close()


@contextmanager
def nothing_leaks():
    """Descriptors, mappings and threads are what they were."""

    def held():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), maps.read().count("memfd:hybrid"), psutil.Process().num_threads()

    before = held()
    yield
    ends = time.monotonic() + 3.0
    while any(now > then for now, then in zip(held(), before, strict=True)) and time.monotonic() < ends:
        time.sleep(0.02)
    assert all(now <= then for now, then in zip(held(), before, strict=True)), (before, held())


async def until(condition, timeout_s=20.0):
    ends = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends, "never happened"
        await asyncio.sleep(0.01)


def cause_of(end):
    return getattr(end, "cause", end)
