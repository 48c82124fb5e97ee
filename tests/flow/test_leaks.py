"""The leak check finds what it is for."""

import subprocess

import leaks
import psutil


def test_an_orphan_is_found_and_named():
    before = set(leaks.descendants())
    shell = subprocess.run(
        ["sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"], capture_output=True, text=True, check=True
    )
    orphan = psutil.Process(int(shell.stdout))
    try:
        assert orphan not in psutil.Process().children(recursive=True)
        found = [process for pid, process in leaks.descendants().items() if pid not in before]
        assert found == [orphan]
    finally:
        orphan.kill()
    assert leaks.left_processes(before) == []
