import os
import subprocess
import sys

import psutil
import pytest

from hybrid.telemetry.sampler import Sampler

GB = 1 << 30


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def stat(*ticks):
    lines = [f"cpu{cpu} {user} 0 0 {idle} 0 0 0 0 0 0" for cpu, user, idle in ticks]
    return "\n".join(["cpu 1 2 3 4 5 6 7 8 9 10", *lines, "intr 1 2 3", "ctxt 555", "procs_running 3", ""])


@pytest.fixture
def root(tmp_path):
    """A machine with CPUs 0 and 2 (1 is offline), a v2 cgroup with a quota, and PSI."""
    write(
        tmp_path,
        {
            "proc/stat": stat((0, 100, 100), (2, 100, 100)),
            "proc/vmstat": "nr_free_pages 5\npgmajfault 17\n",
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/pressure/cpu": "some avg10=0.00 avg60=0.00 avg300=0.00 total=2500000\nfull avg10=0.00 total=0\n",
            "proc/pressure/memory": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\n",
            "sys/fs/cgroup/pod/box/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 4\nthrottled_usec 1500000\n",
            "sys/fs/cgroup/pod/box/memory.current": f"{3 * GB}\n",
            "sys/fs/cgroup/pod/box/memory.stat": f"anon 5\ninactive_file {GB}\n",
        },
    )
    return tmp_path


@pytest.fixture
def host_memory(monkeypatch):
    memory = psutil.virtual_memory()._replace(total=64 * GB, available=32 * GB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)


def test_busy_is_the_fraction_between_two_samples_of_each_cpu_by_its_id(root):
    sampler = Sampler((0,), GB, root)
    first = sampler.sample(1.0, {}).host.cores
    assert [(core.cpu, core.busy, core.ours) for core in first] == [(0, None, True), (2, None, False)]
    write(root, {"proc/stat": stat((0, 175, 125), (2, 100, 200))})
    second = sampler.sample(2.0, {}).host.cores
    assert [(core.cpu, core.busy) for core in second] == [(0, 0.75), (2, 0.0)]


def test_busy_stays_a_fraction_when_idle_counters_step_back(root):
    sampler = Sampler((0,), GB, root)
    sampler.sample(1.0, {})
    write(root, {"proc/stat": stat((0, 150, 99), (2, 100, 100))})
    assert [core.busy for core in sampler.sample(2.0, {}).host.cores] == [1.0, None]


def test_counters_of_the_kernel(root, host_memory):
    found = Sampler((0, 2), 4 * GB, root).sample(1.0, {})
    host = found.host
    assert (host.throttled_s, host.throttled_n) == (1.5, 4)
    assert (host.psi_cpu_s, host.psi_mem_s) == (2.5, 1.0)
    assert (host.run_queue, host.switches_n, host.faults_n) == (3, 555, 17)
    assert (host.mem_limit, host.mem_used, host.mem_avail) == (4 * GB, 2 * GB, 2 * GB)
    assert host.usable_cpus == 2
    assert found.absent == {}


def test_pressure_of_our_own_group_goes_before_that_of_the_host(root):
    write(root, {"sys/fs/cgroup/pod/box/cpu.pressure": "some avg10=0.00 total=7000000\n"})
    assert Sampler((0,), GB, root).sample(1.0, {}).host.psi_cpu_s == 7.0


def test_cgroup_v1_beside_an_empty_v2_tree(root, host_memory):
    for name in ("cpu.stat", "memory.current", "memory.stat"):
        (root / "sys/fs/cgroup/pod/box" / name).unlink()
    write(
        root,
        {
            "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n0::/\n",
            "sys/fs/cgroup/unified/cpu.stat": "usage_usec 5\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_throttled 2\nthrottled_time 3000000000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{3 * GB}\n",
            "sys/fs/cgroup/memory/memory.stat": f"inactive_file 1\ntotal_inactive_file {2 * GB}\n",
        },
    )
    host = Sampler((0,), 4 * GB, root).sample(1.0, {}).host
    assert (host.throttled_s, host.throttled_n) == (3.0, 2)
    assert (host.mem_used, host.mem_avail) == (GB, 3 * GB)


def test_without_a_limit_of_the_group_the_host_counts(root, host_memory):
    host = Sampler((0,), 64 * GB, root).sample(1.0, {}).host
    assert (host.mem_used, host.mem_avail) == (32 * GB, 32 * GB)


def test_a_machine_that_tells_nothing_gives_reasons(tmp_path, host_memory):
    found = Sampler((0,), GB, tmp_path).sample(1.0, {})
    missing = {
        "cores",
        "run_queue",
        "switches_n",
        "throttled_s",
        "throttled_n",
        "psi_cpu_s",
        "psi_mem_s",
        "mem_used",
        "mem_avail",
        "faults_n",
    }
    assert set(found.absent) == {f"host.{name}" for name in missing}
    assert all(found.absent.values())
    assert all(getattr(found.host, name) in (None, ()) for name in missing)


def test_strange_files_give_reasons(root, host_memory):
    write(
        root,
        {
            "proc/stat": "cpu0 what is this\n",
            "proc/vmstat": "",
            "proc/pressure/cpu": "nothing\n",
            "sys/fs/cgroup/pod/box/memory.current": "max\n",
            "sys/fs/cgroup/pod/box/cpu.stat": "\n",
        },
    )
    absent = Sampler((0,), GB, root).sample(1.0, {}).absent
    assert {"host.cores", "host.faults_n", "host.psi_cpu_s", "host.mem_used", "host.throttled_s"} <= set(absent)


def test_a_file_that_may_not_be_read_gives_a_reason(root):
    (root / "proc/vmstat").unlink()
    (root / "proc/vmstat").mkdir()  # reading fails for root too
    assert "vmstat" in Sampler((0,), GB, root).sample(1.0, {}).absent["host.faults_n"]


def test_our_own_process(root):
    (own,) = Sampler((0,), GB, root).sample(1.0, {"server": os.getpid()}).processes
    assert (own.owner, own.pid) == ("server", os.getpid())
    assert own.rss > 1 << 20
    assert own.cpu_s > 0.0


def test_a_process_that_ends_is_named_and_its_cpu_time_stays(root):
    code = "s = 0\nfor i in range(10**6): s += i\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    sampler = Sampler((0,), GB, root)
    with child:
        child.stdout.readline()
        before = sampler.sample(1.0, {"m/w0": child.pid}).host.cpu_s
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie now
        zombie = sampler.sample(2.0, {"m/w0": child.pid})
    gone = sampler.sample(3.0, {"m/w0": child.pid})
    replaced = sampler.sample(4.0, {"m/w0": os.getpid()})
    dropped = sampler.sample(5.0, {})
    assert before > 0.0
    for found in (zombie, gone):
        assert found.processes == ()
        assert str(child.pid) in found.absent["memory.m/w0"]
        assert found.host.cpu_s == before
    assert replaced.host.cpu_s == pytest.approx(before + replaced.processes[0].cpu_s)
    assert dropped.host.cpu_s == replaced.host.cpu_s


def test_a_process_that_is_called_otherwise_is_not_counted_twice(root):
    sampler = Sampler((0,), GB, root)
    first = sampler.sample(1.0, {"w0 m (next)": os.getpid()})
    second = sampler.sample(2.0, {"w0 m": os.getpid()})
    assert second.host.cpu_s == second.processes[0].cpu_s
    assert second.host.cpu_s < first.host.cpu_s + 1.0


def test_the_cpu_time_never_falls_when_a_pid_is_used_again(root, monkeypatch):
    sampler = Sampler((0,), GB, root)
    before = sampler.sample(1.0, {"w0": os.getpid()}).host.cpu_s
    times = psutil.Process().cpu_times()._replace(user=0.0, system=0.0)
    monkeypatch.setattr(psutil._psplatform.Process, "cpu_times", lambda self: times)
    assert sampler.sample(2.0, {"w0": os.getpid()}).host.cpu_s == before


def test_a_process_that_may_not_be_read_is_named(root, monkeypatch):
    def denied(self):
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "status", denied)
    found = Sampler((0,), GB, root).sample(1.0, {"server": os.getpid()})
    assert found.processes == ()
    assert "may not be read" in found.absent["memory.server"]
