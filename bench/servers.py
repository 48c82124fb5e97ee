"""Starting the servers that are measured: ours, and peers in environments of their own."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from hybrid.load.target import FOREIGN

ROOT = Path(__file__).parent.parent
_EXTRAS = "demo,openvino"
_READY = re.compile(r"ready on https?://\S*:(\d+)")


@contextlib.contextmanager
def hybrid(*arguments: str, compiled: bool = True) -> Iterator[tuple[str, int]]:
    """Run `hybrid serve ARGUMENTS`, compiled as users have it or from the sources; yields (base URL, pid)."""
    python = [str(_installed()), "-P"] if compiled else [sys.executable]
    # Leashed: a server that outlives a benchmark takes half of what the next one measures.
    command = [*python, "-m", "hybrid.load.leashed", str(os.getpid()), "serve", *arguments]
    command += ["--port", "0", "--log-level", "warning"]
    # What is compared with it (the raw engine, a peer) knows no measured plan; whoever wants one sets the variable.
    env = {"HYBRID_MEASURE": "never"} | {name: value for name, value in os.environ.items() if name not in FOREIGN}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield f"http://127.0.0.1:{_await_port(process)}", process.pid
    finally:
        _end(process)


@contextlib.contextmanager
def peer(command: Sequence[str], url: str, body: bytes) -> Iterator[int]:
    """Run a peer until it answers `body` on `url` with 200; yields its pid."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_answer(process, url, body)
        yield process.pid
    finally:
        _end(process)


def environment(name: str, *packages: str) -> Path:
    """Make `.venv-NAME` with these packages if it is not there yet; returns its python."""
    folder = ROOT / f".venv-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        if packages:
            subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _installed() -> Path:
    """Install this checkout into an environment of its own, again when a source has changed; returns its python."""
    python = environment("installed")
    stamp = python.parent.parent / "stamp"
    sources = [
        *(ROOT / name for name in ("setup.py", "compile.ini", "pyproject.toml")),
        *(ROOT / "hybrid").rglob("*"),
    ]  # folders for what is gone
    newest_s = max(path.stat().st_mtime for path in sources if "__pycache__" not in str(path))
    same = stamp.exists() and stamp.read_text() == _EXTRAS
    if not same or stamp.stat().st_mtime < newest_s:
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--force-reinstall"]
        command += ["--no-deps"] if same else []
        env = os.environ | {"HYBRID_COMPILE": "1"}
        subprocess.run([*command, f"{ROOT}[{_EXTRAS}]"], check=True, env=env)
        stamp.write_text(_EXTRAS)
    return python


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _await_port(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    for line in process.stdout:
        found = _READY.search(line)
        if found:
            return int(found[1])
    raise RuntimeError(f"hybrid serve ended with {process.wait()} before it was ready")


def _await_answer(process: subprocess.Popen[bytes], url: str, body: bytes) -> None:
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise RuntimeError(f"the peer ended with {process.returncode}")
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"no answer from {url}")


def _end(process: subprocess.Popen[str] | subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
