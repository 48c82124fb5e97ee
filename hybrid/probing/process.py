"""The program of a probe process: load one engine as a model worker does, and run what it is told to.

Runs in the child (`python -m hybrid.probing.process`). It answers with times and bytes; what they mean is for others.
"""

import sys
import time
from typing import Final

from hybrid.engines.base import Arrays, EngineFailure
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
from hybrid.errors import HybridError
from hybrid.messages import FailureKind
from hybrid.probing import crowding, messages
from hybrid.probing.beside import beside_of
from hybrid.probing.feed import Feed
from hybrid.workers import child, wire
from hybrid.workers.resident import forget_peak, peak_bytes

_SHORTEST_S: Final = 500e-6  # batches below this are timed in groups: two clock readings and a tuple cost 0.5 us each
_LONG_S: Final = 0.3  # what is done once is lost in a batch that takes this long
_MIXED_SHARES: Final = (1.0, 0.6, 0.3, 0.8, 1.0)
_TEXT_LIMIT: Final = 1000
_SAMPLE: Final = 1000  # numbers, of all outputs together: an answer is one packet
_MOST_OUTPUTS: Final = 200
#: A CPU that slept wakes up late, by milliseconds on some hosts, and not at its full clock: it is awake so long before.
_AWAKE_S: Final = 0.002
_MOST_BATCHES: Final = 4096


class ProbeProcess:
    """One loaded model."""

    def __init__(self, start: messages.StartProbe) -> None:
        began = time.perf_counter()
        model = start.model
        self._engine = load_engine(model, start.engine)
        self._pipeline = Pipeline(self._engine, model.postprocess)
        load_s = time.perf_counter() - began
        self._tolerance = model.batching.tolerance
        self._feed = Feed(model, self._pipeline.signature, start.length)
        fixed = self._pipeline.max_rows
        self._feed.settle(self._pipeline.run, fixed or 1)
        self._warmed: tuple[int, Arrays] = 0, {}
        self._warm_s = 0.0
        self.loaded = messages.Loaded(load_s, self._feed.variable, self._feed.length, fixed)

    def answer(self, command: messages.Command) -> messages.Answer:
        """Do what the command says; what the engine refuses is an answer too."""
        try:
            if isinstance(command, messages.Check):
                return self._check()
            if isinstance(command, messages.Warm):
                return self._warm(command.rows)
            if isinstance(command, messages.Peak):
                return self._peak(command.rows)
            assert isinstance(command, messages.Time)
            return self._time(command)
        except (EngineFailure, MemoryError) as error:
            return failed(error)

    def _check(self) -> messages.Checked:
        fault = self._pipeline.check_batchable(self._tolerance, self._feed.length) or ""
        outputs = self._pipeline.run(self._feed.rows(1), 1)
        numbers = {name: array for name, array in outputs.items() if array.dtype.kind in "biuf"}
        names = sorted(numbers)[:_MOST_OUTPUTS]  # sorted: engines need not agree on an order
        each = _SAMPLE // max(1, len(names))
        sample = {name: tuple(numbers[name].ravel()[:each].astype(float).tolist()) for name in names}
        beside = beside_of(self._feed, self._pipeline.signature, outputs)
        return messages.Checked(fault[:_TEXT_LIMIT], sample, beside)

    def _warm(self, rows: int) -> messages.Warmed:
        self._warmed = rows, self._feed.rows(rows)
        for _ in range(2):
            began = time.monotonic()
            self._pipeline.run(self._warmed[1], rows)
            self._warm_s = time.monotonic() - began
            if self._warm_s > _LONG_S:
                break
        return messages.Warmed(self._warm_s)

    def _time(self, command: messages.Time) -> messages.Timed:
        rows, run = command.rows, self._pipeline.run
        # Made before: many rows of large tensors take longer than the others wait.
        inputs = self._warmed[1] if self._warmed[0] == rows else self._feed.rows(rows)
        group = self._group(inputs, rows)
        batches: list[tuple[float, float]] = []
        time.sleep(max(0.0, command.begin_at - _AWAKE_S - time.monotonic()))
        waited_s = crowding.waited_s()
        while time.monotonic() < command.begin_at:
            pass
        began = time.monotonic()
        while began < command.end_at:
            for _ in range(group):
                run(inputs, rows)
            ended = time.monotonic()
            batches.append((began, ended))
            began = ended
            if len(batches) == _MOST_BATCHES:  # an answer is one packet
                batches = [(one[0], two[1]) for one, two in zip(batches[::2], batches[1::2], strict=True)]
                group *= 2
                began = time.monotonic()
        return messages.Timed(tuple(batches), group, crowding.waited_s() - waited_s)

    def _group(self, inputs: Arrays, rows: int) -> int:
        """How many batches take long enough to be timed together; 1 where one does."""
        group = 1
        taken_s = self._warm_s
        while taken_s < _SHORTEST_S:
            group *= 2
            began = time.monotonic()
            for _ in range(group):
                self._pipeline.run(inputs, rows)
            taken_s = time.monotonic() - began
        return group

    def _peak(self, rows: int) -> messages.Peaked:
        # A server runs batches of all sizes, and an allocator may find no place for the largest between smaller ones.
        mixed = [self._feed.rows(max(1, int(share * rows))) for share in _MIXED_SHARES]
        forget_peak()
        for inputs in mixed:
            self._pipeline.run(inputs, len(next(iter(inputs.values()))))
        facts = self._engine.memory()
        return messages.Peaked((peak_bytes() or child.rss_bytes()) if facts.reserved is None else facts.reserved)


def failed(error: BaseException) -> messages.Failed:
    """What an exception is called on the wire."""
    memory = isinstance(error, MemoryError) or (isinstance(error, EngineFailure) and error.kind is FailureKind.MEMORY)
    return messages.Failed((str(error) or type(error).__name__)[:_TEXT_LIMIT], memory)


def main() -> None:
    """Answer commands until told to leave, or until nobody listens any more."""
    sock = child.enter()
    try:
        start = messages.decode_start(sys.stdin.buffer.read())
        child.pin(start.cores)
        try:
            probe = ProbeProcess(start)
        except (HybridError, EngineFailure, MemoryError) as error:
            sock.send(messages.encode(failed(error)))
            return
        sock.send(messages.encode(probe.loaded))
        while True:
            command = messages.decode_command(wire.receive(sock))
            if isinstance(command, messages.Leave):
                return
            sock.send(messages.encode(probe.answer(command)))
    except (wire.PeerGone, ConnectionError):
        return


if __name__ == "__main__":
    main()
