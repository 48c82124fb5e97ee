"""The program of a model worker: load one engine, warm it, execute batches from the arena.

Runs in the child (`python -m hybrid.workers.model_worker`). Knows no queue and no client; every error of a batch
becomes an event, and only a broken engine ends the process.
"""

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from hybrid.engines.base import EngineFailure, MemoryFacts
from hybrid.engines.pipeline import Batch, Pipeline
from hybrid.engines.registry import load_engine
from hybrid.errors import HybridError
from hybrid.messages import FailureKind
from hybrid.workers import child, overlap, wire
from hybrid.workers.arena import Slab, read_array, write_arrays
from hybrid.workers.warming import memory_now, warm_safely

log = logging.getLogger("hybrid.worker")


class Started(NamedTuple):
    """A batch that computes, and how long it took to map its inputs."""

    command: wire.Run
    mapped_s: float
    batch: Batch

    def done(self) -> bool:
        """Whether finishing it would not wait for the device."""
        return self.batch.done()


class ModelWorker:
    """One loaded model and its slabs."""

    def __init__(self, start: wire.StartWorker) -> None:
        began = time.perf_counter()
        self._slots = [(Slab(slabs.inputs), Slab(slabs.outputs)) for slabs in start.slots]
        self._engine = load_engine(start.model, start.engine)
        self._pipeline = Pipeline(self._engine, start.model.postprocess, start.static_rows)
        self._types = {spec.name: spec.datatype for spec in self._pipeline.signature.outputs}
        self.ready = self._warm(start, began)

    def memory(self) -> MemoryFacts:
        """Return what the engine knows of its own memory."""
        return self._engine.memory()

    @property
    def overlaps(self) -> bool:
        """Whether `begin` may be called again before the batch of the last call is finished."""
        return self._pipeline.overlaps

    def run(self, command: wire.Run) -> wire.Event:
        """Execute one batch; the outputs lie in the slot's output slab when this returns."""
        started = self.begin(command)
        return self.finish(started) if isinstance(started, Started) else started

    def begin(self, command: wire.Run) -> "Started | wire.Event":
        """Start one batch, or say why it could not."""
        began = time.perf_counter()
        inputs_slab, outputs_slab = self._slots[command.slot]
        outputs_slab.release()  # the server has copied what was in it, or this slot would not be in use again
        try:
            data = inputs_slab.view(command.mapped)
            inputs = {block.name: read_array(data, block) for block in command.blocks}
            mapped_s = time.perf_counter() - began
            return Started(command, mapped_s, self._pipeline.begin(inputs, command.rows))
        except (EngineFailure, MemoryError) as error:
            return _failed(command, error)

    def finish(self, started: "Started") -> wire.Event:
        """Wait for a batch and put its outputs into the slot's output slab."""
        command = started.command
        slab = self._slots[command.slot][1]
        try:
            outputs, compute_s, post_s = started.batch.finish()
            computed = time.perf_counter()
            blocks = write_arrays(slab, self._typed(outputs))
        except (EngineFailure, MemoryError) as error:
            return _failed(command, error)
        copy_s = started.mapped_s + time.perf_counter() - computed
        return wire.Ran(command.batch_id, slab.size, blocks, copy_s, compute_s, post_s)

    def _typed(self, outputs: Mapping[str, np.ndarray[Any, Any]]) -> list[tuple[str, str, np.ndarray[Any, Any]]]:
        return [(name, self._types[name], array) for name, array in outputs.items()]

    def _warm(self, start: wire.StartWorker, began: float) -> wire.Ready:
        """Run the sizes that will be served, so that the first client pays for no allocation and no compilation."""
        pipeline = self._pipeline
        settings = start.model.batching
        reason = pipeline.check_batchable(settings.tolerance, start.warm_length) if start.max_batch > 1 else None
        if reason:
            pipeline.static_rows = 0  # rows that are filled in would influence the others too
        top = 1 if reason else min(start.max_batch, pipeline.max_rows or start.max_batch)
        if start.engine.device == "cpu" and not pipeline.static_rows:
            share = 1.0 / start.starting_n
            warm_safely(lambda rows: pipeline.warm(rows, start.warm_length), top, lambda: memory_now(share))
        warm: list[tuple[int, float]] = []
        # One row of a static batch costs what a full one does, and the check has run that shape already.
        for rows in (top,) if pipeline.static_rows else dict.fromkeys((1, top)):
            if not (pipeline.static_rows and top > 1):
                pipeline.warm(rows, start.warm_length)
            warm.append((rows, pipeline.warm(rows, start.warm_length)))
        return wire.Ready(
            signature=pipeline.signature,
            max_rows=self._engine.max_rows,
            unbatchable=reason,
            warm=tuple(warm),
            load_s=time.perf_counter() - began,
            rss_bytes=child.rss_bytes(),
        )


def _failed(command: wire.Run, error: EngineFailure | MemoryError) -> wire.Event:
    if isinstance(error, EngineFailure):
        return wire.RunFailed(command.batch_id, error.kind.value, error.text[:4000])
    return wire.RunFailed(command.batch_id, FailureKind.MEMORY.value, str(error) or "out of memory")


def main(warmed: Callable[[], None] = lambda: None) -> None:
    """Serve until told to stop. `warmed` is called when the worker is about to say that it is ready."""
    sock = child.enter()
    start = wire.decode_command(wire.receive(sock))
    child.pin(start.cores)
    # Beating starts before loading: a model that takes minutes to load is alive, and its parent has a limit of its own.
    worker: list[ModelWorker] = []
    child.start_beating(sock, lambda: worker[0].memory() if worker else MemoryFacts())
    try:
        worker.append(ModelWorker(start))
    except (HybridError, EngineFailure, MemoryError) as error:
        wire.send(sock, wire.StartFailed(str(error)[:4000]))
        return
    except Exception as error:
        # Not foreseen, so the traceback is worth a line of its own; the server still hears a reason and not a number.
        log.exception("cannot start")
        wire.send(sock, wire.StartFailed(f"{type(error).__name__}: {error}"[:4000]))
        return
    warmed()
    wire.send(sock, worker[0].ready)
    if worker[0].overlaps:
        overlap.serve(sock, worker[0])
    else:
        child.serve(sock, worker[0].run)


if __name__ == "__main__":
    main()
