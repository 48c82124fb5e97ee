"""Whether the kernel has killed processes for lack of memory, by its own counters. It tells nobody which ones.

Owns where those counters are. Must never know whose end is to be explained.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hybrid.planner.cgroups import parse_number, read_text

#: What is added to the end of a process that was killed while a counter rose.
HINT: Final = "the kernel's out-of-memory killer has run meanwhile"
_GROUPS: Final = "sys/fs/cgroup"


def kill_counts(root: Path = Path("/")) -> dict[Path, int]:
    """Return how often it has killed so far, by file: in our control groups of v1 and v2, and on the whole machine.

    Counters that cannot be read are left out.
    """
    counts = {}
    for path in _files(root):
        for line in (read_text(path) or "").splitlines():
            key, _, value = line.partition(" ")
            number = parse_number(value)
            if key == "oom_kill" and number is not None:
                counts[path] = number
    return counts


def has_killed(before: dict[Path, int], after: dict[Path, int]) -> bool:
    """Whether any counter has risen. One that could be read only once says nothing."""
    return any(after.get(path, number) > number for path, number in before.items())


def _files(root: Path) -> Iterator[Path]:
    """The group's own folder and, as in a container the path may be that of the host, the mount point.

    v1 has `failcnt` as well, which is no evidence: it counts memory that was refused at first and then reclaimed.
    """
    yield root / "proc/vmstat"
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            mounts, name = [_GROUPS, f"{_GROUPS}/unified"], "memory.events"
        elif "memory" in controllers.split(","):
            mounts, name = [f"{_GROUPS}/memory"], "memory.oom_control"
        else:
            continue
        for mount in mounts:
            for inside in dict.fromkeys((group.strip("/"), "")):
                yield root / mount / inside / name
