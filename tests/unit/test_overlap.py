"""Two batches at once in a worker: the order of the serving loop, and the pipeline's two halves."""

import socket
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from hybrid.engines import pipeline as pipeline_module
from hybrid.engines.base import Arrays, EngineFailure, MemoryFacts
from hybrid.engines.pipeline import Pipeline
from hybrid.messages import FailureKind, Signature, TensorSpec
from hybrid.workers import overlap, wire


class FakeWorker:
    """Batches that are done when the test says so; `refuse` fails in `begin`."""

    def __init__(self, done: set[int] = frozenset(), refuse: set[int] = frozenset()) -> None:
        self.log: list[str] = []
        self._done, self._refuse = done, refuse

    def begin(self, command: wire.Run) -> Any:
        number = command.batch_id
        self.log.append(f"begin {number}")
        if number in self._refuse:
            return wire.RunFailed(number, "input", "no")
        return type("Batch", (), {"number": number, "done": lambda batch: number in self._done})()

    def finish(self, started: Any) -> wire.Event:
        self.log.append(f"finish {started.number}")
        return wire.Ran(started.number, 0, (), 0.0, 0.0, 0.0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = wire.pair()
    yield ours, theirs
    ours.close()
    theirs.close()


def served(ends: tuple[socket.socket, socket.socket], worker: FakeWorker, runs: int) -> list[int]:
    """Have all commands wait in the socket, serve them, and return the batch ids of the events in order."""
    ours, theirs = ends
    for number in range(1, runs + 1):
        wire.send(ours, wire.Run(number, 0, 1, 0, ()))
    wire.send(ours, wire.Stop())
    overlap.serve(theirs, worker)
    return [wire.decode_event(ours.recv(wire.MAX_PACKET)).batch_id for _ in range(runs)]


def test_the_next_batch_begins_before_the_last_is_finished(ends: tuple[socket.socket, socket.socket]) -> None:
    worker = FakeWorker()
    assert served(ends, worker, 4) == [1, 2, 3, 4]
    assert worker.log == [
        *("begin 1", "begin 2", "finish 1", "begin 3", "finish 2", "begin 4", "finish 3", "finish 4"),
    ]


def test_what_is_done_is_answered_first(ends: tuple[socket.socket, socket.socket]) -> None:
    worker = FakeWorker(done={1, 2})
    assert served(ends, worker, 2) == [1, 2]
    assert worker.log == ["begin 1", "finish 1", "begin 2", "finish 2"]


def test_a_refused_batch_is_answered_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    worker = FakeWorker(refuse={2})
    assert served(ends, worker, 3) == [2, 1, 3]
    assert worker.log == ["begin 1", "begin 2", "begin 3", "finish 1", "finish 3"]


def test_a_server_that_is_gone_ends_it(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    wire.send(ours, wire.Run(1, 0, 1, 0, ()))
    ours.close()
    worker = FakeWorker()
    overlap.serve(theirs, worker)
    assert worker.log == ["begin 1"]


# The pipeline ------------------------------------------------------------------------------------------------------


class Doubler:
    """y = 2 x, computed when it is waited for; the clock stands in `now`."""

    max_rows = None
    overlaps = True

    def __init__(self) -> None:
        self.signature = Signature((TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),))
        self.rows: list[int] = []

    def begin(self, inputs: Mapping[str, np.ndarray], rows: int) -> Any:
        if (inputs["x"] < 0).any():
            raise EngineFailure(FailureKind.INPUT, "negative")
        self.rows.append(rows)
        return type("Begun", (), {"done": lambda s: False, "wait": lambda s: {"y": inputs["x"] * 2}})()

    def run(self, inputs: Mapping[str, np.ndarray], rows: int) -> Arrays:
        raise AssertionError("an engine that overlaps is begun and waited for")

    def memory(self) -> MemoryFacts:
        return MemoryFacts()

    def close(self) -> None:
        """Nothing to release."""


def x(*values: float) -> dict[str, np.ndarray]:
    return {"x": np.array(values, np.float32)}


def test_batches_of_an_overlapping_engine_keep_their_own_rows() -> None:
    engine = Doubler()
    pipeline = Pipeline(engine, static_rows=3)
    assert pipeline.overlaps
    first, second = pipeline.begin(x(1, 2), 2), pipeline.begin(x(3), 1)
    assert not first.done()
    assert first.finish().outputs["y"].tolist() == [2, 4]
    assert second.finish().outputs["y"].tolist() == [6]
    assert engine.rows == [3, 3]
    assert pipeline.run(x(5), 1)["y"].tolist() == [10]
    assert pipeline.check_batchable(1e-3) is None


def test_failures_leave_at_the_half_where_they_happen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Doubler()
    pipeline = Pipeline(engine)
    with pytest.raises(EngineFailure, match="negative"):
        pipeline.begin(x(-1), 1)

    def raises() -> Arrays:
        raise ZeroDivisionError("in the kernel")

    batch = pipeline.begin(x(1), 1)
    assert batch.begun is not None
    monkeypatch.setattr(batch.begun, "wait", raises, raising=False)
    with pytest.raises(EngineFailure, match="ZeroDivisionError: in the kernel") as caught:
        batch.finish()
    assert caught.value.kind is FailureKind.ENGINE


def test_the_time_of_a_batch_that_waited_for_another_starts_at_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(pipeline_module.time, "perf_counter", lambda: now[0])
    pipeline = Pipeline(Doubler())
    first, second = pipeline.begin(x(1), 1), pipeline.begin(x(2), 1)
    now[0] = 103.0
    assert first.finish().compute_s == 3.0
    now[0] = 104.0
    assert second.finish().compute_s == 1.0
    third = pipeline.begin(x(3), 1)
    now[0] = 106.0
    assert third.finish().compute_s == 2.0
