"""Texts of mixed length over HTTP from one asyncio client: the load of `mixed_lengths`, closed and open loop.

Lengths are log-normal, clipped; every policy gets the same sequence of texts. Latency in the open loop counts from when
a request was due, not from when it was sent.
"""

import asyncio
import json
import random
import time
from collections.abc import Iterator

from msgspec import Struct

MU, SIGMA, SHORTEST, LONGEST = 3.3, 0.9, 4, 256
_WORDS = ("boat", "lake", "bird", "home", "tree", "rain", "book", "wind")
_PATIENCE_S = 20.0
_MARKS = 2  # tokens that the tokenizer adds to each text


class Round(Struct, frozen=True):
    """What clients saw: answers in time and misses (late, expired, refused) of requests that were due in the round."""

    seconds: float
    answered: int
    missed: int
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Answers in time per second."""
        return self.answered / self.seconds


class Target(Struct, frozen=True):
    """Where requests go and how long each may take."""

    port: int
    path: str
    deadline_s: float


def lengths(seed: int) -> Iterator[int]:
    """Endless token counts."""
    draw = random.Random(seed)
    while True:
        yield min(LONGEST, max(SHORTEST, round(draw.lognormvariate(MU, SIGMA))))


async def closed_loop(target: Target, clients: int, seconds: float, seed: int, warm_s: float = 1.5) -> Round:
    """Clients that send their next text as soon as they have an answer."""
    texts = _requests(target, seed)
    begins = time.monotonic() + warm_s
    ends = begins + seconds
    took: list[float] = []
    missed = 0

    async def client() -> None:
        nonlocal missed
        async with _Connection(target.port) as connection:
            while (sent := time.monotonic()) < ends:
                status = await connection.ask(next(texts))
                now = time.monotonic()
                if not begins <= now < ends:
                    continue
                if status == 200 and now - sent <= target.deadline_s:
                    took.append(now - sent)
                else:
                    missed += 1

    await asyncio.gather(*(client() for _ in range(clients)))
    return _round(seconds, took, missed)


async def open_loop(target: Target, rate: float, seconds: float, seed: int, connections: int = 400) -> Round:
    """Poisson arrivals; a request that finds no free connection waits for one, and that counts."""
    texts, draw = _requests(target, seed), random.Random(seed)
    free: asyncio.Queue[_Connection] = asyncio.Queue()
    opened = [await _Connection(target.port).__aenter__() for _ in range(connections)]
    for connection in opened:
        free.put_nowait(connection)
    took: list[float] = []
    missed = 0

    async def one(due: float, text: bytes) -> None:
        nonlocal missed
        connection = await free.get()
        status = await connection.ask(text)
        free.put_nowait(connection)
        passed = time.monotonic() - due
        if status == 200 and passed <= target.deadline_s:
            took.append(passed)
        else:
            missed += 1

    due = began = time.monotonic()
    tasks = []
    while (due := due + draw.expovariate(rate)) < began + seconds:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.ensure_future(one(due, next(texts))))
    await asyncio.gather(*tasks)
    for connection in opened:
        await connection.__aexit__()
    return _round(seconds, took, missed)


class _Connection:
    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "_Connection":
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    async def ask(self, request: bytes) -> int:
        """Send and return the status; the body is read and dropped."""
        self._writer.write(request)
        async with asyncio.timeout(_PATIENCE_S):  # a server that never answers ends the benchmark, it does not hang it
            head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
            length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
            await self._reader.readexactly(int(length))
        return int(head.split(b" ", 2)[1])


def _requests(target: Target, seed: int) -> Iterator[bytes]:
    draw = random.Random(seed + 1)
    for length in lengths(seed):
        text = " ".join(draw.choices(_WORDS, k=length - _MARKS))
        inputs = [{"name": "text", "datatype": "BYTES", "shape": [1], "data": [text]}]
        # Vectors in binary form, so that what is measured is batching and not the printing of 384 numbers.
        body = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
        head = (
            f"POST {target.path} HTTP/1.1\r\nHost: bench\r\nX-Request-Timeout-Ms: {target.deadline_s * 1e3:.0f}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        yield head.encode() + body


def _round(seconds: float, took: list[float], missed: int) -> Round:
    took.sort()
    p50, p99 = (took[int(share * (len(took) - 1))] * 1e3 if took else float("nan") for share in (0.5, 0.99))
    return Round(seconds, len(took), missed, p50, p99)
