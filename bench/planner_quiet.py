"""How quiet a measurement was: CPU time that others took meanwhile, and how fast this machine was just before.

A virtual machine with neighbours may lose half of its speed for minutes, and nothing in a latency says so.
"""

import resource
import time
from typing import Final

import numpy as np
import psutil
from msgspec import Struct

_SPEED_S: Final = 0.3
_SIDE: Final = 384


class Quiet(Struct, frozen=True):
    """`speed_gflops` of matrix products before, `foreign_cpus` that others kept busy, `stolen_share` by the host."""

    speed_gflops: float
    foreign_cpus: float
    stolen_share: float


class Watch:
    """Begins with a look at the speed; `end` says how it was since."""

    def __init__(self) -> None:
        self._speed_gflops = _speed_gflops()
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
        return Quiet(round(self._speed_gflops, 2), round(foreign, 3), round(stolen, 4))


def _own_cpu_s() -> float:
    return sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )


def _speed_gflops() -> float:
    left = np.random.default_rng(1).random((_SIDE, _SIDE), np.float32)
    left @ left
    runs, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < _SPEED_S:
        left @ left
        runs += 1
    return runs * 2 * _SIDE**3 / (time.perf_counter() - began_s) / 1e9
