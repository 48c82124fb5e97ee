"""A model of how long a batch takes, from a few measured times: seconds(instances, threads, rows). Pure.

Two layers. Below, a law with eight constants: a fixed part and a part per row, each of which threads speed up as far as
it is parallel; the reading of the weights, which a batch of few rows waits for; a price of keeping threads in step; and
a factor for what busy threads take from each other. Its constants have broad priors, so that one time gives a model
already. Above, what the law got wrong at the measured settings, spread to settings like them (a Gaussian process over
the logarithms). A table of solo times, as others use, knows neither of co-running nor of what lies between its cells.
Knows no queue, no objective and no engine.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from msgspec import Struct

from hybrid.planner.measures import Timing

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

#: Constants of the law: log of the fixed and the per-row seconds on one thread, logit of their parallel shares, log of
#: the price of each doubling of threads relative to one row's time, log of the slow-down with all CPUs busy by others,
#: log of its exponent, log of the time for reading the weights relative to one row's work.
_PRIOR: Final = np.array([0.0, 0.0, 2.0, 3.0, -4.5, -1.2, 0.4, -0.7])
_PRIOR_SPREAD: Final = np.array([1.6, 1.0, 1.5, 1.5, 1.2, 1.0, 0.35, 1.2])
_LAW_ERROR: Final = 0.08  # relative, of one time: noise and what the law does not know
_NOISE: Final = 0.05
#: What the law gets wrong is alike over some doublings of instances, threads and rows; and a part of it is a matter of
#: the very (instances, threads): how these fall on caches and sockets.
_RESIDUAL: Final = 0.12
_REACH: Final = np.array([2.0, 2.0, 2.5])
_OWN_RESIDUAL: Final = 0.04
_LEAST_DOUBT: Final = 0.01
_SAME: Final = 1e-9
_SATURATING_SHARE: Final = 0.4  # of the CPUs, which together use all of the memory's bandwidth
_CORNER: Final = 12.0  # how sharply the longer of two times takes over: a corner that is cut looks like cheap rows
_TURNS: Final = 40
_CURVE_POINTS: Final = 32


class LatencyModel(Struct, frozen=True):
    """A fitted model; made by `fit`. `cpus` are those of the share, on which the slow-down by others is scaled."""

    cpus: int
    constants: Floats
    places: Floats
    weights: Floats
    inverse: Floats
    timings: tuple[Timing, ...]

    def seconds(self, instances: int, threads: int, rows: int) -> float:
        """Time of one batch of `rows` while `instances` of `threads` each run such batches."""
        return float(self.times(np.array([instances]), np.array([threads]), np.array([rows]))[0])

    def times(self, instances: Floats, threads: Floats, rows: Floats) -> Floats:
        """The same for many settings at once, element by element."""
        law = _law(self.constants, self.cpus, instances, threads, rows)
        near = _likeness(_places(instances, threads, rows), self.places)
        return np.asarray(np.exp(law + near @ self.weights), dtype=np.float64)

    def doubts(self, instances: Floats, threads: Floats, rows: Floats) -> Floats:
        """Relative standard error of `times`: small beside a measured setting, larger away from all."""
        near = _likeness(_places(instances, threads, rows), self.places)
        explained = np.sum((near @ self.inverse) * near, axis=1)
        left = _RESIDUAL**2 + _OWN_RESIDUAL**2 - explained
        return np.asarray(np.sqrt(np.maximum(left, _LEAST_DOUBT**2)), dtype=np.float64)

    def curve(self, instances: int, threads: int, rows: int) -> Floats:
        """Times of batches of 1 to `rows` rows; never falling, because fewer rows can always be filled up."""
        return self.curves([(instances, threads)], rows)[0]

    def curves(self, pairs: Sequence[tuple[int, int]], rows: int) -> list[Floats]:
        """The same for many (instances, threads) at once."""
        grid = np.unique(np.round(np.geomspace(1, rows, min(rows, _CURVE_POINTS))))
        table = np.repeat(np.array(pairs, dtype=np.float64), len(grid), axis=0)
        times = self.times(table[:, 0], table[:, 1], np.tile(grid, len(pairs))).reshape(len(pairs), len(grid))
        full, rising = np.arange(1, rows + 1), np.maximum.accumulate(times, axis=1)
        return [np.asarray(np.interp(full, grid, one), dtype=np.float64) for one in rising]

    @property
    def fixed_s(self) -> float:
        """The part of a batch that does not depend on its rows, on one worker of one thread."""
        return float(np.exp(self.constants[0]))

    @property
    def per_row_s(self) -> float:
        """What each row adds, on one worker of one thread."""
        return float(np.exp(self.constants[1]))

    @property
    def slow_down(self) -> float:
        """Time with all CPUs busy by workers of one thread, over the time of one such worker alone."""
        return 1.0 + float(np.exp(self.constants[5])) if self.cpus > 1 else 1.0


def fit(timings: Sequence[Timing], cpus: int) -> LatencyModel:
    """Fit the times of one engine on one device. Times that failed are left out.

    Raises:
        ValueError: there is no time to fit.
    """
    good = tuple(one for one in timings if not one.failure and np.isfinite(one.seconds) and one.seconds > 0)
    if not good:
        raise ValueError("expected at least one measured time")
    table = np.array([(one.probe.instances, one.probe.threads, one.probe.rows) for one in good], dtype=np.float64)
    logs = np.log([one.seconds for one in good])
    constants = _constants(table, logs, cpus)
    places = _places(table[:, 0], table[:, 1], table[:, 2])
    residuals = logs - _law(constants, cpus, table[:, 0], table[:, 1], table[:, 2])
    inverse = np.asarray(np.linalg.inv(_likeness(places, places) + _NOISE**2 * np.eye(len(good))), dtype=np.float64)
    return LatencyModel(cpus, constants, places, inverse @ residuals, inverse, good)


def turning_point(rows: Sequence[int], seconds: Sequence[float]) -> float | None:
    """Rows from which on time grows with rows: the corner of a flat and a rising piece fitted to the times.

    Below it a device waits for weights and for its own overhead, so that more rows cost nothing. None with fewer than
    four different row counts, and where time rises from the first row on.
    """
    size, time = np.asarray(rows, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
    if len(np.unique(size)) < 4:
        return None
    best = (np.inf, 0.0)
    for corner in np.geomspace(size.min(), size.max(), 64)[:-1]:
        columns = np.stack((np.ones_like(size), np.maximum(size - corner, 0.0)), axis=1) / time[:, None]
        solution = np.linalg.lstsq(columns, np.ones_like(size), rcond=None)[0]
        error = float(np.sum((columns @ solution - 1.0) ** 2))
        best = min(best, (error, float(corner)))
    return None if best[1] <= 1.05 * size.min() else best[1]


def _law(constants: Floats, cpus: int, instances: Floats, threads: Floats, rows: Floats) -> Floats:
    """Logarithm of the time; several rows of constants give a row of times each."""
    fixed, per_row, step, slow, bend, reading = (np.exp(constants[..., place, None]) for place in (0, 1, 4, 5, 6, 7))
    parallel = 1.0 / (1.0 + np.exp(-constants[..., 2:4]))
    spread = [1.0 - share + share / threads for share in (parallel[..., :1], parallel[..., 1:])]
    # The weights are read once per batch, by its threads or as fast as all instances get them, whichever is slower.
    read = reading * np.maximum(1.0 / threads, instances / max(1.0, _SATURATING_SHARE * cpus))
    longer = ((rows * spread[1]) ** _CORNER + read**_CORNER) ** (1.0 / _CORNER)
    others = (instances * threads - 1) / max(1, cpus - 1)
    alone = fixed * spread[0] + per_row * longer
    law = np.log(alone * (1.0 + slow * others**bend) + step * (fixed + per_row) * np.log2(threads))
    return np.asarray(law, dtype=np.float64)


def _constants(table: Floats, logs: Floats, cpus: int) -> Floats:
    """The most probable constants by Gauss-Newton steps that shrink where they overshoot."""
    instances, threads, rows = table.T
    prior = _PRIOR.copy()
    # Scale from the smallest batch on the fewest threads: it is one row's time, or nearly.
    first = np.lexsort((threads, rows))[0]
    prior[:2] += logs[first] - np.log1p(rows[first])

    def errors(constants: Floats) -> Floats:
        law = _law(constants, cpus, instances, threads, rows)
        return np.concatenate(((law - logs) / _LAW_ERROR, (constants - prior) / _PRIOR_SPREAD), axis=-1)

    at, damping = np.asarray(prior, dtype=np.float64), 1e-2
    error, steps = errors(at), 1e-5 * np.eye(len(prior))
    for _ in range(_TURNS):
        slope = (errors(at + steps) - error).T / 1e-5
        square = slope.T @ slope
        move = np.linalg.solve(square + damping * np.diag(np.diag(square)), slope.T @ error)
        tried = errors(at - np.clip(move, -2.0, 2.0))
        if tried @ tried < error @ error:
            gained = error @ error - tried @ tried
            at, error, damping = at - np.clip(move, -2.0, 2.0), tried, damping / 4
            if gained < 1e-4:
                break
        else:
            damping *= 8
    return np.asarray(at, dtype=np.float64)


def _places(instances: Floats, threads: Floats, rows: Floats) -> Floats:
    logs = np.log2(np.stack((instances, threads, rows), axis=1))
    return np.asarray(logs / _REACH, dtype=np.float64)


def _likeness(left: Floats, right: Floats) -> Floats:
    apart = (left[:, None, :] - right[None, :, :]) ** 2
    others, rows = apart[:, :, 0] + apart[:, :, 1], np.exp(-0.5 * apart[:, :, 2])
    alike = _RESIDUAL**2 * np.exp(-0.5 * others) + _OWN_RESIDUAL**2 * (others < _SAME)
    return np.asarray(alike * rows, dtype=np.float64)
