"""How much of its time a process waited for a CPU that others used, and whether they still use it.

A batch that takes twice as long because a compiler runs beside it says nothing about the model, and looks like one that
does. The kernel's count of waiting is asked, not the load of the machine: in a container that counts strangers on CPUs
that are not ours. What a hypervisor takes away is not in it.
"""

from pathlib import Path
from typing import Final

from hybrid.facts import MachineFacts
from hybrid.planner.spin import measure_spin

_CALM: Final = 0.90
_TASKS: Final = Path("/proc/self/task")


def waited_s(tasks: Path = _TASKS) -> float:
    """Seconds that the threads of this process have waited for a CPU since they began; 0 where nobody counts."""
    total_ns = 0
    for task in tasks.glob("*/schedstat"):
        try:
            total_ns += int(task.read_text().split()[1])
        except (OSError, IndexError, ValueError):  # the thread has ended, or this kernel does not count
            continue
    return total_ns / 1e9


def is_calm(machine: MachineFacts) -> bool:
    """Whether busy processes get the CPUs that they may use now. Takes half a second."""
    usable = machine.cpu.usable
    return any(rate.received_cpus >= _CALM * usable for rate in measure_spin((usable,)))
