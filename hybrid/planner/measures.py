"""What is measured of a model on this machine, as values: questions to a measurer, its answers, and what is kept.

The search decides in pure code what to ask; whoever implements `Measurer` runs it, on real processes or on a simulated
device. Nothing here measures.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Final, Protocol

from msgspec import Struct

#: Threads that wake each other wait a few percent of the time, whoever else is there.
_CROWDED: Final = 0.10


class Setting(Struct, frozen=True, order=True):
    """One way to run a model; the space that the planner searches. Cores are handed out later."""

    engine: str
    instances: int
    threads: int
    max_batch: int
    max_wait_ms: float = 0.0
    device: str = "cpu"


class Probe(Struct, frozen=True, order=True):
    """A question: how long does a batch of `rows` take while `instances` of `threads` each run such batches at once?"""

    engine: str
    instances: int
    threads: int
    rows: int
    device: str = "cpu"


class Timing(Struct, frozen=True):
    """The answer: median time of one batch of one instance, in seconds.

    `spread` is (p90 - p10) / median over `runs` batches of all instances. `failure` says why there is no time, as when
    memory does not suffice; `seconds` is infinite then. `waited` is the share of the time in which threads waited for
    CPUs that other processes used.
    """

    probe: Probe
    seconds: float
    spread: float = 0.0
    runs: int = 1
    failure: str = ""
    waited: float = 0.0

    @property
    def rows_per_s(self) -> float:
        """Rows per second of all instances together."""
        return self.probe.instances * self.probe.rows / self.seconds


class Measurer(Protocol):
    """Runs probes. Those of one call that share engine, instances and threads are run by the same processes."""

    def time(self, probes: Sequence[Probe]) -> tuple[Timing, ...]:
        """Return one answer per probe, in order."""


class MemoryPoint(Struct, frozen=True):
    """Peak memory of one instance in a process of its own that has run batches of `rows` only, in bytes."""

    rows: int
    peak_bytes: int


class MemoryLine(Struct, frozen=True):
    """Peak memory of an instance: `base_bytes` (weights and overhead) plus `per_row_bytes` for each row of a batch."""

    base_bytes: int
    per_row_bytes: int
    points: tuple[MemoryPoint, ...] = ()


class Beside(Struct, frozen=True):
    """What requests cost beside the model, in seconds: `cpu_s` of CPU time for each row, outside of the workers.

    `loop_s` is the part of the server's event loop, which has one CPU at most, where it is busy all the time. `turn_s`
    is how long a worker waits between two batches, however many rows they have, for itself and for the server.
    """

    cpu_s: float = 0.0
    loop_s: float = 0.0
    turn_s: float = 0.0


class EngineProfile(Struct, frozen=True):
    """One engine with one model on one device.

    `batching_fault` is "" where rows of a batch give what they give alone, else why they must not share one.
    `fixed_rows` is the row count that the model is fixed to. `variable` says that inputs have a variable length.
    `beside` was measured with this engine, and is much the same with all.
    """

    engine: str
    engine_version: str
    device: str = "cpu"
    timings: tuple[Timing, ...] = ()
    memory: MemoryLine | None = None
    batching_fault: str = ""
    fixed_rows: int | None = None
    variable: bool = False
    load_s: float = 0.0
    beside: Beside = Beside()


class ModelProfile(Struct, frozen=True):
    """All that was measured of a model on this machine; kept in the cache under `machine` and `digest`.

    `length` is the length of variable dimensions that it was measured at (tokens for text). `missing` are engines that
    would take the model and are not installed now, whatever was the case when it was measured.
    """

    model: str
    machine: str
    digest: str
    length: int
    engines: tuple[EngineProfile, ...] = ()
    took_s: float = 0.0
    measured_at: str = ""
    missing: tuple[str, ...] = ()

    @property
    def measured_when(self) -> str:
        """Day and minute for a reader, in the time zone in which it was measured; empty where nobody noted it."""
        return self.measured_at[:16].replace("T", " ")

    @property
    def crowded_share(self) -> float:
        """Mean share of the time in which others used the CPUs; 0 while it is too little to doubt the times."""
        shares = [timing.waited for engine in self.engines for timing in engine.timings if not timing.failure]
        share = fmean(shares) if shares else 0.0
        return share if share >= _CROWDED else 0.0


class CoreRate(Struct, frozen=True):
    """What `cores` CPUs do together: FLOP/s of single-precision matrix products, bytes/s read and written by copying.

    Per second of CPU time: what neighbours take away is in `MachineSpeed.spin_share`.
    """

    cores: int
    matrix_flops: float
    copy_bytes_per_s: float


class SpinRate(Struct, frozen=True):
    """CPU seconds per second that `busy` processes, busy all the time, got together."""

    busy: int
    received_cpus: float


class RooflineRun(Struct, frozen=True):
    """One number of cores to measure: the CPU of each thread, and the bytes that each copies at a time."""

    cpus: tuple[int, ...]
    copy_bytes: int


class RooflineJob(Struct, frozen=True):
    """What the measuring process is asked: `window_s` seconds for each part of each run."""

    runs: tuple[RooflineRun, ...]
    window_s: float


class MachineSpeed(Struct, frozen=True):
    """The roofline of this machine, at the moment of measuring.

    `spin_share` is the part of a CPU that each of as many busy processes as there are usable CPUs really got, 0 to 1
    (0 when not measured). `note` says what is missing or doubtful.
    """

    spin_share: float
    rates: tuple[CoreRate, ...] = ()
    spins: tuple[SpinRate, ...] = ()
    note: str = ""
