"""Whether the kernel has killed processes for lack of memory, by its own counters. It tells nobody which ones.

Owns which counters those are. Must never know whose end is to be explained.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hybrid.planner.cgroups import levels, parse_number, read_text

#: What is added to the end of a process that was killed while a counter rose.
HINT: Final = "the kernel's out-of-memory killer has run meanwhile"


def kill_counts(root: Path = Path("/")) -> dict[Path, int]:
    """Return how often it has killed so far, by file: that of the nearest control group that counts, or the machine's.

    Empty where there is no such file. Groups further up and the machine also count the ends of strangers.
    """
    for path in _files(root):
        for line in (read_text(path) or "").splitlines():
            key, _, value = line.partition(" ")
            number = parse_number(value)
            if key == "oom_kill" and number is not None:
                return {path: number}
    return {}


def has_killed(before: dict[Path, int], after: dict[Path, int]) -> bool:
    """Whether a counter has risen. One that could be read only once says nothing."""
    return any(after.get(path, number) > number for path, number in before.items())


def _files(root: Path) -> Iterator[Path]:
    """v1 has `failcnt` as well, which is no evidence: it counts memory that was refused at first and then reclaimed."""
    for level in levels(root, "memory"):
        yield level.folder / ("memory.events" if level.version == 2 else "memory.oom_control")
    yield root / "proc/vmstat"
