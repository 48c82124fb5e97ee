"""One child process: how it is spoken to, how it ends, and that every end says why."""

import asyncio
import os
import sys
import time
from pathlib import Path

import psutil
import pytest
from children import cause_of, nothing_leaks, quiet_hub, until

from hybrid.workers import oom, wire
from hybrid.workers.process import ChildProcess, describe_exit

pytestmark = pytest.mark.slow

#: A child that says hello and then does what its argument tells it.
PROGRAM = """
import os, sys, time, socket
from hybrid.engines.base import MemoryFacts
from hybrid.workers import child, wire
sock = child.enter()
wire.receive(sock)
wire.send(sock, wire.Beat(1, 2.0, MemoryFacts(allocated=3)))
wire.send(sock, wire.StartFailed("hello"))
{then}
"""


class Run:
    """A child that runs `then`, with everything that was heard of it."""

    def __init__(self, tmp_path, then, hub):
        (tmp_path / "program.py").write_text(PROGRAM.format(then=then))
        self.events, self.ends = [], []
        loop = asyncio.get_running_loop()
        self.child = ChildProcess("test", self.events.append, lambda end: self.ends.append(cause_of(end)), loop)
        environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
        self.child.spawn("program", wire.Stop(), (), environment, hub)

    async def ended(self):
        await until(lambda: self.ends)
        await asyncio.sleep(0.05)
        assert len(self.ends) == 1  # said once
        return self.ends[0]


@pytest.fixture
async def run(tmp_path):
    with nothing_leaks(), quiet_hub() as hub:
        yield lambda then: Run(tmp_path, then, hub)


@pytest.mark.parametrize(
    ("then", "cause"),
    [
        ("", "exit code 0"),
        ("os._exit(3)", "exit code 3"),
        ("os.abort()", "killed by SIGABRT"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL"),
        ("sock.close(); time.sleep(60)", "killed by SIGKILL"),  # of no more use, so it is ended
    ],
)
async def test_how_a_child_ended(run, then, cause):
    child = run(then)
    assert await child.ended() == cause
    assert [event.text for event in child.events] == ["hello"]
    assert (child.child.rss_bytes, child.child.cpu_s, child.child.memory.allocated) == (1, 2.0, 3)
    assert not psutil.pid_exists(child.child.pid)
    child.child.send(wire.Stop())  # to nobody: no error
    child.child.kill("again")


@pytest.mark.parametrize(
    ("then", "kills", "cause"),
    [
        ("os.kill(os.getpid(), 9)", (7, 8), "killed by SIGKILL; the kernel's out-of-memory killer has run meanwhile"),
        ("os.kill(os.getpid(), 9)", (7, 7), "killed by SIGKILL"),
        ("os.abort()", (7, 8), "killed by SIGABRT"),
    ],
)
async def test_a_kill_for_lack_of_memory_is_hinted_at_where_the_kernel_counts_one(run, monkeypatch, then, kills, cause):
    counts = iter(kills)
    monkeypatch.setattr(oom, "kill_counts", lambda: {Path("/proc/vmstat"): next(counts)})
    assert await run(then).ended() == cause


async def test_stop_and_kill_name_their_reason(run):
    stopping = run("assert type(wire.decode_command(wire.receive(sock))) is wire.Stop")
    await until(lambda: stopping.events)
    stopping.child.stop()
    assert await stopping.ended() == "stopped"
    killed = run("time.sleep(60)")
    await until(lambda: killed.events)
    killed.child.kill("for a test")
    killed.child.kill("for no reason")
    assert await killed.ended() == "for a test"


async def test_a_child_that_does_not_read_is_ended_and_blocks_nobody(run):
    child = run("time.sleep(60)")
    await until(lambda: child.events)
    began = time.monotonic()
    for number in range(20_000):
        child.child.send(wire.Run(number, 0, 1, 0, ()))
    assert time.monotonic() - began < 2.0
    assert await child.ended() == "stopped reading its socket"


async def test_a_message_that_is_too_long_ends_the_child(run):
    child = run("time.sleep(60)")
    await until(lambda: child.events)
    child.child.send(wire.Transform(1, 0, (), (b"x" * 3_000_000,)))
    assert await child.ended() == "cannot be sent a message: Message too long"


async def test_no_process_to_be_had(monkeypatch):
    with nothing_leaks(), quiet_hub() as hub:
        monkeypatch.setattr(sys, "executable", "/nonexistent/python")
        gone = []
        child = ChildProcess("test", gone.append, gone.append, asyncio.get_running_loop())
        with pytest.raises(FileNotFoundError):
            child.spawn("program", wire.Stop(), (), {}, hub)
        assert not child.alive
        assert gone == []


def test_exit_codes_as_words():
    assert [describe_exit(code) for code in (0, 1, -11, -64, -200)] == [
        "exit code 0", "exit code 1", "killed by SIGSEGV", "killed by SIGRTMAX", "killed by signal 200",
    ]  # fmt: skip
