"""Machine facts from fixture trees: a small builder writes the /proc and /sys that a case is about."""

from pathlib import Path

import pytest
from machine_trees import GIB, NO_LIMIT_V1, V1_CPU, V1_CPUACCT, V1_CPUSET, V1_MEMORY, V2, Tree

from hybrid.planner.cgroups import parse_cpu_list, read_limits
from hybrid.planner.machine import read_machine, usable_under_quota


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path).host()


def usable(tree: Tree, affinity: int = 8) -> int:
    return read_machine(tree.root, range(affinity)).cpu.usable


# --- CPUs -------------------------------------------------------------------------------------------------------------


def test_without_any_limit_all_cpus_are_usable(tree: Tree) -> None:
    cpu = read_machine(tree.root, range(8)).cpu
    assert (cpu.usable, cpu.cpus, cpu.quota_cpus, cpu.cpuset) == (8, tuple(range(8)), None, None)
    assert "all 8" in cpu.reason


def test_affinity_limits_and_keeps_its_ids(tree: Tree) -> None:
    cpu = read_machine(tree.root, {6, 2}).cpu
    assert (cpu.usable, cpu.cpus, cpu.affinity, cpu.online) == (2, (2, 6), 2, 8)
    assert "affinity" in cpu.reason


def test_affinity_comes_from_the_system_when_not_given(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: {5}, raising=False)
    assert read_machine(tree.root).cpu.cpus == (5,)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("150000 100000", 1),  # rounded down, see usable_under_quota
        ("299999 100000", 2),
        ("50000 100000", 1),  # never below one
        ("1000 100000", 1),
        ("1600000 100000", 8),  # more than there is
        ("60000 30000", 2),  # another period
        ("200000", 2),  # no period: the kernel's default
        ("", 8),
        ("nonsense here", 8),
    ],
)
def test_v2_quota(tree: Tree, text: str, expected: int) -> None:
    tree.groups("0::/app").mounts(V2).group_file("app/cpu.max", text)
    assert usable(tree) == expected


@pytest.mark.parametrize(
    ("quota", "period", "expected"),
    [("-1", "100000", 8), ("400000", "100000", 4), ("250000", "100000", 2), ("10000", "100000", 1), ("0", "100000", 8)],
)
def test_v1_quota(tree: Tree, quota: str, period: str, expected: int) -> None:
    tree.groups("1:cpu:/app").mounts(V1_CPU)
    tree.group_file("cpu/app/cpu.cfs_quota_us", quota).group_file("cpu/app/cpu.cfs_period_us", period)
    assert usable(tree) == expected


def test_v2_quota_of_a_parent_binds(tree: Tree) -> None:
    tree.groups("0::/pod/container").mounts(V2)
    tree.group_file("pod/container/cpu.max", "max 100000").group_file("pod/cpu.max", "300000 100000")
    cpu = read_machine(tree.root, range(8)).cpu
    assert (cpu.usable, cpu.quota_cpus) == (3, 3.0)
    assert "cpu.max of /pod" in cpu.reason


def test_lowest_quota_on_the_way_up_wins(tree: Tree) -> None:
    tree.groups("0::/a/b/c").mounts(V2)
    for group, quota in (("a/b/c", 500_000), ("a/b", 200_000), ("a", 400_000)):
        tree.group_file(f"{group}/cpu.max", f"{quota} 100000")
    assert usable(tree) == 2


def test_v1_quota_of_a_parent_binds(tree: Tree) -> None:
    tree.groups("1:cpu,cpuacct:/kube/pod").mounts(V1_CPUACCT)
    tree.group_file("cpu,cpuacct/kube/pod/cpu.cfs_quota_us", "-1")
    tree.group_file("cpu,cpuacct/kube/cpu.cfs_quota_us", "200000")
    assert usable(tree) == 2


def test_quota_keeps_all_allowed_ids(tree: Tree) -> None:
    tree.groups("0::/").mounts(V2).group_file("cpu.max", "200000 100000")
    cpu = read_machine(tree.root, {1, 3, 5, 7}).cpu
    assert (cpu.usable, cpu.cpus) == (2, (1, 3, 5, 7))


def test_affinity_below_quota_wins(tree: Tree) -> None:
    tree.groups("0::/").mounts(V2).group_file("cpu.max", "400000 100000")
    assert usable(tree, affinity=2) == 2


def test_v2_cpuset_with_gaps(tree: Tree) -> None:
    tree.groups("0::/app").mounts(V2).group_file("app/cpuset.cpus.effective", "0,2-3,7")
    cpu = read_machine(tree.root, range(8)).cpu
    assert (cpu.usable, cpu.cpus, cpu.cpuset) == (4, (0, 2, 3, 7), 4)
    assert "CPU set" in cpu.reason


def test_v2_cpuset_of_the_nearest_level_that_lists_any(tree: Tree) -> None:
    tree.groups("0::/a/b").mounts(V2).group_file("a/b/cpuset.cpus.effective", "")
    tree.group_file("a/cpuset.cpus.effective", "4-5").group_file("cpuset.cpus.effective", "0-7")
    assert read_machine(tree.root, range(8)).cpu.cpus == (4, 5)


def test_v1_cpuset(tree: Tree) -> None:
    tree.groups("3:cpuset:/app").mounts(V1_CPUSET).group_file("cpuset/app/cpuset.cpus", "1,5")
    assert read_machine(tree.root, range(8)).cpu.cpus == (1, 5)


def test_v1_effective_cpuset_is_preferred(tree: Tree) -> None:
    tree.groups("3:cpuset:/").mounts(V1_CPUSET)
    tree.group_file("cpuset/cpuset.cpus", "0-7").group_file("cpuset/cpuset.effective_cpus", "2-3")
    assert read_machine(tree.root, range(8)).cpu.cpus == (2, 3)


def test_cpuset_outside_the_affinity_is_not_believed(tree: Tree) -> None:
    tree.groups("0::/").mounts(V2).group_file("cpuset.cpus.effective", "40-47")
    assert read_machine(tree.root, range(8)).cpu.cpus == tuple(range(8))


def test_cpuset_affinity_and_quota_together(tree: Tree) -> None:
    tree.groups("0::/").mounts(V2).group_file("cpuset.cpus.effective", "0-5").group_file("cpu.max", "300000 100000")
    cpu = read_machine(tree.root, range(2, 8)).cpu
    assert (cpu.usable, cpu.cpus) == (3, (2, 3, 4, 5))


def test_offline_cpus_do_not_count(tree: Tree) -> None:
    tree.file("sys/devices/system/cpu/online", "0-1,4")
    assert read_machine(tree.root, range(8)).cpu.cpus == (0, 1, 4)


def test_hybrid_v1_controllers_beside_an_empty_v2_tree(tree: Tree) -> None:
    tree.groups("4:memory:/app", "1:cpu:/app", "0::/")
    tree.mounts(V1_CPU, V1_MEMORY, "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")
    tree.group_file("unified/cgroup.controllers", "hugetlb")
    tree.group_file("cpu/app/cpu.cfs_quota_us", "200000").group_file("memory/app/memory.limit_in_bytes", GIB)
    machine = read_machine(tree.root, range(8))
    assert (machine.cpu.usable, machine.memory_limit_bytes) == (2, GIB)
    assert "v1" in machine.memory_source


def test_hybrid_v2_carries_the_controllers(tree: Tree) -> None:
    tree.groups("1:cpu:/", "0::/app").mounts(V1_CPU, "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw")
    tree.group_file("unified/app/cpu.max", "100000 100000")
    assert usable(tree) == 1


def test_mount_that_shows_the_container_group_as_its_root(tree: Tree) -> None:
    tree.groups("1:cpu:/docker/abc").mounts("32 31 0:29 /docker/abc /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu")
    tree.group_file("cpu/cpu.cfs_quota_us", "300000")
    assert usable(tree) == 3


def test_group_below_the_root_of_the_mount(tree: Tree) -> None:
    tree.groups("0::/docker/abc/inner").mounts("31 23 0:28 /docker/abc /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.group_file("inner/cpu.max", "200000 100000").group_file("cpu.max", "max 100000")
    assert usable(tree) == 2


def test_group_outside_the_mount_falls_back_to_the_mount_point(tree: Tree) -> None:
    tree.groups("0::/kubepods/x").mounts("31 23 0:28 /other /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.group_file("cpu.max", "500000 100000")
    assert usable(tree) == 5


def test_group_relative_to_a_namespace(tree: Tree) -> None:
    tree.groups("0::/../../elsewhere").mounts(V2).group_file("cpu.max", "400000 100000")
    assert usable(tree) == 4


def test_group_whose_folder_is_not_visible(tree: Tree) -> None:
    tree.groups("0::/system.slice/gone.scope").mounts(V2).group_file("cpu.max", "600000 100000")
    assert usable(tree) == 6


def test_mount_point_with_a_blank_and_optional_fields(tree: Tree) -> None:
    tree.groups("0::/").mounts(r"31 23 0:28 / /mnt/my\040groups rw shared:9 master:1 - cgroup2 none rw")
    tree.file("mnt/my groups/cpu.max", "200000 100000")
    assert usable(tree) == 2


def test_without_mountinfo_the_usual_places_are_tried(tree: Tree) -> None:
    tree.groups("0::/app").group_file("app/cpu.max", "200000 100000").group_file("app/memory.max", GIB)
    machine = read_machine(tree.root, range(8))
    assert (machine.cpu.usable, machine.memory_limit_bytes) == (2, GIB)


def test_without_proc_self_cgroup_the_mount_point_counts(tree: Tree) -> None:
    tree.mounts(V2).group_file("cpu.max", "200000 100000")
    assert usable(tree) == 2


def test_malformed_lines_are_skipped(tree: Tree) -> None:
    tree.groups("garbage", "", "0::/app").mounts("short - x", "no separator", V2)
    tree.group_file("app/cpu.max", "200000 100000")
    assert usable(tree) == 2


# --- memory -----------------------------------------------------------------------------------------------------------


def memory(tree: Tree) -> tuple[int, str]:
    machine = read_machine(tree.root, range(8))
    return machine.memory_limit_bytes, machine.memory_source


def test_memory_of_the_host(tree: Tree) -> None:
    assert memory(tree) == (16 * GIB, "host memory")


@pytest.mark.parametrize(
    ("text", "expected"), [("max", 16 * GIB), (str(2 * GIB), 2 * GIB), (str(64 * GIB), 16 * GIB), ("", 16 * GIB)]
)
def test_v2_memory(tree: Tree, text: str, expected: int) -> None:
    tree.groups("0::/app").mounts(V2).group_file("app/memory.max", text)
    assert memory(tree)[0] == expected


def test_v1_memory_number_that_means_none(tree: Tree) -> None:
    tree.groups("4:memory:/app").mounts(V1_MEMORY).group_file("memory/app/memory.limit_in_bytes", NO_LIMIT_V1)
    assert memory(tree) == (16 * GIB, "host memory")
    assert read_limits(tree.root).memory_bytes is None


def test_memory_limit_of_a_parent_binds(tree: Tree) -> None:
    tree.groups("0::/pod/container").mounts(V2)
    tree.group_file("pod/container/memory.max", "max").group_file("pod/memory.max", 3 * GIB)
    assert memory(tree) == (3 * GIB, "cgroup v2 memory.max of /pod")


def test_v1_memory_limit_of_a_parent_binds(tree: Tree) -> None:
    tree.groups("4:memory:/a/b").mounts(V1_MEMORY).group_file("memory/a/b/memory.limit_in_bytes", 4 * GIB)
    tree.group_file("memory/a/memory.limit_in_bytes", GIB)
    assert memory(tree) == (GIB, "cgroup v1 memory.limit_in_bytes of /a")


# --- processor and topology -------------------------------------------------------------------------------------------


def test_model_and_instruction_sets(tree: Tree) -> None:
    tree.host(2, flags="fpu avx avx2 fma avx512f avx512_vnni amx_int8 amx_tile")
    machine = read_machine(tree.root, range(2))
    assert machine.model_name == "Test CPU"
    assert set(machine.isa) == {"avx", "avx2", "fma", "avx512f", "avx512_vnni", "amx_int8", "amx_tile"}


def test_instruction_sets_are_those_of_every_usable_cpu(tree: Tree) -> None:
    tree.file("proc/cpuinfo", "processor: 0\nflags: avx2 avx512f\n\nprocessor: 1\nflags: avx2\n")
    assert read_machine(tree.root, {0, 1}).isa == ("avx2",)
    assert set(read_machine(tree.root, {0}).isa) == {"avx2", "avx512f"}


def test_arm(tree: Tree) -> None:
    block = "processor: 0\nFeatures: fp asimd asimdhp asimddp i8mm sve\nCPU implementer: 0x41\nCPU part: 0xd40\n"
    tree.file("proc/cpuinfo", block)
    machine = read_machine(tree.root, {0})
    assert set(machine.isa) == {"neon", "fp16", "dotprod", "i8mm", "sve"}
    assert "0x41" in machine.model_name


def test_smt_siblings_share_a_core(tree: Tree) -> None:
    for cpu in range(4):
        tree.file(f"sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list", f"{cpu % 2},{cpu % 2 + 2}")
    machine = read_machine(tree.root, range(4))
    assert (machine.physical_cores, machine.core_groups) == (2, ((0, 2), (1, 3)))


def test_physical_cores_under_an_affinity_that_takes_one_sibling_each(tree: Tree) -> None:
    for cpu in range(4):
        tree.file(
            f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        )
    assert read_machine(tree.root, {0, 2}).physical_cores == 2
    assert read_machine(tree.root, {2, 3}).physical_cores == 1


def test_physical_cores_from_cpuinfo_alone(tree: Tree) -> None:
    blocks = [f"processor: {cpu}\nphysical id: {cpu // 4}\ncore id: {cpu % 2}\n" for cpu in range(8)]
    tree.file("proc/cpuinfo", "\n".join(blocks))
    assert read_machine(tree.root, range(8)).physical_cores == 4


def test_physical_cores_unknown(tree: Tree) -> None:
    assert read_machine(tree.root, range(8)).physical_cores is None


def test_numa_nodes_count_only_with_usable_cpus(tree: Tree) -> None:
    for node, cpus in ((0, "0-3"), (1, "4-7"), (2, "")):
        tree.file(f"sys/devices/system/node/node{node}/cpulist", cpus)
    tree.file("sys/devices/system/node/online", "0-2")
    assert read_machine(tree.root, range(8)).numa_nodes == 2
    assert read_machine(tree.root, range(4)).numa_nodes == 1


def test_efficiency_cores_named_by_the_kernel(tree: Tree) -> None:
    tree.file("sys/devices/cpu_core/cpus", "0-3").file("sys/devices/cpu_atom/cpus", "4-7")
    assert read_machine(tree.root, range(8)).efficiency_cpus == (4, 5, 6, 7)


def test_efficiency_cores_by_capacity(tree: Tree) -> None:
    for cpu, capacity in ((0, 446), (1, 446), (2, 1024), (3, 1024)):
        tree.file(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", capacity)
    assert read_machine(tree.root, range(4)).efficiency_cpus == (0, 1)


def test_equal_cores_are_not_efficiency_cores(tree: Tree) -> None:
    for cpu in range(4):
        tree.file(f"sys/devices/system/cpu/cpu{cpu}/cpu_capacity", 1024)
    assert read_machine(tree.root, range(4)).efficiency_cpus == ()


# --- nothing there ----------------------------------------------------------------------------------------------------


def test_empty_tree(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, {0, 1})
    assert machine.cpu.usable == 2
    assert machine.memory_limit_bytes > 0
    assert (machine.numa_nodes, machine.physical_cores, machine.gpus) == (1, None, ())


def test_kernel_files_that_are_folders(tree: Tree) -> None:
    (tree.root / "proc/self/cgroup").mkdir(parents=True)
    (tree.root / "sys/fs/cgroup/cpu.max").mkdir(parents=True)
    assert usable(tree) == 8


def test_no_cpu_at_all_still_plans_for_one(tmp_path: Path) -> None:
    assert read_machine(tmp_path, ()).cpu.usable == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", (0,)), ("0-2,5", (0, 1, 2, 5)), ("3,1", (1, 3)), ("", None), ("x", None), ("1-", None), ("0-1,", None)],
)
def test_cpu_lists(text: str, expected: tuple[int, ...] | None) -> None:
    assert parse_cpu_list(text) == expected


@pytest.mark.parametrize(("quota", "expected"), [(None, 4), (0.2, 1), (1.0, 1), (1.5, 1), (2.99, 2), (9.0, 4)])
def test_quota_rounding(quota: float | None, expected: int) -> None:
    assert usable_under_quota(4, quota) == expected
