"""Usable CPUs on more than 40 machines, from bare metal to nested containers with damaged files.

A machine has 8 CPUs and the process may run on all of them where a case does not say otherwise.
"""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from machine_trees import V1_CPU, V1_CPUACCT, V1_CPUSET, V2, Tree

from hybrid.planner.machine import read_machine

ALL = tuple(range(8))
V2_BESIDE_V1 = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
V1_ALL = (V1_CPU, V1_CPUSET)


def v2(tree: Tree, group: str = "/", **files: str) -> Tree:
    """A process in `group` of a v2 hierarchy; files are those of the group, with "_" for "."."""
    tree.groups(f"0::{group}").mounts(V2)
    for name, text in files.items():
        tree.group_file(f"{group}/{name.replace('_', '.')}", text)
    return tree


def v1_quota(tree: Tree, quota: int, period: int = 100_000, group: str = "") -> Tree:
    tree.group_file(f"cpu{group}/cpu.cfs_quota_us", quota)
    return tree.group_file(f"cpu{group}/cpu.cfs_period_us", period)


def smt(tree: Tree) -> Tree:
    for cpu in ALL:
        tree.file(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 4},{cpu % 4 + 4}")
    return tree


def two_nodes(tree: Tree) -> Tree:
    return tree.file("sys/devices/system/node/node0/cpulist", "0-3").file(
        "sys/devices/system/node/node1/cpulist", "4-7"
    )


def two_kinds(tree: Tree) -> Tree:
    return tree.file("sys/devices/cpu_core/cpus", "0-3").file("sys/devices/cpu_atom/cpus", "4-7")


def kubernetes(tree: Tree) -> Tree:
    """A burstable pod: the limit is the pod's, the container's own is wider, the slice above has none."""
    group = "/kubepods.slice/kubepods-burstable.slice/pod1/container"
    v2(tree, group, cpu_max="400000 100000")
    tree.group_file("kubepods.slice/kubepods-burstable.slice/pod1/cpu.max", "250000 100000")
    return tree.group_file("kubepods.slice/cpu.max", "max 100000")


def docker_v1(tree: Tree) -> Tree:
    """The group is written as on the host, the mount shows the container's own as its root."""
    tree.groups("4:cpu,cpuacct:/docker/abc", "3:cpuset:/docker/abc")
    tree.mounts(
        "32 31 0:29 /docker/abc /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct",
        "34 31 0:31 /docker/abc /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset",
    )
    tree.group_file("cpu,cpuacct/cpu.cfs_quota_us", 350_000).group_file("cpu,cpuacct/cpu.cfs_period_us", 100_000)
    return tree.group_file("cpuset/cpuset.cpus", "0-5")


def docker_in_docker(tree: Tree) -> Tree:
    v2(tree, "/docker/outer/docker/inner", cpu_max="max 100000", cpuset_cpus_effective="1,3")
    return tree.group_file("docker/outer/cpu.max", "100000 100000")


def both_versions(tree: Tree) -> Tree:
    """Quotas in v1 and in v2 at once: the smaller one stops the process first."""
    tree.groups("1:cpu:/app", "0::/app").mounts(V1_CPU, V2_BESIDE_V1)
    return v1_quota(tree, 500_000, group="/app").group_file("unified/app/cpu.max", "300000 100000")


def both_cpusets(tree: Tree) -> Tree:
    tree.groups("3:cpuset:/app", "0::/app").mounts(V1_CPUSET, V2_BESIDE_V1)
    tree.group_file("cpuset/app/cpuset.cpus", "0-4")
    return tree.group_file("unified/app/cpuset.cpus.effective", "3-7")


def v1_with_controllers_apart(tree: Tree) -> Tree:
    tree.groups("2:cpu,cpuacct:/batch", "3:cpuset:/batch").mounts(V1_CPUACCT, V1_CPUSET)
    tree.group_file("cpu,cpuacct/batch/cpu.cfs_quota_us", 700_000)
    return tree.group_file("cpuset/batch/cpuset.cpus", "2,5-6")


def folders_for_files(tree: Tree) -> Tree:
    v2(tree, "/app")
    for name in ("cpu.max", "cpuset.cpus.effective"):
        (tree.root / "sys/fs/cgroup/app" / name).mkdir(parents=True)
    return tree


def raw(tree: Tree, path: str, data: bytes) -> Tree:
    tree.file(path, "").root.joinpath(path).write_bytes(data)
    return tree


def no_sys(tree: Tree) -> Tree:
    """A sandbox that hides /sys, its CPUs still in /proc."""
    (tree.root / "sys/devices/system/cpu/online").unlink()
    return tree


def no_proc(tree: Tree) -> Tree:
    for name in ("cpuinfo", "meminfo"):
        (tree.root / "proc" / name).unlink()
    return tree.group_file("cpu.max", "200000 100000")


CASES: dict[str, tuple[Callable[[Tree], Tree], Iterable[int], int, tuple[int, ...]]] = {
    "bare metal": (lambda tree: tree, ALL, 8, ALL),
    "mask with gaps": (lambda tree: tree, (0, 3, 6), 3, (0, 3, 6)),
    "v2 without limits": (lambda tree: v2(tree, cpu_max="max 100000"), ALL, 8, ALL),
    "v2 fraction above one": (lambda tree: v2(tree, cpu_max="275000 100000"), ALL, 2, ALL),
    "v2 fraction below one": (lambda tree: v2(tree, cpu_max="20000 100000"), ALL, 1, ALL),
    "v2 short period": (lambda tree: v2(tree, cpu_max="30000 10000"), ALL, 3, ALL),
    "v2 long period": (lambda tree: v2(tree, cpu_max="4000000 1000000"), ALL, 4, ALL),
    "v2 quota and mask": (lambda tree: v2(tree, cpu_max="300000 100000"), (4, 5), 2, (4, 5)),
    "v2 quota of a grandparent": (
        lambda tree: v2(tree, "/a/b/c").group_file("a/cpu.max", "200000 100000"), ALL, 2, ALL,
    ),
    "v2 quota at the mount point": (
        lambda tree: v2(tree, "/a", cpu_max="max 100000").group_file("cpu.max", "500000 100000"), ALL, 5, ALL,
    ),
    "v2 period of zero": (lambda tree: v2(tree, cpu_max="300000 0"), ALL, 3, ALL),
    "v2 negative quota": (lambda tree: v2(tree, cpu_max="-300000 100000"), ALL, 8, ALL),
    "kubernetes": (kubernetes, ALL, 2, ALL),
    "docker on v1": (docker_v1, ALL, 3, (0, 1, 2, 3, 4, 5)),
    "docker in docker": (docker_in_docker, ALL, 1, (1, 3)),
    "v1 quota": (lambda tree: v1_quota(tree.groups("1:cpu:/").mounts(V1_CPU), 600_000), ALL, 6, ALL),
    "v1 quota of -1": (lambda tree: v1_quota(tree.groups("1:cpu:/").mounts(V1_CPU), -1), ALL, 8, ALL),
    "v1 quota of a parent": (
        lambda tree: v1_quota(
            v1_quota(tree.groups("1:cpu:/a/b").mounts(V1_CPU), -1, group="/a/b"), 150_000, 50_000, "/a"
        ), ALL, 3, ALL,
    ),
    "v1 controllers apart": (v1_with_controllers_apart, ALL, 3, (2, 5, 6)),
    "v1 and v2 quotas": (both_versions, ALL, 3, ALL),
    "v1 and v2 CPU sets": (both_cpusets, ALL, 2, (3, 4)),
    "CPU set with gaps": (lambda tree: v2(tree, cpuset_cpus_effective="1,4-5,7"), ALL, 4, (1, 4, 5, 7)),
    "CPU set and mask": (lambda tree: v2(tree, cpuset_cpus_effective="0-3"), (2, 3, 4), 2, (2, 3)),
    "CPU set, mask and quota": (
        lambda tree: v2(tree, cpuset_cpus_effective="0-5", cpu_max="150000 100000"), (1, 2, 7), 1, (1, 2),
    ),
    "CPU set of CPUs that are offline": (
        lambda tree: v2(tree, cpuset_cpus_effective="0-7").file("sys/devices/system/cpu/online", "0-2,6"),
        ALL, 4, (0, 1, 2, 6),
    ),
    "CPU set as configured, not in effect": (lambda tree: v2(tree, cpuset_cpus="0"), ALL, 8, ALL),
    "offline CPUs": (lambda tree: tree.file("sys/devices/system/cpu/online", "0,2-7"), ALL, 7, (0, 2, 3, 4, 5, 6, 7)),
    "all but one offline": (lambda tree: tree.file("sys/devices/system/cpu/online", "0"), ALL, 1, (0,)),
    "SMT and a quota": (lambda tree: v2(smt(tree), cpu_max="400000 100000"), ALL, 4, ALL),
    "SMT, one thread of each core": (smt, (0, 1, 2, 3), 4, (0, 1, 2, 3)),
    "one of two NUMA nodes": (two_nodes, (4, 5, 6, 7), 4, (4, 5, 6, 7)),
    "slow cores only": (two_kinds, (4, 5, 6, 7), 4, (4, 5, 6, 7)),
    "both kinds of cores under a quota": (lambda tree: v2(two_kinds(tree), cpu_max="600000 100000"), ALL, 6, ALL),
    "no /sys": (no_sys, ALL, 8, ALL),
    "no /sys, narrow mask": (no_sys, (7,), 1, (7,)),
    "no /proc": (no_proc, ALL, 2, ALL),
    "folders where files should be": (folders_for_files, ALL, 8, ALL),
    "bytes that are no text": (
        lambda tree: raw(v2(tree, "/app"), "sys/fs/cgroup/app/cpu.max", b"\xff\xfe\x00200000 100000"), ALL, 8, ALL,
    ),
    "digits that are none": (
        lambda tree: v2(tree, cpu_max="²00000 100000", cpuset_cpus_effective="0-²"), ALL, 8, ALL,
    ),
    "CPU list without end": (lambda tree: v2(tree, cpuset_cpus_effective="0-99999999999"), ALL, 8, ALL),
    "CPU list backwards": (lambda tree: v2(tree, cpuset_cpus_effective="5-2"), ALL, 8, ALL),
    "limits with blank lines": (
        lambda tree: v2(tree, cpu_max="\n300000 100000\n\n", cpuset_cpus_effective=" 0-3 \n"), ALL, 3, (0, 1, 2, 3),
    ),
    "quota beyond all numbers": (lambda tree: v2(tree, cpu_max="9" * 400 + " 100000"), ALL, 8, ALL),
    "mounts that lie": (
        lambda tree: tree.groups("0::/app").mounts("31 23 0:28 / /nowhere rw - cgroup2 cgroup2 rw"), ALL, 8, ALL,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_usable_cpus(tmp_path: Path, name: str) -> None:
    build, affinity, usable, cpus = CASES[name]
    cpu = read_machine(build(Tree(tmp_path).host()).root, tuple(affinity)).cpu
    assert (cpu.usable, cpu.cpus) == (usable, cpus)
    assert cpu.usable <= len(cpu.cpus)
    assert cpu.reason


def test_the_matrix_is_large_and_its_trees_differ(tmp_path: Path) -> None:
    """Two names for one tree would count twice."""

    def content(number: int, name: str) -> object:
        build, affinity, _, _ = CASES[name]
        root = build(Tree(tmp_path / str(number)).host()).root
        files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        return sorted(files.items()), sorted(str(path.relative_to(root)) for path in root.rglob("*")), tuple(affinity)

    seen = [content(number, name) for number, name in enumerate(CASES)]
    assert len(CASES) >= 40
    assert all(seen.count(one) == 1 for one in seen)


def test_topology_follows_the_cpus_that_are_left(tmp_path: Path) -> None:
    machine = read_machine(two_kinds(two_nodes(smt(Tree(tmp_path).host()))).root, (0, 4, 5))
    assert (machine.physical_cores, machine.numa_nodes, machine.efficiency_cpus) == (2, 2, (4, 5))
    assert machine.core_groups == ((0, 4), (5,))


# --- caches -----------------------------------------------------------------------------------------------------------


def cache(tree: Tree, cpu: int, index: int, level: int, kind: str, size: str, shared: str) -> None:
    folder = f"sys/devices/system/cpu/cpu{cpu}/cache/index{index}"
    for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
        tree.file(f"{folder}/{name}", text)


def test_caches_count_those_that_usable_cpus_reach(tmp_path: Path) -> None:
    tree = Tree(tmp_path).host()
    for cpu in ALL:
        cache(tree, cpu, 0, 1, "Data", "48K", str(cpu))
        cache(tree, cpu, 1, 1, "Instruction", "32K", str(cpu))
        cache(tree, cpu, 2, 2, "Unified", "2048K", str(cpu))
        cache(tree, cpu, 3, 3, "Unified", "32M", f"{cpu // 4 * 4}-{cpu // 4 * 4 + 3}")

    def told(cpus: tuple[int, ...]) -> list[tuple[int, str, int, int]]:
        caches = read_machine(tree.root, cpus).caches
        return [(cache.level, cache.kind, cache.size_bytes, cache.instances) for cache in caches]

    assert told(ALL) == [
        (1, "data", 48 << 10, 8), (1, "instruction", 32 << 10, 8), (2, "unified", 2 << 20, 8),
        (3, "unified", 32 << 20, 2),
    ]  # fmt: skip
    assert told((0, 1))[-1] == (3, "unified", 32 << 20, 1)


@pytest.mark.parametrize("size", ["", "0K", "K", "many", "-32K", "32X"])
def test_cache_of_unknown_size_is_left_out(tmp_path: Path, size: str) -> None:
    tree = Tree(tmp_path).host()
    cache(tree, 0, 0, 1, "Data", size, "0")
    assert read_machine(tree.root, (0,)).caches == ()
