"""The program of a model worker: load one engine, warm it, execute batches from the arena.

Runs in the child (`python -m hybrid.workers.model_worker`). Knows no queue and no client; every error of a batch
becomes an event, and only a broken engine ends the process.
"""

import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from hybrid.engines.base import EngineFailure
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
from hybrid.errors import HybridError
from hybrid.messages import FailureKind
from hybrid.workers import child, wire
from hybrid.workers.arena import Slab, read_array, write_arrays

log = logging.getLogger("hybrid.worker")


class ModelWorker:
    """One loaded model and its slabs."""

    def __init__(self, start: wire.StartWorker) -> None:
        began = time.perf_counter()
        self._slots = [(Slab(slabs.inputs), Slab(slabs.outputs)) for slabs in start.slots]
        self._engine = load_engine(start.model, start.engine)
        self._pipeline = Pipeline(self._engine, start.model.postprocess, start.static_rows)
        self._types = {spec.name: spec.datatype for spec in self._pipeline.signature.outputs}
        self.ready = self._warm(start, began)

    def allocated_bytes(self) -> int | None:
        """Return what the engine says it has allocated."""
        return self._engine.memory().allocated

    def run(self, command: wire.Run) -> wire.Event:
        """Execute one batch; the outputs lie in the slot's output slab when this returns."""
        began = time.perf_counter()
        inputs_slab, outputs_slab = self._slots[command.slot]
        outputs_slab.release()  # the server has copied what was in it, or this slot would not be in use again
        try:
            data = inputs_slab.view(command.mapped)
            inputs = {block.name: read_array(data, block) for block in command.blocks}
            mapped = time.perf_counter()
            outputs, compute_s, post_s = self._pipeline.run_timed(inputs, command.rows)
            computed = time.perf_counter()
            blocks = write_arrays(outputs_slab, self._typed(outputs))
        except EngineFailure as failure:
            return wire.RunFailed(command.batch_id, failure.kind.value, failure.text[:4000])
        except MemoryError as error:
            return wire.RunFailed(command.batch_id, FailureKind.MEMORY.value, str(error) or "out of memory")
        copy_s = mapped - began + time.perf_counter() - computed
        return wire.Ran(command.batch_id, outputs_slab.size, blocks, copy_s, compute_s, post_s)

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
        warm: list[tuple[int, float]] = []
        for rows in dict.fromkeys((1, top)):
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


def main() -> None:
    """Serve until told to stop."""
    sock = child.enter()
    start = wire.decode_command(wire.receive(sock))
    child.pin(start.cores)
    # Beating starts before loading: a model that takes minutes to load is alive, and its parent has a limit of its own.
    worker: list[ModelWorker] = []
    child.start_beating(sock, lambda: worker[0].allocated_bytes() if worker else None)
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
    wire.send(sock, worker[0].ready)
    child.serve(sock, worker[0].run)


if __name__ == "__main__":
    main()
