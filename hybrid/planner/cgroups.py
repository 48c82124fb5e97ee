"""The limits that control groups put on this process: CPU quota, CPU set and memory, for v1, v2 and both at once.

Owns the knowledge of where the kernel keeps these files. Knows nothing of affinity or of the host; `machine` takes the
minimum of everything. Every file may be missing, unreadable or strange: then that limit is simply not known.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

#: v1 writes "no limit" as the largest page-aligned 63-bit number; nothing near it is a real machine.
_NO_LIMIT_BYTES: Final = 1 << 60
#: No kernel can be built for so many; a range beyond is a damaged file, and must not fill the memory.
_MOST_CPUS: Final = 1 << 16
_MOST_DIGITS: Final = 20


class CgroupLimits(Struct, frozen=True):
    """What the control groups allow; None where they set no limit. The sources name file and group.

    `cpu_quota` is in CPUs (1.5 = 150 ms of CPU time per 100 ms), `memory_bytes` the lowest limit on the way up.
    """

    cpu_quota: float | None = None
    cpu_source: str = ""
    cpuset: tuple[int, ...] | None = None
    memory_bytes: int | None = None
    memory_source: str = ""


class Level(Struct, frozen=True):
    """One directory on the way from the process's group to the root of a hierarchy; `version` is 1 or 2."""

    version: int
    folder: Path
    group: str

    def source(self, name: str) -> str:
        """Return how a limit that stands in the file `name` is cited."""
        return f"cgroup v{self.version} {name} of {self.group}"


def read_limits(root: Path) -> CgroupLimits:
    """Read the limits below `root` ("/" on a live machine), walking each hierarchy up to its mount point.

    A parent's limit binds its children too, so every level counts: a pod's limit is set one level above the
    container's, and a group without a limit of its own may sit in one that has.
    """
    quota = min(_quotas(root), default=(None, ""), key=lambda found: found[0])
    memory = min(_memory_limits(root), default=(None, ""), key=lambda found: found[0])
    return CgroupLimits(quota[0], quota[1], _cpuset(root), memory[0], memory[1])


def levels(root: Path, controller: str) -> Iterator[Level]:
    """Return every directory of ours that may have files of `controller`: in each hierarchy from our own group upwards.

    A hybrid machine has the controller in v1 and an empty v2 tree beside it, or the reverse: looking into both and
    finding nothing in one is simpler, and safer, than deciding which of them is in charge.
    """
    groups = _own_groups(root)
    for version, mount_root, point in _mounts(root, controller):
        group = groups.get("" if version == 2 else controller, "/")
        inside = _inside(group, mount_root)
        folder = root / point.lstrip("/")
        parts = [part for part in inside.split("/") if part]
        for depth in range(len(parts), -1, -1):
            yield Level(version, folder.joinpath(*parts[:depth]), "/" + "/".join(parts[:depth]))


def parse_cpu_list(text: str) -> tuple[int, ...] | None:
    """Parse the kernel's list form, "0-3,8,10-11". Returns None when it is empty or not such a list."""
    cpus: set[int] = set()
    for part in text.strip().split(","):
        first, dash, last = part.strip().partition("-")
        lowest = parse_number(first)
        highest = parse_number(last) if dash else lowest
        if lowest is None or highest is None or highest > _MOST_CPUS:
            return None
        cpus.update(range(lowest, highest + 1))
    return tuple(sorted(cpus)) or None


def parse_number(text: str) -> int | None:
    """Parse a number that the kernel wrote, in up to 64 bits; None for anything else, signs included."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS else None


def read_text(path: Path) -> str | None:
    """Return the text of a kernel file, or None when it cannot be read for whatever reason."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _quotas(root: Path) -> Iterator[tuple[float, str]]:
    for level in levels(root, "cpu"):
        if level.version == 2:
            name = "cpu.max"
            quota, _, period = (read_text(level.folder / name) or "").partition(" ")
        else:
            name = "cpu.cfs_quota_us"
            quota = read_text(level.folder / name) or ""
            period = read_text(level.folder / "cpu.cfs_period_us") or ""
        # "max" and -1 mean none and are no numbers; a missing period is the kernel's default of 100 ms.
        if quota_us := parse_number(quota):
            yield quota_us / (parse_number(period) or 100_000), level.source(name)


def _memory_limits(root: Path) -> Iterator[tuple[int, str]]:
    # memory.high is left out on purpose: above it the kernel slows a group down, it does not refuse memory.
    for level in levels(root, "memory"):
        name = "memory.max" if level.version == 2 else "memory.limit_in_bytes"
        limit_bytes = parse_number(read_text(level.folder / name) or "")
        if limit_bytes and limit_bytes < _NO_LIMIT_BYTES:
            yield limit_bytes, level.source(name)


def _cpuset(root: Path) -> tuple[int, ...] | None:
    """The CPUs of the nearest level that lists any; the kernel keeps a child's list inside its parent's."""
    found: dict[int, tuple[int, ...]] = {}
    for level in levels(root, "cpuset"):
        names = ("cpuset.cpus.effective",) if level.version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
        for name in names:
            cpus = parse_cpu_list(read_text(level.folder / name) or "")
            if cpus is not None:
                found.setdefault(level.version, cpus)
    both = set.intersection(*(set(cpus) for cpus in found.values())) if found else set()
    return tuple(sorted(both)) or None


def _inside(group: str, mount_root: str) -> str:
    """The path of `group` below a mount that shows the hierarchy from `mount_root` down.

    Inside a container the mount often shows exactly the container's group, or the group is written relative to a
    namespace ("/../.."): then what is visible at the mount point is the best known answer.
    """
    if ".." in group.split("/"):
        return ""
    if mount_root == "/":
        return group
    return group[len(mount_root) :] if group == mount_root or group.startswith(mount_root + "/") else ""


def _own_groups(root: Path) -> dict[str, str]:
    """/proc/self/cgroup as controller -> group; "" is the v2 hierarchy."""
    groups = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            groups.update(dict.fromkeys(fields[1].split(","), fields[2]))
    return groups


def _mounts(root: Path, controller: str) -> list[tuple[int, str, str]]:
    """Mounts that may hold `controller`, as (version, root of the mount, mount point)."""
    mounts = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2":
            mounts.append((2, _unescape(fields[3]), _unescape(fields[4])))
        elif kind[0] == "cgroup" and controller in kind[2].split(","):
            mounts.append((1, _unescape(fields[3]), _unescape(fields[4])))
    return mounts or _usual_mounts(controller)


def _usual_mounts(controller: str) -> list[tuple[int, str, str]]:
    """Where distributions mount the hierarchies, for sandboxes that hide mountinfo; those not there read as empty."""
    base = "/sys/fs/cgroup"
    folders = ("cpu", "cpu,cpuacct") if controller == "cpu" else (controller,)
    return [(2, "/", base), *((1, "/", f"{base}/{folder}") for folder in folders)]


def _unescape(path: str) -> str:
    """Undo the octal escapes that the kernel writes for blanks in a mount point."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
