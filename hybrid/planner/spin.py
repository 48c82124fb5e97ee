"""The spin probe: how much CPU time this machine really gives to k busy processes.

Affinity, CPU sets and quotas say what is allowed. Neighbours on the same machine, or on the same host of a virtual one,
take their part of that unseen. Owns the asking; decides nothing.
"""

import time
from collections.abc import Sequence
from typing import Final

from hybrid.planner.lines import Children, children
from hybrid.planner.measures import SpinRate

#: Three periods of a usual CPU quota, so that its stops are counted whole.
SPIN_S: Final = 0.3
_PROGRAM: Final = "hybrid.planner.spinner"
_LEAD_S: Final = 0.02
_START_S: Final = 5.0


def spin_counts(usable: int) -> tuple[int, ...]:
    """How many busy processes to try: one, all, and two points between."""
    return tuple(sorted({1, min(2, usable), max(1, usable // 2), usable}))


def measure_spin(counts: Sequence[int], seconds: float = SPIN_S) -> tuple[SpinRate, ...]:
    """Return what `counts` busy processes got, one after the other; fewer or none where processes fail or are too slow.

    They are processes because busy threads of one interpreter would wait for each other, and are not pinned: where the
    kernel puts busy processes is part of what they get.
    """
    limit_s = _START_S + len(counts) * (seconds + _LEAD_S) * 4
    spinners = children(_PROGRAM, max(counts, default=0), limit_s)
    if spinners is None:
        return ()
    with spinners:
        if None in spinners.hear(max(counts, default=0)):
            return ()
        rates = [_spin(spinners, count, seconds) for count in counts]
    return tuple(rate for rate in rates if rate is not None)


def _spin(spinners: Children, count: int, seconds: float) -> SpinRate | None:
    spinners.tell(f"{time.monotonic() + _LEAD_S} {seconds}", count)
    shares = [float(line) for line in spinners.hear(count) if line]
    return SpinRate(count, sum(shares)) if len(shares) == count else None
