"""Builds machines as trees of files: the /proc and /sys that a case is about, and nothing else."""

from pathlib import Path

GIB = 1 << 30
V2 = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
V1_CPU = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu"
V1_CPUACCT = "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
V1_MEMORY = "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"
V1_CPUSET = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset"
NO_LIMIT_V1 = "9223372036854771712"


class Tree:
    """Builds one machine below a folder; every part can be left out."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: object) -> "Tree":
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(f"{text}\n")
        return self

    def host(self, cpus: int = 8, memory_kb: int = 16 * 1024 * 1024, flags: str = "avx avx2 fma") -> "Tree":
        blocks = [f"processor\t: {cpu}\nmodel name\t: Test CPU\nflags\t\t: {flags}\n" for cpu in range(cpus)]
        self.file("proc/cpuinfo", "\n".join(blocks)).file("proc/meminfo", f"MemTotal:  {memory_kb} kB")
        return self.file("sys/devices/system/cpu/online", f"0-{cpus - 1}" if cpus > 1 else "0")

    def groups(self, *lines: str) -> "Tree":
        return self.file("proc/self/cgroup", "\n".join(lines))

    def mounts(self, *lines: str) -> "Tree":
        return self.file("proc/self/mountinfo", "\n".join(lines))

    def group_file(self, path: str, text: object) -> "Tree":
        return self.file(f"sys/fs/cgroup/{path}", text)
