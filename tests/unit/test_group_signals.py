"""Children stay out of signals to the group from their first instruction on."""

import signal
import subprocess
import sys

import pytest

from hybrid.group_signals import kept_from_children

HEARD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SLEEPER = "print('up', flush=True); import time; time.sleep(60)"
MEANWHILE = """
import os, signal
from hybrid.group_signals import kept_from_children
signal.signal(signal.SIGTERM, lambda number, frame: print("heard"))
with kept_from_children():
    os.kill(os.getpid(), signal.SIGTERM)
    print("blocked")
print("over")
"""
CHILD = f"from hybrid.group_signals import leave_to_parent; leave_to_parent(); {SLEEPER}"


@pytest.mark.parametrize("code", [SLEEPER, CHILD], ids=["before it says so", "after it did"])
def test_a_child_hears_nothing(code):
    with kept_from_children():
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    with child:
        assert child.stdout is not None
        for number in HEARD:  # before its first line of code
            child.send_signal(number)
        assert child.stdout.readline() == b"up\n"
        for number in HEARD:
            child.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
        child.kill()


def test_what_comes_meanwhile_is_heard_afterwards():
    # In a process of its own: OpenVINO may have left this one a stack for handlers that is gone.
    done = subprocess.run([sys.executable, "-c", MEANWHILE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["blocked", "heard", "over"]
