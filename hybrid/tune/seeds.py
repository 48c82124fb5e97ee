"""Which settings there are, and which are worth a load test. Pure.

Owns the space, the few probes that describe it, and the prediction from them: batch times are fitted by a line per
engine and shape (instances x threads), and the planner's queue gives the goodput of each setting on that line. A wrong
prediction costs trials, not the result: every shape that was probed sends its best setting into the tests.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from hybrid.load.bottleneck import BatchTime, Line, fit
from hybrid.planner.measures import Setting
from hybrid.planner.queueing import Server, goodput_rps
from hybrid.tune.values import Candidate, Load, Terms

BATCHES: Final = (1, 2, 4, 8, 16, 32)
DEVICE_BATCHES: Final = (1, 4, 8, 16, 32, 64, 128, 256)
PROBE_ROWS: Final = 8
MOST: Final = 10
#: Share of the time of a single row that a batch may wait for company: beyond half of it the wait is never earned back.
WAIT_SHARE: Final = 0.5
_PROBE_SHARE: Final = 0.6  # of a window
_ALIKE: Final = 0.03  # predictions that differ by less say nothing; the smaller batch is taken then
_SHORTEST_WAIT_MS: Final = 0.1

Shape = tuple[str, int, int]


class Bounds(Struct, frozen=True):
    """What may be tried: the engines that take the model, the CPUs it may use, the largest batch that memory holds.

    The first of the engines is the first choice for the model, whichever it is planned to run with.
    `own_device` when the model computes elsewhere than on these CPUs, with `instances` at most there.
    """

    engines: tuple[str, ...]
    cpus: int
    largest: int = BATCHES[-1]
    device: str = "cpu"
    own_device: bool = False
    instances: int = 1

    @property
    def batches(self) -> tuple[int, ...]:
        """Batch sizes from 1 to the largest."""
        grid = DEVICE_BATCHES if self.own_device else BATCHES
        return (*(b for b in grid if b < self.largest), self.largest)


def shapes(bounds: Bounds) -> tuple[Shape, ...]:
    """Return every (engine, instances, threads): all CPUs shared out evenly, and one left idle.

    An idle CPU is what the front end and the preprocess processes run on; on small machines that may pay.
    """
    if bounds.own_device:
        found = [(n, 1) for n in range(1, bounds.instances + 1)]
    else:
        cpus = bounds.cpus
        found = [(n, cpus // n) for n in range(1, cpus + 1) if cpus % n == 0]
        if cpus > 1 and (cpus - 1, 1) not in found:
            found.append((cpus - 1, 1))
    return tuple((engine, instances, threads) for engine in bounds.engines for instances, threads in found)


def default_setting(bounds: Bounds) -> Setting:
    """Return what a framework does by itself: the engine of first choice, one instance with a thread per CPU.

    Its batches are of up to 8 rows, as with a server that is left at its own settings.
    """
    threads = 1 if bounds.own_device else bounds.cpus
    return Setting(bounds.engines[0], 1, threads, min(8, bounds.largest), 0.0, bounds.device)


def space(bounds: Bounds, single_s: float) -> tuple[Setting, ...]:
    """Return every setting; waiting is tried where a batch may be larger than a row."""
    wait_ms = round(1000.0 * WAIT_SHARE * single_s, 2)
    return tuple(
        Setting(engine, instances, threads, batch, wait, bounds.device)
        for engine, instances, threads in shapes(bounds)
        for batch in bounds.batches
        for wait in ((0.0, wait_ms) if batch > 1 and wait_ms >= _SHORTEST_WAIT_MS else (0.0,))
    )


def probes(bounds: Bounds, window_s: float) -> tuple[tuple[Setting, Load], ...]:
    """Return the measurements that the prediction is made of: one row and a few rows at once, on every worker.

    As many clients as instances, so that what workers take from each other is in the times.
    """
    rows = min(PROBE_ROWS, bounds.largest)
    found = []
    for engine, instances, threads in shapes(bounds):
        setting = Setting(engine, instances, threads, rows, 0.0, bounds.device)
        found += [(setting, Load(_PROBE_SHARE * window_s, clients=instances, rows=n)) for n in sorted({1, rows})]
    return tuple(found)


def rank(settings: Sequence[Setting], times: Mapping[Shape, Sequence[BatchTime]], terms: Terms) -> list[Candidate]:
    """Return the settings whose shape has times, best prediction first; of equal ones the simplest comes first."""
    lines = {shape: line for shape, points in times.items() if (line := _line(points)) is not None}
    known = [s for s in settings if shape_of(s) in lines]
    servers = [_server(s, lines[shape_of(s)]) for s in known]
    if not servers:
        return []
    if terms.objective == "latency" and terms.slo_s is not None:
        rates = [float(rate) for rate in goodput_rps(servers, terms.slo_s)]
    else:
        rates = [server.instances * len(server.batch_s) / float(server.batch_s[-1]) for server in servers]
    found = [Candidate(setting, rate) for setting, rate in zip(known, rates, strict=True)]
    return sorted(found, key=lambda c: (-_step(c.predicted_rps), c.setting.max_wait_ms, c.setting.max_batch, c.setting))


def pick(ranked: Sequence[Candidate], default: Setting, most: int = MOST) -> tuple[Candidate, ...]:
    """Return the settings to test: the default, the best of each shape, one that waits, and then by rank.

    The very best comes with the next smaller batch: what a lone request waits for looks like a cost of each batch, so
    that predictions favour large ones, and one that gains nothing can only be told beside a smaller one.

    They come grouped by shape, because batch and wait of a running server change at no cost.
    """
    best: dict[Shape, Candidate] = {}
    for candidate in ranked:
        best.setdefault(shape_of(candidate.setting), candidate)
    waiting = [c for c in ranked if c.setting.max_wait_ms]
    plain = [c for c in ranked if not c.setting.max_wait_ms]
    order = [c for c in ranked if c.setting == default] or [Candidate(default, 0.0)]
    order += [*best.values(), *plain[:1], *_next_smaller(plain), *waiting[:1], *plain]
    chosen = list(dict.fromkeys(order))[: max(2, most)]
    return tuple(sorted(chosen, key=lambda c: c.setting))


def _next_smaller(plain: Sequence[Candidate]) -> list[Candidate]:
    """The best with its next smaller batch, if it has one."""
    if not plain:
        return []
    first = plain[0].setting
    alike = [c for c in plain if shape_of(c.setting) == shape_of(first) and c.setting.max_batch < first.max_batch]
    return sorted(alike, key=lambda c: -c.setting.max_batch)[:1]


def shape_of(setting: Setting) -> Shape:
    """Return what a batch time depends on beside its rows."""
    return setting.engine, setting.instances, setting.threads


def _line(points: Sequence[BatchTime]) -> Line | None:
    if not points:
        return None
    return fit(points) or Line(0.0, max(point.seconds / point.rows for point in points))


def _server(setting: Setting, line: Line) -> Server:
    rows = np.arange(1, setting.max_batch + 1, dtype=np.float64)
    return Server(line.fixed_s + line.per_row_s * rows, setting.instances, setting.max_wait_ms / 1000.0)


def _step(rate: float) -> int:
    """Number the predictions so that those within 3 % are mostly equal."""
    return round(float(np.log(max(rate, 1e-9))) / _ALIKE)
