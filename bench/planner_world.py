"""Random simulated devices for the planner: what a batch takes on each, exactly and as a measurement with noise.

None has the form that the planner's model of latency assumes. CPUs of 4 to 128 cores differ in how far threads help,
what they cost to keep in step, how much co-running slows everybody down, in memory bandwidth, caches and sockets; GPUs
in their fixed part, the rows below which time is flat, the size beyond which it bends upwards, overlap and memory.
"""

import math
import random
from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from hybrid.planner.measures import EngineProfile, MemoryLine, Probe, Timing
from hybrid.planner.queueing import Floats, Server, goodput_rps, rough_goodput_rps
from hybrid.planner.space import SearchQuestion, usable_bytes

ENGINE = "simulated-device"
_CORES = (4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96, 112, 128)
_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
_FEWEST_CONFIGURATIONS = 720
_GIB = 2**30
#: Samples of arrivals that the planner does not use.
TRUTH = (101, 102, 103, 104, 105, 106)
_FINALISTS = 24
_SURE = 1.6  # how far the rough estimate may be below the truth; it is mostly above


class Grid(Struct, frozen=True):
    """The exhaustive sweep: (instances, threads) pairs and largest batches."""

    pairs: tuple[tuple[int, int], ...]
    rows: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of settings."""
        return len(self.pairs) * len(self.rows)


class Device:
    """Base of both kinds: noise on top of exact times, and the question that the planner is asked."""

    cores = 1
    kind = "cpu"

    def __init__(self, chance: random.Random) -> None:
        self.noise = chance.uniform(0.03, 0.08)
        self.slo_times = math.exp(chance.uniform(math.log(3), math.log(40)))
        self._noise = random.Random(chance.random())
        self.memory: MemoryLine | None = None
        self.memory_bytes = 1 << 50

    def seconds(self, instances: int, threads: int, rows: Floats) -> Floats:
        """Exact times of batches of `rows` with `instances` of `threads` busy."""
        raise NotImplementedError

    def grid(self) -> Grid:
        """What the exhaustive sweep covers: at least 720 configurations."""
        raise NotImplementedError

    def one(self, instances: int, threads: int, rows: int) -> float:
        """One exact time."""
        return float(self.seconds(instances, threads, np.array([float(rows)]))[0])

    def time(self, probes: Sequence[Probe]) -> tuple[Timing, ...]:
        """Measure with noise, as `planner.measures.Measurer` does."""
        return tuple(
            Timing(
                probe, self.one(probe.instances, probe.threads, probe.rows) * self._noise.lognormvariate(0, self.noise)
            )
            for probe in probes
        )

    def server(self, instances: int, threads: int, max_batch: int) -> Server:
        """The queue's view of a setting, exact."""
        return Server(self.seconds(instances, threads, np.arange(1.0, max_batch + 1)), instances)

    def slo_s(self) -> float:
        """The objective: some times the fastest single row."""
        return self.slo_times * min(self.one(1, threads, 1) for count, threads in self.grid().pairs if count == 1)

    def question(self) -> SearchQuestion:
        """What the planner is asked."""
        engine = EngineProfile(ENGINE, "1", device=self.kind, memory=self.memory)
        return SearchQuestion((engine,), self.cores, self.memory_bytes, slo_s=self.slo_s())


class Cpu(Device):
    """Cores that share caches and memory."""

    def __init__(self, chance: random.Random, cores: int = 0) -> None:
        super().__init__(chance)
        self.cores = cores or chance.choice(_CORES)
        self.row_s = math.exp(chance.uniform(math.log(3e-4), math.log(4e-2)))
        self.fixed_s = self.row_s * math.exp(chance.uniform(math.log(0.05), math.log(2.0)))
        self.weights_s = self.row_s * math.exp(chance.uniform(math.log(0.02), math.log(1.5)))  # reading them, one core
        self.serial_fixed = chance.uniform(0.2, 0.9)
        self.serial_row = math.exp(chance.uniform(math.log(0.004), math.log(0.12)))
        self.step_s = self.row_s * math.exp(chance.uniform(math.log(0.002), math.log(0.06)))
        self.slow = chance.uniform(1.0, 2.5)
        self.bend = chance.uniform(0.7, 2.5)
        self.saturated = max(1.0, self.cores * chance.uniform(0.1, 0.8))  # cores that use all bandwidth
        self.socket = self.cores // 2 if self.cores >= 32 else self.cores
        self.across = chance.uniform(1.0, 1.35)
        self.cache_rows = math.exp(chance.uniform(math.log(4), math.log(200)))
        self.spill = chance.uniform(0.0, 0.5)

    def seconds(self, instances: int, threads: int, rows: Floats) -> Floats:
        """Fixed part, work and reading the weights, of which the longer counts; everything slower the more are busy."""
        busy = instances * threads
        kappa = 1.0 + (self.slow - 1.0) * ((busy - 1) / max(1, self.cores - 1)) ** self.bend
        fixed = self.fixed_s * (self.serial_fixed + (1 - self.serial_fixed) / threads)
        spill = 1.0 + self.spill * np.maximum(0.0, 1.0 - self.cache_rows / rows)
        # Few rows cannot occupy many threads: what is parallel in one row ends somewhere.
        useful = np.minimum(threads, 1.0 + (threads - 1) * (1.0 - np.exp(-rows / 1.5)) ** 0.3)
        work = self.row_s * rows * spill * (self.serial_row + (1 - self.serial_row) / useful)
        reading = self.weights_s / min(threads, self.saturated) * max(1.0, busy / self.saturated)
        step = self.step_s * math.log2(threads) * (self.across if threads > self.socket else 1.0)
        across = self.across if threads > self.socket else 1.0
        return np.asarray((fixed + np.maximum(work, reading) * across) * kappa + step, dtype=np.float64)

    def grid(self) -> Grid:
        """All counts of workers and threads; every batch where these are few."""
        counts = [count for count in _COUNTS if count <= self.cores]
        pairs = tuple((i, t) for i in counts for t in counts if i * t <= self.cores)
        rows = _ROWS if len(pairs) * len(_ROWS) >= _FEWEST_CONFIGURATIONS else tuple(range(1, 129))
        return Grid(pairs, rows)


class Gpu(Device):
    """One device with memory of its own; instances share it."""

    kind = "cuda"

    def __init__(self, chance: random.Random) -> None:
        super().__init__(chance)
        self.fixed_s = math.exp(chance.uniform(math.log(1e-3), math.log(1.2e-2)))
        self.row_s = math.exp(chance.uniform(math.log(5e-5), math.log(2e-3)))
        self.flat_rows = math.exp(chance.uniform(0.0, math.log(24)))
        self.knee_rows = math.exp(chance.uniform(math.log(24), math.log(400)))
        self.bend = chance.uniform(0.0, 0.6)
        self.slow = chance.uniform(1.0, 2.5)
        self.host_share = chance.uniform(0.1, 0.7)  # of the fixed part, during which the device is idle
        total = chance.choice((8, 16, 24, 48, 80)) * _GIB
        self.memory_bytes = total
        self.memory = MemoryLine(int(total * chance.uniform(0.02, 0.3)), int(total / chance.uniform(30, 800)))

    def seconds(self, instances: int, threads: int, rows: Floats) -> Floats:
        """Flat, then rising, then rising faster; with several instances what the device itself does takes turns."""
        host, launch = self.host_share * self.fixed_s, (1 - self.host_share) * self.fixed_s
        compute = self.row_s * np.maximum(self.flat_rows, rows)
        compute = launch + compute * np.maximum(1.0, rows / self.knee_rows) ** self.bend
        alone = host + compute
        if instances == 1:
            return np.asarray(alone, dtype=np.float64)
        # Others fill the time that one leaves the device idle, at a price: they evict each other's data.
        contention = 1.0 + (self.slow - 1.0) * 0.15 * (instances - 1)
        return np.asarray(np.maximum(alone, instances * compute * contention), dtype=np.float64)

    def grid(self) -> Grid:
        """Up to four instances, nearly every batch."""
        assert self.memory is not None
        pairs = tuple((count, 1) for count in range(1, 5))
        return Grid(pairs, (*range(1, 161), *range(164, 513, 8)))

    def fits(self, instances: int, rows: int) -> bool:
        """Whether memory holds it, with the planner's headroom."""
        assert self.memory is not None
        each = self.memory.base_bytes + rows * self.memory.per_row_bytes
        return each <= usable_bytes(self.memory_bytes / instances, self.memory.base_bytes)


def devices(seed: int, count: int) -> list[Device]:
    """`count` devices, two thirds of them CPUs."""
    chance = random.Random(seed)
    return [Gpu(chance) if n % 3 == 2 else Cpu(chance) for n in range(count)]


def best_of_sweep(device: Device, slo_s: float) -> tuple[float, tuple[int, int, int]]:
    """The best goodput of the whole grid, and where it is.

    Settings that the rough estimate puts far below the best found are not replayed: it is rarely too low.
    """
    settings = []
    grid = device.grid()
    for instances, threads in grid.pairs:
        fitting = [b for b in grid.rows if not isinstance(device, Gpu) or device.fits(instances, b)] or [1]
        whole = device.seconds(instances, threads, np.arange(1.0, fitting[-1] + 1))
        for size in fitting:
            server = Server(whole[:size], instances)
            settings.append((rough_goodput_rps(server, slo_s), (instances, threads, size), server))
    settings.sort(key=lambda one: -one[0])
    found: list[tuple[float, int]] = []
    for start in range(0, len(settings), 64):
        part = settings[start : start + 64]
        if found and part[0][0] * _SURE < max(found)[0]:
            break
        values = goodput_rps([server for _, _, server in part], slo_s, samples=TRUTH[:1])
        found += [(float(value), start + n) for n, value in enumerate(values)]
    # The best by one sample is the luckiest in it, too; several samples decide among the best.
    finalists = [settings[n] for _, n in sorted(found, reverse=True)[:_FINALISTS]]
    values = goodput_rps([server for _, _, server in finalists], slo_s, samples=TRUTH)
    top = int(values.argmax())
    return float(values[top]), finalists[top][1]
