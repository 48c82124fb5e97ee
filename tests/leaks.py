"""What a test left behind: processes, and files in /dev/shm.

Processes are found as children and by a mark in their environment, because a grandchild whose parent was killed is
nobody's child any more and is just what these checks are for.
"""

import contextlib
import os
import time
import uuid
from pathlib import Path

import psutil

MARK = "PYTEST_RUN_MARK"
SHM = Path("/dev/shm")
_GRACE_S = 3.0


def mark_this_run() -> str:
    """Give this process a mark that its descendants inherit; return it."""
    os.environ[MARK] = mark = uuid.uuid4().hex
    return mark


def descendants() -> dict[int, psutil.Process]:
    """Every live descendant of this process, also those that lost their parent, by pid."""
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    mark = os.environ.get(MARK)
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.pid not in found and process.environ().get(MARK) == mark:
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or belongs to somebody else
    return found


def left_processes(before: set[int]) -> list[str]:
    """Wait a moment for new descendants to go and describe those that stay.

    New ones below a process of `before` are fine: a server that outlives the test may have replaced a worker.
    """
    return _settled(lambda: [text for p in descendants().values() if (text := _describe(p, before))])


def end_processes(before: set[int]) -> None:
    """End new descendants, which a test that failed has left."""
    for process in descendants().values():
        if _describe(process, before):
            with contextlib.suppress(psutil.Error):
                process.kill()


def left_files(before: set[str]) -> list[str]:
    """Wait a moment for new files in /dev/shm to go and return those that stay."""
    return _settled(lambda: sorted(shm_files() - before))


def shm_files() -> set[str]:
    """Names in /dev/shm; empty where there is none."""
    return {path.name for path in SHM.iterdir()} if SHM.is_dir() else set()


def _describe(process: psutil.Process, before: set[int]) -> str:
    """Say what a process is; empty when it may stay."""
    try:
        if process.pid in before or any(parent.pid in before for parent in process.parents()):
            return ""
        command = " ".join(process.cmdline())[:200]
        return f"pid {process.pid} ({process.status()}): {command or process.name()}"
    except psutil.Error:
        return ""


def _settled(look):
    ends = time.monotonic() + _GRACE_S
    while (left := look()) and time.monotonic() < ends:
        time.sleep(0.05)
    return left
