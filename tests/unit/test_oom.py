"""Whether the kernel has killed for lack of memory: by control groups of both versions, and by the whole machine."""

from pathlib import Path

import pytest
from machine_trees import Tree

from hybrid.workers.oom import has_killed, kill_counts

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill {}"
V2 = "low 0\nhigh 0\nmax 812\noom 4\noom_kill {}\noom_group_kill 9"


@pytest.mark.parametrize(
    ("group", "path", "text"),
    [
        ("0::/pod/box", "sys/fs/cgroup/pod/box/memory.events", V2),
        ("0::/", "sys/fs/cgroup/memory.events", V2),
        ("0::/../../elsewhere", "sys/fs/cgroup/memory.events", V2),
        ("0::/box", "sys/fs/cgroup/unified/box/memory.events", V2),
        ("5:cpu,memory:/box", "sys/fs/cgroup/memory/box/memory.oom_control", V1),
        ("4:memory:/docker/of-the-host", "sys/fs/cgroup/memory/memory.oom_control", V1),
        ("4:cpu:/box", "proc/vmstat", "nr_free_pages 5\noom_kill {}\ndrop_pagecache 8"),
    ],
)
def test_a_kill_is_seen_and_what_else_rises_is_not(tmp_path: Path, group: str, path: str, text: str) -> None:
    tree = Tree(tmp_path).groups("9:name=systemd:/memory", group).file(path, text.format(3))
    before = kill_counts(tmp_path)
    assert list(before.values()) == [3]
    tree.file(path, text.format(3).replace("812", "900").replace("oom 4", "oom 5"))
    assert not has_killed(before, kill_counts(tmp_path))
    tree.file(path, text.format(4))
    assert has_killed(before, kill_counts(tmp_path))


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
    assert all(number >= 0 for number in kill_counts().values())
