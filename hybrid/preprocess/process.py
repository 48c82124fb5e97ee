"""The program of a preprocess process: transform the items of one task after the other.

Runs in the child (`python -m hybrid.preprocess.process`). Knows no queue, no client and no time limit: a process that
takes too long is ended from outside, which is the only way to stop a decoder.
"""

import logging
import time
from collections.abc import Callable

from hybrid.engines.base import MemoryFacts
from hybrid.errors import BadRequest, HybridError, StartupError
from hybrid.preprocess.base import Preprocessor, Row
from hybrid.preprocess.build import build
from hybrid.preprocess.job import Refused
from hybrid.preprocess.transfer import pack_rows, unpack_items
from hybrid.workers import child, wire
from hybrid.workers.arena import Slab

log = logging.getLogger("hybrid.preprocess")


class TransformProcess:
    """One preprocess step and its slabs."""

    def __init__(self, start: wire.StartPreprocess) -> None:
        slot = start.slots[0]
        self._inputs, self._outputs = Slab(slot.inputs), Slab(slot.outputs)
        step = build(start.settings, start.signature)
        if step is None:
            raise StartupError("preprocess: neither `text` nor `image` is set")
        self._step: Preprocessor = step

    def transform(self, command: wire.Transform) -> wire.Event:
        """Transform the items of one task; each has its own outcome."""
        began = time.perf_counter()
        work = self._step.cheap_row if command.cheap else self._step.row
        rows = [_outcome(work, item) for item in unpack_items(command, self._inputs)]
        try:
            return pack_rows(command.job_id, rows, self._outputs, time.perf_counter() - began)
        except MemoryError as error:
            rows = [Refused(str(error), ours=True)] * len(rows)
            return pack_rows(command.job_id, rows, self._outputs, time.perf_counter() - began)


def main() -> None:
    """Serve until told to stop."""
    sock = child.enter()
    start = wire.decode_command(wire.receive(sock))
    child.start_beating(sock, MemoryFacts)
    began = time.perf_counter()
    try:
        process = TransformProcess(start)
    except (HybridError, MemoryError) as error:
        log.error("cannot start: %s", error)
        wire.send(sock, wire.StartFailed(str(error)[:4000]))
        return
    wire.send(sock, wire.Ready(start.signature, load_s=time.perf_counter() - began))
    child.serve(sock, process.transform)


def _outcome(work: Callable[[bytes], Row], item: bytes) -> Row | Refused:
    try:
        return work(item)
    except BadRequest as error:
        return Refused(str(error))
    except MemoryError:
        return Refused("not enough memory to preprocess it", ours=True)
    except Exception as error:
        # A fault of the step and not of its input. The process is as good as before, so only the row fails.
        log.exception("cannot transform an item of %d bytes", len(item))
        return Refused(f"preprocessing failed: {type(error).__name__}", ours=True)


if __name__ == "__main__":
    main()
