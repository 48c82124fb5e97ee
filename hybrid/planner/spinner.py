"""The program `python -m hybrid.planner.spinner`: is busy when told so, and says how much of a CPU it got.

Started by `hybrid.planner.spin`. Imports next to nothing, because there is one process per CPU of the machine.
"""

import sys
import time

from hybrid.group_signals import leave_to_parent

#: A step of the loop takes a tenth of a microsecond; one this long was interrupted.
_PAUSE_S = 5e-5


def main() -> None:
    """Answer each line `START SECONDS` (monotonic time) with the share of a CPU that was received, until stdin ends."""
    leave_to_parent()  # who asks ends this process
    print("ready", flush=True)
    for line in sys.stdin:
        start_s, seconds = map(float, line.split())
        time.sleep(max(0.0, start_s - time.monotonic()))
        print(_received(seconds), flush=True)


def _received(seconds: float) -> float:
    """Be busy and return the part of `seconds` in which the loop really ran, 0 to 1.

    The lower one of two readings: the kernel's count of CPU time, and the time without pauses. The kernel of a virtual
    machine may not see that its host runs another guest; the pauses do not tell who caused them but miss none.

    A third of the time again goes by before: a process that was idle starts with credit, and what a quota gives in
    the long run is seen when that is used up.
    """
    _busy(seconds / 3.0)
    cpu_start_s = time.process_time()
    paused_s = _busy(seconds)
    cpu_s = time.process_time() - cpu_start_s
    return max(0.0, min(1.0, cpu_s / seconds, 1.0 - paused_s / seconds))


def _busy(seconds: float) -> float:
    """Run for `seconds` and return the pauses in seconds; one that goes on beyond the end counts up to the end only."""
    last_s = time.perf_counter()
    end_s = last_s + seconds
    paused_s = 0.0
    while last_s < end_s:
        now_s = time.perf_counter()
        if now_s - last_s > _PAUSE_S:
            paused_s += min(now_s, end_s) - last_s
        last_s = now_s
    return paused_s


if __name__ == "__main__":
    main()
