"""Precedence for a load generator that shares its machine with the server it measures. Knows nothing of loads.

Clients on other machines do not wait for the server's CPUs. One beside the server does: its timer fires, and it is
picked up when the server's slice or a kernel thread's is over, which is several milliseconds on a small machine.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

# The least urgent of the real-time priorities is above all ordinary work, and whoever is started meanwhile is ordinary
# again. A better nice value was tried: the wait is until the next clock tick all the same.
_FIRST: Final = os.SCHED_RR | os.SCHED_RESET_ON_FORK
_PRIORITY: Final = os.sched_param(1)


@contextmanager
def first_in_line() -> Iterator[None]:
    """Run this thread before all ordinary work, where the process may ask for that; afterwards it is as it was."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, _FIRST, _PRIORITY)
    except OSError:  # neither root nor allowed by RLIMIT_RTPRIO, or a sandbox without the call
        yield
        return
    try:
        yield
    finally:
        with suppress(OSError):
            os.sched_setscheduler(0, *before)
