"""What clients do, for flow tests: model folders, a small asyncio HTTP client, bodies, and what the server counts."""

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from server import Server


def folder(
    root: Path, name: str, *, batching: str = "", simulated: str | None = None, extra: str = "", head: str = ""
) -> str:
    """Write a model folder with one worker; `simulated` is the content of that table, None for a model file."""
    path = root / name
    path.mkdir(exist_ok=True)
    device = "" if simulated is None else f"[simulated]\ncolumns = -1\n{simulated}\n"
    (path / "model.toml").write_text(f"{head}\n[workers]\ninstances = 1\n{extra}\n[batching]\n{batching}\n{device}")
    return str(path)


def fp32(values: Any, shape: Iterable[int], name: str = "x", **more: Any) -> dict[str, Any]:
    """A JSON body with one FP32 input."""
    return {"inputs": [{"name": name, "shape": list(shape), "datatype": "FP32", "data": values}], **more}


def path(model: str) -> str:
    """Where a model's requests go to."""
    return f"/v2/models/{model}/infer"


def request_bytes(path: str, body: Any, headers: dict[str, str] | None = None) -> bytes:
    """A POST as it goes over the wire."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    return f"POST {path} HTTP/1.1\r\nHost: t\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


class Answer:
    """Status, headers in lower case, decoded JSON (or the bytes) and when it came."""

    def __init__(self, status: int, headers: dict[str, str], raw: bytes) -> None:
        self.status, self.headers, self.raw = status, headers, raw
        self.at = time.monotonic()

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def data(self) -> Any:
        return self.body["outputs"][0]["data"]

    def __repr__(self) -> str:
        return f"{self.status} {self.raw[:300]!r}"


class Client:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def __aenter__(self) -> "Client":
        self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.close()
        await asyncio.gather(self.writer.wait_closed(), return_exceptions=True)

    @property
    def writer(self) -> asyncio.StreamWriter:
        assert self._streams is not None
        return self._streams[1]

    async def post(self, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
        self.send(path, body, headers)
        return await self.read()

    def send(self, path: str, body: Any, headers: dict[str, str] | None = None) -> None:
        self.writer.write(request_bytes(path, body, headers))

    async def read(self) -> Answer:
        """Read one answer, skipping interim ones."""
        assert self._streams is not None
        reader = self._streams[0]
        status = 100
        while status < 200:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            status = int(head[0].split(" ", 2)[1])
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        return Answer(status, headers, await reader.readexactly(int(headers["content-length"])))


async def post(port: int, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    """One request on a connection of its own."""
    async with Client(port) as client:
        return await client.post(path, body, headers)


async def post_all(port: int, path: str, bodies: Iterable[Any], headers: dict[str, str] | None = None) -> list[Answer]:
    """All at once, each on a connection of its own."""
    return await asyncio.gather(*(post(port, path, body, headers) for body in bodies))


async def each(items: Iterable[Any], work: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Do the same for each at once."""
    return await asyncio.gather(*(work(item) for item in items))


def leave_after_sending(port: int, path: str, body: Any, headers: dict[str, str] | None = None) -> socket.socket:
    """Send a request and return the socket, for a client that will not wait for the answer."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(request_bytes(path, body, headers))
    return sock


class Counters:
    """What a model has counted, and how much more since this was made."""

    def __init__(self, server: Server, model: str) -> None:
        self._server, self._model = server, model
        self._first = self.now()

    def now(self) -> dict[str, int]:
        snapshot = self._server.snapshot()
        model = next(m for m in snapshot["models"] if m["name"] == self._model)
        classes = model["classes"]
        sizes: dict[str, int] = {}
        for entry in classes:
            for index, count in enumerate(entry["sizes_n"]):
                sizes[f"size_{index + 1}"] = sizes.get(f"size_{index + 1}", 0) + count
        return {
            "batches": sum(entry["batches_n"] for entry in classes),
            "rows": sum(entry["items_n"] for entry in classes),
            **sizes,
            **{name.removesuffix("_n"): count for name, count in model["outcomes"].items()},
        }

    def since(self) -> dict[str, int]:
        """What is not 0 among the differences."""
        now = self.now()
        changes = {name: count - self._first.get(name, 0) for name, count in now.items()}
        return {name: change for name, change in changes.items() if change}

    def depth(self) -> int:
        """Rows that wait."""
        model = next(m for m in self._server.snapshot()["models"] if m["name"] == self._model)
        return sum(entry["depth"] for entry in model["classes"])


async def executing(counters: Counters) -> None:
    """Wait until a batch was sent to a worker since `counters` was made."""
    ends = time.monotonic() + 5
    while not (await asyncio.to_thread(counters.since)).get("batches"):
        assert time.monotonic() < ends, "nothing was executed"


async def waiting_rows(counters: Counters, rows: int) -> None:
    """Wait until so many rows are queued."""
    ends = time.monotonic() + 5
    while (depth := await asyncio.to_thread(counters.depth)) != rows:
        assert time.monotonic() < ends, f"{depth} rows wait, never {rows}"
