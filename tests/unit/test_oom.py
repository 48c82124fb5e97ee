"""Whether the kernel has killed for lack of memory: by control groups of both versions, and by the whole machine."""

from pathlib import Path

import pytest
from machine_trees import V1_CPU, V1_MEMORY, Tree
from machine_trees import V2 as V2_MOUNT

from hybrid.workers.oom import has_killed, kill_counts

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}"
V2 = "low 0\nhigh 0\nmax 812\noom 4\noom_kill {}\noom_group_kill 9"


VMSTAT = "nr_free_pages 5\noom_kill {}\ndrop_pagecache 8"
UNIFIED = "42 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"
ELSEWHERE = "31 23 0:28 / /run/groups rw - cgroup2 cgroup2 rw"
OF_A_BOX = "35 31 0:32 /docker/box /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory"
TOGETHER = "35 31 0:32 / /sys/fs/cgroup/all rw - cgroup cgroup rw,cpu,memory"


@pytest.mark.parametrize(
    ("mount", "group", "path", "text"),
    [
        (V2_MOUNT, "0::/pod/box", "sys/fs/cgroup/pod/box/memory.events", V2),
        (V2_MOUNT, "0::/pod/box", "sys/fs/cgroup/pod/memory.events", V2),
        (V2_MOUNT, "0::/", "sys/fs/cgroup/memory.events", V2),
        (V2_MOUNT, "0::/../../elsewhere", "sys/fs/cgroup/memory.events", V2),
        (UNIFIED, "0::/box", "sys/fs/cgroup/unified/box/memory.events", V2),
        (ELSEWHERE, "0::/box", "run/groups/box/memory.events", V2),
        (V1_MEMORY, "5:cpu,memory:/box", "sys/fs/cgroup/memory/box/memory.oom_control", V1),
        (TOGETHER, "5:cpu,memory:/box", "sys/fs/cgroup/all/box/memory.oom_control", V1),
        (OF_A_BOX, "4:memory:/docker/box", "sys/fs/cgroup/memory/memory.oom_control", V1),
        (OF_A_BOX, "4:memory:/docker/box/in", "sys/fs/cgroup/memory/in/memory.oom_control", V1),
        ("", "4:memory:/box", "sys/fs/cgroup/memory/box/memory.oom_control", V1),  # a sandbox that hides its mounts
        (V1_CPU, "4:cpu:/box", "proc/vmstat", VMSTAT),
    ],
)
def test_a_kill_is_seen_and_what_else_rises_is_not(
    tmp_path: Path, mount: str, group: str, path: str, text: str
) -> None:
    tree = Tree(tmp_path).mounts(V1_CPU, mount).groups("9:name=systemd:/memory", group).file(path, text.format(3))
    before = kill_counts(tmp_path)
    assert before == {tmp_path / path: 3}
    tree.file(path, text.format(3).replace("812", "900").replace("oom 4", "oom 5"))
    assert not has_killed(before, kill_counts(tmp_path))
    tree.file(path, text.format(4))
    assert has_killed(before, kill_counts(tmp_path))


def test_what_was_killed_in_other_groups_is_no_evidence(tmp_path: Path) -> None:
    tree = Tree(tmp_path).mounts(V2_MOUNT).groups("0::/pod/box").group_file("pod/box/memory.events", V2.format(0))
    tree.group_file("pod/memory.events", V2.format(1)).file("proc/vmstat", VMSTAT.format(2))
    before = kill_counts(tmp_path)
    tree.group_file("pod/memory.events", V2.format(2)).file("proc/vmstat", VMSTAT.format(3))
    assert not has_killed(before, kill_counts(tmp_path))


def test_counters_that_cannot_be_read_twice_say_nothing(tmp_path: Path) -> None:
    assert kill_counts(tmp_path) == {}
    Tree(tmp_path).file("proc/vmstat", "oom_kill 7")
    counts = kill_counts(tmp_path)
    assert list(counts.values()) == [7]
    assert not has_killed({}, counts)
    assert not has_killed(counts, {})
    Tree(tmp_path).file("proc/vmstat", "oom_kill -7\noom_kill\noom_kill many")
    assert kill_counts(tmp_path) == {}


def test_this_machine_can_be_asked() -> None:
    if "\noom_kill " not in Path("/proc/vmstat").read_text():
        pytest.skip("this kernel counts no kills")
    ((path, number),) = kill_counts().items()
    assert number <= int(path.read_text().partition("\noom_kill ")[2].split()[0])  # it may have killed meanwhile
