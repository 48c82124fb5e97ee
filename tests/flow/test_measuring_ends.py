"""Being told to end while models are measured, which takes longer than an orchestrator waits."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

#: A server that is told to stop and stops has done what it should; a plan that was not finished has not.
VERBS = ((["serve", "minilm", "--port", "0", "--grpc-port", "-1"], 0), (["plan", "minilm"], 143))


def probes_of(parent: psutil.Process) -> list[psutil.Process]:
    """The processes that measure, once there are any."""
    ends_at = time.monotonic() + 30.0
    while time.monotonic() < ends_at:
        found = [child for child in parent.children() if "hybrid.probing.process" in child.cmdline()]
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("nothing was measured")


@pytest.mark.parametrize(("verb", "exit_code"), VERBS, ids=[verb[0] for verb, _ in VERBS])
def test_sigterm_is_heard_and_leaves_nothing(verb: list[str], exit_code: int, tmp_path: Path) -> None:
    """A process 1, as in a container, would not even see a signal that it has no handler for: exit -15 is no answer."""
    code = "from hybrid.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *verb],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "HYBRID_MEASURE": "auto", "XDG_CACHE_HOME": str(tmp_path)},
    )
    with process:
        probes = probes_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=10)
    assert process.returncode == exit_code
    assert b"Traceback" not in errors
    _, alive = psutil.wait_procs(probes, timeout=5)
    assert alive == []


def test_it_ends_although_nobody_reads_what_it_says(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while os.write(writing, b"x" * 4096):
            pass
    os.set_blocking(writing, True)
    env = {**os.environ, "HYBRID_MEASURE": "auto", "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "hybrid", *VERBS[0][0]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writing, env=env) as process:
        probes_of(psutil.Process(process.pid))
        process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(10) == 0
        finally:
            process.kill()
    os.close(reading)
    os.close(writing)
