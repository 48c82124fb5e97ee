"""Facts of the host and of our processes, read now: CPU, memory, pressure, throttling.

Owns the reading of the kernel's counters and the few values that need the reading before. Knows nothing of models or
requests; the owner of each process says what it is called. Nothing here waits: `psutil.cpu_percent(interval)` would
block the caller for its whole interval, so fractions are computed between two calls instead. Whatever cannot be read
is None with its reason, because a container, an old kernel or a dying process is no error of ours.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import psutil
from msgspec import Struct

from hybrid.telemetry.snapshot import Core, Host

T = TypeVar("T")

_USEC: Final = 1e6
_NSEC: Final = 1e9


class ProcessSample(Struct, frozen=True):
    """One live process: resident bytes and CPU seconds since it started."""

    owner: str
    pid: int
    rss: int
    cpu_s: float


class HostSample(Struct, frozen=True):
    """What one call of `Sampler.sample` found. `absent` maps dotted Snapshot names to the reason they are None."""

    t_mono_s: float
    host: Host
    processes: tuple[ProcessSample, ...]
    absent: dict[str, str]


class _AbsentError(Exception):
    """A fact that this machine does not give; the text is the reason."""


class _Stat(Struct, frozen=True):
    """The parts of /proc/stat: per CPU (idle, total) ticks, context switches, runnable tasks."""

    ticks: dict[int, tuple[int, int]]
    switches_n: int
    running: int


class Sampler:
    """Reads the host once per call; call it from one thread at a regular pace (1 Hz).

    Args:
        cpus: ids of the CPUs that the server may use.
        memory_limit_bytes: the smaller of host memory and cgroup limit, from the machine facts.
        root: where /proc and /sys are found.
    """

    def __init__(self, cpus: Sequence[int], memory_limit_bytes: int, root: Path = Path("/")) -> None:
        self._cpus = frozenset(cpus)
        self._limit = memory_limit_bytes
        self._proc = root / "proc"
        self._cgroup = root / "sys/fs/cgroup"
        self._ticks: dict[int, tuple[int, int]] = {}
        # By pid: the owner of a process may be called otherwise later, its CPU time must not count twice then.
        self._processes: dict[int, psutil.Process] = {}
        self._cpu_s: dict[int, float] = {}
        self._ended_cpu_s = 0.0

    def sample(self, now: float, pids: Mapping[str, int]) -> HostSample:
        """Read everything once. `pids` maps the name of each of our processes to its pid.

        A process that is gone is left out of `processes` and named in `absent`; its CPU time stays in `host.cpu_s`.
        """
        absent: dict[str, str] = {}
        stat = _attempt(absent, "cores run_queue switches_n", self._read_stat)
        throttled = _attempt(absent, "throttled_s throttled_n", self._read_throttled)
        used = _attempt(absent, "mem_used mem_avail", self._read_memory)
        processes = self._read_processes(pids, absent)
        host = Host(
            cores=self._cores(stat.ticks) if stat else (),
            usable_cpus=len(self._cpus),
            cpu_s=self._ended_cpu_s + sum(self._cpu_s.values()),
            throttled_s=throttled[0] if throttled else None,
            throttled_n=throttled[1] if throttled else None,
            psi_cpu_s=_attempt(absent, "psi_cpu_s", lambda: self._read_pressure("cpu")),
            psi_mem_s=_attempt(absent, "psi_mem_s", lambda: self._read_pressure("memory")),
            run_queue=stat.running if stat else None,
            switches_n=stat.switches_n if stat else None,
            mem_limit=self._limit,
            mem_used=used[0] if used else None,
            mem_avail=used[1] if used else None,
            faults_n=_attempt(absent, "faults_n", self._read_faults),
        )
        return HostSample(now, host, processes, absent)

    def _cores(self, ticks: dict[int, tuple[int, int]]) -> tuple[Core, ...]:
        cores = []
        for cpu, (idle, total) in ticks.items():
            idle_before, total_before = self._ticks.get(cpu, (idle, total))
            passed = total - total_before
            # The idle counters of Linux may step back a little, so the fraction is clamped.
            busy = min(1.0, max(0.0, 1.0 - (idle - idle_before) / passed)) if passed > 0 else None
            cores.append(Core(cpu, busy, cpu in self._cpus))
        self._ticks = ticks
        return tuple(cores)

    def _read_stat(self) -> _Stat:
        # Not psutil.cpu_times(percpu=True): it drops the CPU ids, and lists have gaps where CPUs are offline.
        ticks: dict[int, tuple[int, int]] = {}
        single: dict[str, int] = {}
        for line in _read(self._proc / "stat").splitlines():
            name, *rest = line.split()
            if name.startswith("cpu") and name[3:].isdigit():
                numbers = [int(field) for field in rest[:8]]  # guest time is part of user time already
                ticks[int(name[3:])] = (numbers[3] + numbers[4], sum(numbers))
            elif name in ("ctxt", "procs_running"):
                single[name] = int(rest[0])
        return _Stat(ticks, single["ctxt"], single["procs_running"])

    def _read_throttled(self) -> tuple[float, int]:
        # A hybrid machine has a v2 cpu.stat without quota beside the v1 file that counts; so look into all.
        for path in self._own_files("cpu", "cpu.stat"):
            stat = _numbers(_read(path))
            if "throttled_usec" in stat:
                return stat["throttled_usec"] / _USEC, stat["nr_throttled"]
            if "throttled_time" in stat:
                return stat["throttled_time"] / _NSEC, stat["nr_throttled"]
        raise _AbsentError("no cgroup that counts throttling")

    def _read_memory(self) -> tuple[int, int]:
        memory = psutil.virtual_memory()
        if self._limit >= memory.total:
            return memory.total - memory.available, memory.available
        for name, cache_name in (("memory.current", "inactive_file"), ("memory.usage_in_bytes", "total_inactive_file")):
            path = next(self._own_files("memory", name), None)
            if path is not None:
                # Page cache that can be dropped at once does not bring a group nearer to its limit.
                cache = _numbers(_read(path.with_name("memory.stat"))).get(cache_name, 0)
                used = max(0, int(_read(path)) - cache)
                return used, max(0, min(self._limit - used, memory.available))
        raise _AbsentError("memory is limited, but our cgroup does not tell its use")

    def _read_pressure(self, kind: str) -> float:
        path = next(self._own_files(kind, f"{kind}.pressure"), self._proc / "pressure" / kind)
        some = _read(path).partition("\n")[0]
        return int(some.rpartition("total=")[2]) / _USEC

    def _read_faults(self) -> int:
        return _numbers(_read(self._proc / "vmstat"))["pgmajfault"]

    def _own_files(self, controller: str, name: str) -> Iterator[Path]:
        """Find a file of our own cgroup: v2 first, then v1.

        Inside a container the path in /proc/self/cgroup may be that of the host; then the mount point is our group.
        """
        groups = {}
        for line in _read(self._proc / "self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            groups.update(dict.fromkeys(controllers.split(","), path.lstrip("/")))
        for mount, key in (("", ""), ("unified", ""), (controller, controller), ("cpu,cpuacct", controller)):
            for folder in (self._cgroup / mount / groups.get(key, ""), self._cgroup / mount):
                if os.path.isfile(folder / name):  # unlike Path.is_file, false where we may not look
                    yield folder / name
                    break

    def _read_processes(self, pids: Mapping[str, int], absent: dict[str, str]) -> tuple[ProcessSample, ...]:
        for pid in self._processes.keys() - set(pids.values()):
            del self._processes[pid]
            self._ended_cpu_s += self._cpu_s.pop(pid, 0.0)
        samples = []
        for owner, pid in pids.items():
            try:
                samples.append(self._read_process(owner, pid))
            except psutil.NoSuchProcess:
                absent[f"memory.{owner}"] = f"process {pid} is gone"
            except psutil.AccessDenied:
                absent[f"memory.{owner}"] = f"process {pid} may not be read"
        return tuple(samples)

    def _read_process(self, owner: str, pid: int) -> ProcessSample:
        process = self._processes.get(pid)
        if process is None:
            process = self._processes[pid] = psutil.Process(pid)
        with process.oneshot():
            if process.status() == psutil.STATUS_ZOMBIE:
                raise psutil.NoSuchProcess(pid)
            times = process.cpu_times()
            rss = process.memory_info().rss
        cpu_s = times.user + times.system
        if cpu_s < self._cpu_s.get(pid, 0.0):  # another process has got the number meanwhile
            self._ended_cpu_s += self._cpu_s[pid]
        self._cpu_s[pid] = cpu_s
        return ProcessSample(owner, pid, rss, cpu_s)


def _attempt(absent: dict[str, str], names: str, read: Callable[[], T]) -> T | None:
    try:
        return read()
    except _AbsentError as error:
        reason = str(error)
    except (ValueError, LookupError):
        reason = "not in a form that is known"
    absent.update(dict.fromkeys((f"host.{name}" for name in names.split()), reason))
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise _AbsentError(f"{path}: {error.strerror}") from error


def _numbers(text: str) -> dict[str, int]:
    """Parse lines of a name and a whole number; other lines are left out."""
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
