"""What the server says of its work is what happened; rows of `field-reports.md` are named."""

import asyncio
import contextlib
import itertools
import re
import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest
from clients import (
    Answer,
    Client,
    Counters,
    executing,
    folder,
    fp32,
    leave_after_sending,
    path,
    post,
    post_all,
    waiting_rows,
)
from prometheus_client.parser import text_string_to_metric_families
from server import Server

from hybrid.engines.simulated_engine import POISON, RAISE, WRONG_ROWS
from hybrid.telemetry import snapshot as snap
from hybrid.telemetry.metric_table import METRICS

pytestmark = pytest.mark.slow

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    models = [
        folder(root, "mixed", batching="max_batch = 1\nqueue_rows = 4", simulated="fixed_ms = 200\nfaults = true"),
        folder(root, "steady", batching="max_batch = 1", simulated="fixed_ms = 50"),
        folder(root, "quick", batching="max_batch = 8", simulated="faults = true"),
    ]
    with Server(*models) as running:
        yield running


def scrape(server: Server) -> Series:
    with urllib.request.urlopen(server.base + "/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    families = text_string_to_metric_families(text)
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


def value(series: Series, name: str, **labels: str) -> float:
    found = [v for (n, have), v in series.items() if n == name and labels.items() <= dict(have).items()]
    assert found, f"no series {name} {labels}"
    return sum(found)


def outcomes(series: Series, model: str) -> dict[str, float]:
    name = "hybrid_requests_total"
    found = {dict(have)["outcome"]: v for (n, have), v in series.items() if n == name and dict(have)["model"] == model}
    assert sorted(found) == ["bad_input", "cancelled", "failed", "late", "left", "ok", "queue_full"]
    return found


async def test_every_outcome_is_counted_once(server: Server):
    """MET-01: a known mix."""
    before = outcomes(scrape(server), "mixed")
    counters = Counters(server, "mixed")
    port = server.port
    first = asyncio.ensure_future(post(port, path("mixed"), fp32([1.0], (1, 1))))
    await executing(counters)
    late = asyncio.ensure_future(post(port, path("mixed"), fp32([1.0], (1, 1), parameters={"timeout": 50_000})))
    leaver = leave_after_sending(port, path("mixed"), fp32([1.0], (1, 1)))
    queued = asyncio.ensure_future(post_all(port, path("mixed"), [fp32([2.0], (1, 1))] * 2))
    await waiting_rows(counters, 4)
    full = await post_all(port, path("mixed"), [fp32([3.0], (1, 1))] * 5)
    leaver.close()
    bad = await post_all(port, path("mixed"), [b"{", fp32([1.0], (1,)), fp32([1.0] * 5, (5, 1))])
    statuses = [answer.status for answer in (await first, await late, *await queued, *full, *bad)]
    assert statuses == [200, 504, 200, 200, 429, 429, 429, 429, 429, 400, 400, 413]
    failing = [(await post(port, path("mixed"), fp32([marker], (1, 1)))).status for marker in (RAISE, WRONG_ROWS)]
    refused = (await post(port, path("mixed"), fp32([POISON], (1, 1)))).status
    assert (failing, refused) == ([500, 500], 400)
    after = outcomes(scrape(server), "mixed")
    expected = {"ok": 3, "late": 1, "left": 1, "queue_full": 5, "bad_input": 4, "failed": 2}
    assert {name: after[name] - before[name] for name in after if after[name] != before[name]} == expected
    since = counters.since()
    assert {name: since.get(name) for name in expected} == expected


async def test_waiting_requests_show_as_a_gauge_that_returns_to_zero(server: Server):
    """MET-04: 5 wait behind a running one; also after cancels."""
    counters = Counters(server, "steady")
    for leave in (False, True):
        blocker = asyncio.ensure_future(post(server.port, path("steady"), fp32([1.0] * 12, (12, 1))))
        await executing(Counters(server, "steady"))
        blocked = counters.depth()
        waiting = [leave_after_sending(server.port, path("steady"), fp32([1.0], (1, 1))) for _ in range(5)]
        rows: list[float] = []
        while max(rows, default=0) <= blocked - 4:
            rows.append(value(scrape(server), "hybrid_queue_rows", model="steady"))
        for sock in waiting:
            if leave:
                sock.close()
            else:
                await asyncio.to_thread(sock.recv, 1000)
                sock.close()
        assert (await blocker).status == 200
        series = scrape(server)
        for name in ("hybrid_queue_rows", "hybrid_queue_bytes", "hybrid_queue_oldest_seconds"):
            assert value(series, name, model="steady") == 0


async def test_durations_are_right_and_their_parts_add_up(server: Server):
    """MET-03: 20 at once on one worker of 50 ms: the k-th waits for k runs."""
    before = scrape(server)
    began = time.monotonic()
    answers = await post_all(server.port, path("steady"), [fp32([1.0], (1, 1))] * 20)
    took = [answer.at - began for answer in answers]
    after = scrape(server)

    def change(name: str, **labels: str) -> float:
        return value(after, name, model="steady", **labels) - value(before, name, model="steady", **labels)

    assert change("hybrid_request_duration_seconds_count") == 20
    total = change("hybrid_request_duration_seconds_sum")
    assert total == pytest.approx(sum(took), rel=0.05)
    compute = change("hybrid_stage_duration_seconds_sum", stage="compute")
    assert compute == pytest.approx(20 * 0.05, rel=0.05)
    assert change("hybrid_stage_duration_seconds_sum", stage="queue") == pytest.approx(total - compute, rel=0.05)
    assert change("hybrid_stage_duration_seconds_sum") == pytest.approx(total, rel=0.05)
    for answer, seconds in zip(answers, took, strict=True):
        assert sum(timings(answer).values()) / 1e6 == pytest.approx(seconds, rel=0.1, abs=0.04)


def timings(answer: Answer) -> dict[str, float]:
    """The stage times of an answer in microseconds, after a look at the header that says the same."""
    body = answer.body["parameters"]["timings_us"]
    header = dict(re.findall(r"(\w+);dur=([\d.]+)", answer.headers["server-timing"]))
    assert list(header) == list(body) == ["parse", "preprocess", "queue", "copy", "compute", "post", "serialise"]
    for stage, us in body.items():
        assert float(header[stage]) * 1000 == pytest.approx(us, abs=1)
    return body


async def test_5000_unknown_paths_make_no_series(server: Server):
    """MET-08."""
    scrape(server)
    before = {name for name, _ in scrape(server)}, len(scrape(server))

    async def scan(number: int) -> None:
        async with Client(server.port) as client:
            for turn in range(500):
                kind = ("", "v2/models/", "v2/models/m/versions/")[turn % 3]
                answer = await client.post(f"/{kind}{number}-{turn}/infer?x={turn}", b"{}")
                assert answer.status == 404

    await asyncio.gather(*(scan(number) for number in range(10)))
    series = scrape(server)
    assert ({name for name, _ in series}, len(series) - before[1] <= 1) == (before[0], True)  # one for status 404


def test_names_and_types_are_those_of_the_table(server: Server):
    """MET-12: nothing vanishes, nothing comes unannounced."""
    with urllib.request.urlopen(server.base + "/metrics") as answer:
        families = {f.name: f for f in text_string_to_metric_families(answer.read().decode())}
    table = {spec.name.removesuffix("_total") if spec.kind == "counter" else spec.name: spec for spec in METRICS}
    assert set(families) <= set(table)
    for name, family in families.items():
        assert family.type == table[name].kind
        assert family.documentation == table[name].help
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(table[name].labels)
    missing = set(table) - set(families)
    assert not {name for name in missing if not name.startswith(("hybrid_host", "hybrid_preprocess"))}


async def test_counters_never_fall_under_load(server: Server):
    """MET-07."""

    async def load() -> None:
        async with Client(server.port) as client:
            while True:
                await client.post(path("quick"), fp32([1.0], (1, 1)))

    tasks = [asyncio.ensure_future(load()) for _ in range(4)]
    last: Series = {}
    for _ in range(10):
        series = await asyncio.to_thread(scrape, server)
        for key, number in series.items():
            if key[0].endswith(("_total", "_count", "_sum", "_bucket")):
                assert number >= last.get(key, 0.0), key
        last = series
    assert outcomes(last, "quick")["ok"] > 0
    for task in tasks:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_the_snapshot_decodes(server: Server):
    with urllib.request.urlopen(server.base + "/hybrid/v1/snapshot") as answer:
        snapshot = snap.decode(answer.read())
    assert snapshot.state == "ready"
    assert [model.name for model in snapshot.models] == ["mixed", "steady", "quick"]
    assert {worker.state for worker in snapshot.workers} <= {"ready", "busy"}
    assert all(worker.pid and worker.rss for worker in snapshot.workers)


def test_the_stream_gives_one_snapshot_a_second(server: Server):
    snapshots: list[snap.Snapshot] = []
    times: list[float] = []
    with urllib.request.urlopen(server.base + "/hybrid/v1/stream", timeout=5) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream"
        while len(snapshots) < 4:
            line = answer.readline()
            if line.startswith(b"data: "):
                snapshots.append(snap.decode(line[6:]))
                times.append(time.monotonic())
    gaps = [b - a for a, b in itertools.pairwise(times)]
    assert gaps == pytest.approx([1.0] * 3, abs=0.2)
    assert [s.seq - snapshots[0].seq for s in snapshots] == sorted({s.seq - snapshots[0].seq for s in snapshots})


def test_there_is_a_bound_on_streams_and_leaving_frees_them(server: Server):
    for _ in range(2):
        server.until(lambda: server.snapshot()["front"]["inflight"] == 1, 5, "left streams are noticed")
        with contextlib.ExitStack() as streams:
            opened: list[str] = []
            server.until(lambda stack=streams, log=opened: open_stream(server, stack, log) == "503", 5, "a 17th")
            assert opened.count("200") == 16


def open_stream(server: Server, streams: contextlib.ExitStack, opened: list[str]) -> str:
    sock = streams.enter_context(socket.create_connection(("127.0.0.1", server.port)))
    sock.sendall(b"GET /hybrid/v1/stream HTTP/1.1\r\nHost: t\r\n\r\n")
    opened.append(sock.recv(1000).decode().split()[1])
    return opened[-1]
