"""A real `hybrid serve` as a child process, for flow tests."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import psutil

READY_LINE = re.compile(r"ready on https?://.*:(\d+)")
GRPC_LINE = re.compile(r"^gRPC on .*:(\d+)$", re.MULTILINE)


class Server:
    """One server process; `with Server("simulated:null") as server` waits until it is ready and ends it after.

    `prefix` is a command that runs the server in its own place (by exec), such as `taskset`. With `stderr` its log goes
    to that descriptor, and `err` stays empty.
    """

    #: Those started and not stopped: a test that fails leaves its own to whoever tidies up after it.
    open: ClassVar[set["Server"]] = set()

    def __init__(
        self,
        *models: str,
        options: Sequence[str] = (),
        config: str = "",
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        stderr: int = subprocess.PIPE,
    ) -> None:
        self._stderr = stderr
        self._prefix = prefix
        self._arguments = [*models, "--port", "0", *options]
        self._config = config
        self._env = env or {}
        self._folder = tempfile.TemporaryDirectory()
        self.out = ""
        self.err = ""
        self.port = 0
        self.process: subprocess.Popen[str] | None = None
        self._ready = threading.Event()
        self._readers: list[threading.Thread] = []

    def __enter__(self) -> "Server":
        return self.start().wait_ready()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> "Server":
        arguments = list(self._arguments)
        if self._config:
            self.settings_path.write_text(self._config)
            arguments += ["--config", str(self.settings_path)]
        Server.open.add(self)
        self.process = subprocess.Popen(
            [*self._prefix, sys.executable, "-m", "hybrid", "serve", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            env=os.environ | self._env,
        )
        for stream, name in ((self.process.stdout, "out"), (self.process.stderr, "err")):
            if stream is None:
                continue
            reader = threading.Thread(target=self._read, args=(stream, name), daemon=True)
            reader.start()
            self._readers.append(reader)
        return self

    @property
    def settings_path(self) -> Path:
        """Where the file is that `config` is written to."""
        return Path(self._folder.name) / "config.toml"

    def _read(self, stream: Any, name: str) -> None:
        for line in stream:
            setattr(self, name, getattr(self, name) + line)
            found = READY_LINE.search(line)
            if found:
                self.port = int(found[1])
                self._ready.set()
        self._ready.set()

    def wait_ready(self, timeout_s: float = 60.0) -> "Server":
        assert self._ready.wait(timeout_s), f"not ready in {timeout_s} s\n{self.out}\n{self.err}"
        if not self.port:
            self.wait()
        assert self.port, f"ended before it was ready\n{self.out}\n{self.err}"
        return self

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for the end and return the exit code."""
        assert self.process is not None
        code = self.process.wait(timeout_s)
        for reader in self._readers:
            reader.join(5)
        return code

    def signal(self, number: int = signal.SIGTERM) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def stop(self) -> int:
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            try:
                self.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
        code = self.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        self._folder.cleanup()
        Server.open.discard(self)
        return code

    @property
    def grpc_port(self) -> int:
        """The port of gRPC, which is printed just behind the ready line."""
        self.until(lambda: GRPC_LINE.search(self.out), 5, "the line that names the port of gRPC")
        found = GRPC_LINE.search(self.out)
        assert found
        return int(found[1])

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, timeout_s: float = 10.0) -> tuple[int, Any]:
        """GET a path; returns (status, decoded JSON or text)."""
        return self._call(urllib.request.Request(self.base + path), timeout_s)

    def post(
        self, path: str, body: Any, headers: dict[str, str] | None = None, timeout_s: float = 30.0
    ) -> tuple[int, Any]:
        """POST a JSON body (or bytes as they are)."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, headers or {}, method="POST")
        return self._call(request, timeout_s)

    def infer_x(self, model: str, value: float, *, columns: int = 1, **more: Any) -> tuple[int, Any]:
        """Infer one row of a simulated model; returns (status, answer)."""
        data = [value] * columns
        body = {"inputs": [{"name": "x", "shape": [1, columns], "datatype": "FP32", "data": data}]}
        return self.post(f"/v2/models/{model}/infer", body, **more)

    @staticmethod
    def _call(request: urllib.request.Request, timeout_s: float) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                return answer.status, _decoded(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _decoded(error.read())

    def snapshot(self) -> Any:
        return self.get("/hybrid/v1/snapshot")[1]

    def workers(self) -> list[Any]:
        return [worker for worker in self.snapshot()["workers"] if worker["pid"]]

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)

    def until(self, condition: Any, timeout_s: float = 15.0, what: str = "") -> None:
        """Poll until the condition holds."""
        ends = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < ends, f"never happened: {what}\n{self.err[-3000:]}"
            time.sleep(0.02)


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return data.decode(errors="replace")
