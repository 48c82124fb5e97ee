"""From the batches of several processes to the time of one batch while all of them ran. Pure."""

import statistics
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hybrid.probing.messages import Timed


class Summary(Struct, frozen=True):
    """Median seconds of one batch, (p90 - p10) / median, and over how many batches or groups of batches.

    `waited` is the share of the time in which the threads waited for a CPU that somebody else used.
    """

    seconds: float
    spread: float
    runs: int
    waited: float = 0.0


def summarise(members: Sequence[Timed], threads: int = 1) -> Summary:
    """Return the time of a batch while all members ran, each with so many threads.

    Only batches that lie wholly in the common part count: the first one of an early starter and the last one of
    whoever ends late had less company. Where batches are so long that none does, all of them count.

    Raises:
        ValueError: a member has run nothing.
    """
    if not all(member.batches for member in members):
        raise ValueError("a process has run no batch")
    begin = max(member.batches[0][0] for member in members)
    end = min(member.batches[-1][1] for member in members)
    everything: list[float] = []
    common: list[float] = []
    for member in members:
        for began, ended in member.batches:
            seconds = (ended - began) / member.group
            everything.append(seconds)
            if began >= begin and ended <= end:
                common.append(seconds)
    chosen = common or everything
    middle = statistics.median(chosen)
    low, high = np.quantile(chosen, (0.1, 0.9))
    spread = float(high - low) / middle if middle else 0.0
    ran_s = sum(member.batches[-1][1] - member.batches[0][0] for member in members) * threads
    waited = sum(member.waited_s for member in members) / ran_s if ran_s else 0.0
    return Summary(middle, spread, len(chosen), min(1.0, max(0.0, waited)))
