"""How quiet a measurement was: CPU time that others took meanwhile, and how fast this machine was just before.

A virtual machine with neighbours may lose half of its speed for minutes, and nothing in a latency says so.
"""

import os
import resource
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import psutil
from msgspec import Struct

_SPEED_S: Final = 0.25
_SIZE: Final = 16_384


class Quiet(Struct, frozen=True):
    """What the machine computed just before and after, `foreign_cpus` that others kept busy, what the host stole.

    Speeds are in elements of a vector function per second on all CPUs together: only their ratios mean something.
    """

    speed_before: float
    speed_after: float
    foreign_cpus: float
    stolen_share: float


class Watch:
    """Begins with a look at the speed; `end` says how it was since."""

    def __init__(self) -> None:
        self._speed = speed()
        self._began_s = time.monotonic()
        self._host, self._own_s = psutil.cpu_times(), _own_cpu_s()

    def end(self) -> Quiet:
        """Return what was seen; children that were started since must have ended, to count as ours."""
        took_s = time.monotonic() - self._began_s
        now = psutil.cpu_times()
        busy_s = sum(
            getattr(now, name) - getattr(self._host, name) for name in ("user", "nice", "system", "irq", "softirq")
        )
        foreign = max(0.0, busy_s - (_own_cpu_s() - self._own_s)) / took_s
        stolen = (now.steal - self._host.steal) / (took_s * psutil.cpu_count())
        return Quiet(self._speed, speed(), round(foreign, 3), round(stolen, 4))


def _own_cpu_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def speed() -> float:
    """Elements per second of a vector function on all usable CPUs, one thread each."""
    began_s = time.perf_counter()
    with ThreadPoolExecutor() as threads:
        runs = sum(threads.map(_spin, [began_s + _SPEED_S] * len(os.sched_getaffinity(0))))
    return round(runs * _SIZE / (time.perf_counter() - began_s))


def _spin(end_s: float) -> int:
    values = np.random.default_rng(1).random(_SIZE, np.float32)
    out = np.empty_like(values)
    runs = 0
    while time.perf_counter() < end_s:
        np.exp(values, out=out)
        runs += 1
    return runs
