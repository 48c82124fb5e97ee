"""Driving a server with wrk and counting what its processes burn. wrk comes from Debian's package of that name."""

import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import psutil
from msgspec import Struct

_UNITS = {"us": 1.0, "ms": 1e3, "s": 1e6, "m": 60e6}


class Load(Struct, frozen=True):
    """A request that is repeated: a POST, or a GET without a body. `headers` are whole name-value pairs."""

    url: str
    body: bytes
    headers: dict[str, str] = {}

    @property
    def method(self) -> str:
        """GET or POST."""
        return "POST" if self.body else "GET"


class Measured(Struct, frozen=True):
    """One round: requests answered and computed, latency, and the CPU of all processes of the server."""

    requests: int
    seconds: float
    errors: int
    p50_us: float
    p99_us: float
    cpu_s: float
    computed: int

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds

    @property
    def cpu_us_per_request(self) -> float:
        """CPU of the server's processes per computed request, in microseconds."""
        return self.cpu_s / self.computed * 1e6


def drive(
    load: Load, connections: int, seconds: int, server_pid: int, executed: Callable[[], int] | None = None
) -> Measured:
    """Run wrk with one thread and return what it saw.

    `executed` returns how many requests the server has computed and waits until none is in flight. wrk leaves with as
    many unanswered requests as it has connections; for slow models they are a good part of a round, and their CPU must
    not be put on the answered ones.

    Raises:
        RuntimeError: wrk is missing, or nothing was answered.
    """
    if shutil.which("wrk") is None:
        raise RuntimeError("this benchmark needs `wrk` (apt-get install wrk)")
    with tempfile.TemporaryDirectory() as folder:
        script = _script(Path(folder), load)
        done = executed() if executed is not None else 0
        before = tree_cpu_s(server_pid)
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--latency", "--timeout", "30s"]
        output = subprocess.run([*command, "-s", str(script), load.url], capture_output=True, text=True, check=True)
        computed = executed() - done if executed is not None else 0
        cpu_s = tree_cpu_s(server_pid) - before
    return _parse(output.stdout, cpu_s, computed)


def tree_cpu_s(pid: int) -> float:
    """CPU seconds of a process and all its children, those that ended included."""
    parent = psutil.Process(pid)
    total = 0.0
    for process in [parent, *parent.children(recursive=True)]:
        times = process.cpu_times()
        total += times.user + times.system + times.children_user + times.children_system
    return total


def ask(load: Load) -> bytes:
    """Send the request once and return the answer's body; the check that a round measures answers and not errors.

    Raises:
        RuntimeError: the status is not 200.
    """
    request = urllib.request.Request(load.url, load.body or None, load.headers, method=load.method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: bytes = answer.read()
            return data
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{load.url}: {error.code} {error.read()[:300]!r}") from error


def _script(folder: Path, load: Load) -> Path:
    (folder / "body").write_bytes(load.body)
    lines = [
        f'wrk.method = "{load.method}"',
        f'local file = io.open("{folder}/body", "rb")',
        'wrk.body = file:read("*a")',
    ]
    lines += [f'wrk.headers["{name}"] = "{value}"' for name, value in load.headers.items()]
    path = folder / "load.lua"
    path.write_text("\n".join(lines) + "\n")
    return path


def _parse(text: str, cpu_s: float, computed: int) -> Measured:
    done = re.search(r"(\d+) requests in ([\d.]+)(us|ms|s|m),", text)
    if done is None or int(done[1]) == 0:
        raise RuntimeError(f"wrk measured nothing:\n{text}")
    errors = re.search(r"Non-2xx or 3xx responses: (\d+)", text)
    sockets = re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", text)
    return Measured(
        requests=int(done[1]),
        seconds=float(done[2]) * _UNITS[done[3]] / 1e6,
        errors=(int(errors[1]) if errors else 0) + (sum(map(int, sockets.groups())) if sockets else 0),
        p50_us=_percentile(text, "50%"),
        p99_us=_percentile(text, "99%"),
        cpu_s=cpu_s,
        computed=computed or int(done[1]),
    )


def _percentile(text: str, name: str) -> float:
    found = re.search(rf"{name}\s+([\d.]+)(us|ms|s|m)\b", text)
    return float(found[1]) * _UNITS[found[2]] if found else float("nan")
