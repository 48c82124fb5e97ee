"""What bodies leave behind is there for the next ones: in a process of its own, because malloc is set for good."""

import platform
import subprocess
import sys

import pytest

BODIES = """
import resource
from hybrid.frontend import body, heap
if {keep}:
    heap.keep_freed_memory()
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bodies = [body.LargeBody(600_000, b"x" * 600_000, body.Receiving()) for _ in range(16)]
    bodies.clear()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep):
    """How many pages a batch of bodies faults in that comes after others."""
    command = [sys.executable, "-c", BODIES.format(keep=keep)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have no mallopt()")
def test_pages_of_freed_bodies_are_not_faulted_in_again():
    assert faults(keep=False) > 1000  # 16 bodies have 2,350: what this is against
    assert faults(keep=True) < 200
