"""Latency at a fixed batch: the planner's split of B rows over instances, against one instance on all threads.

`python -m bench planner_fixed` measures three models at B = 1 to 32, on bare engines in processes of their own that
start at the same moment; a batch is done when its last part is. The ways take turns (A B B A), so that a machine that
is slow for a while is slow for all. `python -m bench.planner_fixed --one MODEL` measures one and prints JSON.
"""

import argparse
import json
import os
import random
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from bench.planner_models import SUBJECTS, Subject
from bench.report import machine_facts, show, write
from hybrid.facts import MachineFacts
from hybrid.planner.fitted import Models, models
from hybrid.planner.machine import read_machine
from hybrid.planner.measures import EngineProfile
from hybrid.planner.search import fixed_batch
from hybrid.planner.space import SearchQuestion
from hybrid.probing.cache import Cache
from hybrid.probing.crew import Crew
from hybrid.probing.messages import Time, Timed, Warm, Warmed
from hybrid.probing.runner import start_crew
from hybrid.probing.session import Session

_BATCHES: Final = (1, 2, 4, 8, 16, 32)
_FAT_ENGINE: Final = "onnxruntime"
_BLOCKS: Final = 6
_BLOCKS_OF_OTHERS: Final = 2  # of ways that only show what there was to choose from
_TURN_S: Final = 0.1
_MOST_TIMES: Final = 25
_LEAD_S: Final = 0.0015
_MOST_LEAD_S: Final = 2.0
_TRIES: Final = 100
_PATIENCE_S: Final = 60.0
_PROBE_BUDGET_S: Final = 40.0
_RESAMPLES: Final = 4000


class Way(Struct, frozen=True, order=True):
    """One way to run a batch: `rows_each` at once on each of `instances`."""

    engine: str
    instances: int
    threads: int
    rows_each: int

    def __str__(self) -> str:
        return f"{self.engine} {self.instances} x {self.threads}"


class Cell(Struct, frozen=True):
    """One model at one batch. Ratios are fat over ours, one per block of turns; empty where both are the same way.

    `ours` may choose its engine, `alike` runs on that of the fat instance. `all_ms` has every way that there is.
    """

    model: str
    rows: int
    fat: Way
    ours: Way
    alike: Way
    fat_ms: float
    ours_ms: float
    alike_ms: float
    ours_ratios: tuple[float, ...]
    alike_ratios: tuple[float, ...]
    all_ms: dict[str, float]


def main() -> None:
    """Measure one model, or all of them with a table and JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner_fixed")
    parser.add_argument("--one", metavar="MODEL")
    parser.add_argument("--through", default=os.environ.get("BENCH_THROUGH", ""))
    arguments, _ = parser.parse_known_args()
    if arguments.one:
        cells = measure(SUBJECTS[arguments.one])
        print(msgspec.json.encode(cells).decode())
        return
    facts = machine_facts()
    cells = []
    for name in SUBJECTS:
        command = [*shlex.split(arguments.through), sys.executable, "-m", "bench.planner_fixed", "--one", name]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        cells += msgspec.json.decode(output.splitlines()[-1], type=list[Cell])
    report(cells, facts)


def report(cells: Sequence[Cell], facts: dict[str, Any]) -> None:
    """Print the table and write bench/results/planner_fixed.json."""
    rows = [
        (
            *(f"{c.model} {c.rows}", f"{c.fat_ms:.2f}"),
            *(c.ours, f"{c.ours_ms:.2f}", f"{_ratio(c.ours_ratios):.2f}"),
            *(c.alike, f"{c.alike_ms:.2f}", f"{_ratio(c.alike_ratios):.2f}"),
            f"{min(c.all_ms.values()) / c.ours_ms:.2f}",
        )
        for c in cells
    ]
    columns = ("model, rows", "fat ms", "ours", "ms", "gain", "ours on ORT", "ms", "gain", "best / ours")
    show("latency of a batch: one ONNX Runtime instance on all threads, and the planner's split", columns, rows)
    gains = {
        "any_engine": _geomean_with_bound([c.ours_ratios for c in cells]),
        "same_engine": _geomean_with_bound([c.alike_ratios for c in cells]),
    }
    for name in SUBJECTS:
        own = [c for c in cells if c.model == name]
        gains[f"{name}_any_engine"] = _geomean_with_bound([c.ours_ratios for c in own])
        gains[f"{name}_same_engine"] = _geomean_with_bound([c.alike_ratios for c in own])
    lines = [(name, f"{gain:.3f}", f"{bound:.3f}") for name, (gain, bound) in gains.items()]
    show("geometric mean of the gain", ("", "gain", "5 % bound"), lines)
    content = {name: {"gain": round(gain, 4), "bound_5": round(bound, 4)} for name, (gain, bound) in gains.items()}
    print(write("planner_fixed", facts, {"gains": content, "cells": json.loads(msgspec.json.encode(cells))}))


def measure(subject: Subject) -> list[Cell]:
    """Plan as the server would, from few probes, then time what it says against the fat instance."""
    machine = read_machine()
    known = _known(subject, machine)
    cells = []
    with ExitStack() as stack:
        crews: dict[tuple[str, int, int], Crew] = {}

        def crew(way: Way) -> Crew:
            key = (way.engine, way.instances, way.threads)
            if key not in crews:
                started = start_crew(subject.settings, machine, *key, 32)
                crews[key] = stack.enter_context(started)
                started.loaded(_PATIENCE_S)
            return crews[key]

        for rows in _BATCHES:
            fat = Way(_FAT_ENGINE, 1, machine.cpu.usable, rows)
            alike, ours = _split(known, rows, (_FAT_ENGINE,)), _split(known, rows, tuple(known.by_engine))
            ways = dict.fromkeys((fat, ours, alike, *_all_ways(known, rows)))
            runners = {way: _Runner(crew(way), way.rows_each) for way in ways}
            seconds, ratios = _take_turns(runners, fat, {fat, ours, alike})
            cells.append(
                Cell(
                    model=subject.name,
                    rows=rows,
                    fat=fat,
                    ours=ours,
                    alike=alike,
                    fat_ms=round(seconds[fat] * 1e3, 3),
                    ours_ms=round(seconds[ours] * 1e3, 3),
                    alike_ms=round(seconds[alike] * 1e3, 3),
                    ours_ratios=ratios[ours],
                    alike_ratios=ratios[alike],
                    all_ms={str(way): round(value * 1e3, 3) for way, value in seconds.items()},
                )
            )
    return cells


def _known(subject: Subject, machine: MachineFacts) -> Models:
    def question(engines: tuple[EngineProfile, ...]) -> SearchQuestion:
        return SearchQuestion(engines, machine.cpu.usable, machine.memory_limit_bytes, slo_s=subject.slo_ms / 1e3)

    with tempfile.TemporaryDirectory() as folder:
        answer = Session(subject.settings, machine, Cache(Path(folder)), _PROBE_BUDGET_S, fresh=True).answer(question)
    if answer is None:
        raise RuntimeError(f"{subject.name}: nothing could be measured")
    engines = answer.profile.engines
    return models(question(engines), [timing for engine in engines for timing in engine.timings])


def _split(known: Models, rows: int, engines: Iterable[str]) -> Way:
    found = {engine: fixed_batch(known.by_engine[engine], rows) for engine in engines}
    engine, best = min(found.items(), key=lambda pair: pair[1].seconds)
    return Way(engine, best.instances, best.threads, best.rows_each)


def _all_ways(known: Models, rows: int) -> list[Way]:
    cpus = known.question.cpus
    return [
        Way(engine, instances, threads, -(-rows // instances))
        for engine in known.by_engine
        for instances in range(1, min(cpus, rows) + 1)
        for threads in range(1, cpus // instances + 1)
    ]


def _take_turns(
    runners: dict[Way, "_Runner"], fat: Way, often: Container[Way]
) -> tuple[dict[Way, float], dict[Way, tuple[float, ...]]]:
    """Seconds of each way, and for each the ratios of the fat one to it; none for the fat one itself."""
    times = {way: max(1, min(_MOST_TIMES, int(_TURN_S / runner.warm()))) for way, runner in runners.items()}
    taken: dict[Way, list[float]] = {way: [] for way in runners}
    for block in range(_BLOCKS):
        order = [way for way in runners if way in often or block < _BLOCKS_OF_OTHERS]
        order = order if block % 2 == 0 else order[::-1]
        turns: dict[Way, list[float]] = {way: [] for way in order}
        for way in (*order, *order[::-1]):
            turns[way] += [runners[way].once() for _ in range(times[way])]
        for way, seconds in turns.items():
            taken[way].append(statistics.median(seconds))
    ratios = {
        way: () if way == fat else tuple(a / b for a, b in zip(taken[fat], taken[way], strict=False)) for way in runners
    }
    return {way: statistics.median(seconds) for way, seconds in taken.items()}, ratios


class _Runner:
    """Runs single batches of `rows` on each process of a crew, all at the same moment."""

    def __init__(self, crew: Crew, rows: int) -> None:
        self._crew, self._rows = crew, rows
        self._lead_s = _LEAD_S

    def warm(self) -> float:
        """Seconds of the slowest process."""
        return max(answer.seconds for answer in self._crew.ask(Warm(self._rows), Warmed, _PATIENCE_S))

    def once(self) -> float:
        """Seconds of one batch: from when the first part begins until the last one ends."""
        for _ in range(_TRIES):
            begin = time.monotonic() + self._lead_s
            answers = self._crew.ask(Time(self._rows, begin, begin + 5e-4), Timed, _PATIENCE_S)
            if all(answer.batches for answer in answers):
                # Long leads are not kept: the longer a CPU sleeps, the more often it wakes up late.
                self._lead_s = max(_LEAD_S, self._lead_s / 2)
                return _seconds(answers)
            # The inputs, which are put together before the beginning, were not ready, or a CPU woke up late.
            self._lead_s = min(_MOST_LEAD_S, 1.5 * self._lead_s)
        raise RuntimeError(f"{self._rows} rows: never ready in time")


def _seconds(answers: Sequence[Timed]) -> float:
    if max(answer.group for answer in answers) == 1:
        return max(answer.batches[0][1] for answer in answers) - min(answer.batches[0][0] for answer in answers)
    return max((ended - began) / answer.group for answer in answers for began, ended in answer.batches[:1])


def _ratio(ratios: Sequence[float]) -> float:
    return statistics.geometric_mean(ratios) if ratios else 1.0


def _geomean_with_bound(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Geometric mean over cells, and what it stays above in 95 % of resamples of the blocks of each cell."""
    chance = random.Random(5)
    gain = statistics.geometric_mean([_ratio(cell) for cell in cells])
    resampled = sorted(
        statistics.geometric_mean([_ratio(chance.choices(cell, k=len(cell))) if cell else 1.0 for cell in cells])
        for _ in range(_RESAMPLES)
    )
    return gain, resampled[int(0.05 * _RESAMPLES)]


if __name__ == "__main__":
    main()
