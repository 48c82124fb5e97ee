"""Is the largest batch that memory allows safe, and is it large? 200 trials, each under a limit of its own.

    python -m bench memory_limit            (or: python -m bench.memory_limit --trials 20, and again with --more)

A trial draws a model and a limit, and has the planner's probe find the largest batch by measuring under that limit. The
batch is then run in a fresh process, with batches of random sizes behind it as a server has them, and the true maximum
is found by trying more and fewer rows. Whatever goes above the limit at any time, the probe's own processes together
included, counts as killed: a control group would kill it. The limit counts touched pages, as a control group does, and
is watched from outside: RLIMIT_DATA counts address space, of which engines reserve a tenth to a quarter more than they
ever touch.
Simulated devices refuse by their own memory model.

Limits under which weights and overhead take more than 30 % are shown apart: 15 % headroom of the whole memory would
alone cost 21 % of the rows there, which is why the planner keeps less of it (`hybrid.planner.space`).
"""

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

from msgspec import Struct, convert
from msgspec.structs import asdict, replace

from bench.report import RESULTS, machine_facts, show, write
from bench.small_models import maps_onnx
from hybrid.config import ModelSettings, SimulatedSettings
from hybrid.facts import MachineFacts
from hybrid.planner.machine import read_machine
from hybrid.planner.space import rows_in_memory
from hybrid.probing.budget import Budget
from hybrid.probing.crew import ProbeFailed
from hybrid.probing.facts import FactsProbe
from hybrid.probing.messages import Peak, Peaked
from hybrid.probing.runner import start_crew

TRIALS: Final = 200
_GOAL_SHARE: Final = 0.75
_HEADROOM_BASE: Final = 0.30
_SIMULATED_SHARE: Final = 0.5
_LOOK_S: Final = 0.001
_MOST_ROWS: Final = 512
_LATER: Final = 6
_MIB: Final = 1024 * 1024
_SEED: Final = 20


class Trial(Struct, frozen=True):
    """One model under one limit; sizes in bytes. `kind` is the engine, `base` what its process takes without rows."""

    seed: int
    kind: str
    limit: int
    base: int
    per_row: int
    chosen: int
    true_max: int
    killed: int
    took_s: float

    @property
    def share(self) -> float:
        """Chosen batch over the largest possible."""
        return self.chosen / self.true_max if self.true_max else 1.0

    @property
    def crowded(self) -> bool:
        """Whether weights and overhead take much of the memory."""
        return self.base > _HEADROOM_BASE * self.limit


class Watch:
    """Counts processes below this one that go above a limit, and kills them as a control group would."""

    def __init__(self, limit_bytes: int) -> None:
        self.killed: set[int] = set()
        self._limit = limit_bytes
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch while the context lasts."""
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_S):
            used = {pid: _resident(pid) for pid in _children()}
            if sum(now for now, _ in used.values()) > self._limit or any(p > self._limit for _, p in used.values()):
                largest = max(used, key=lambda pid: used[pid][1])
                self.killed.add(largest)
                with suppress(ProcessLookupError):
                    os.kill(largest, signal.SIGKILL)


def run_trial(seed: int, folder: Path, machine: MachineFacts) -> Trial:
    """Draw one model and limit, and hold the probe's choice against the truth."""
    rng = random.Random(seed)
    began = time.monotonic()
    if rng.random() < _SIMULATED_SHARE:
        return _simulated(seed, rng, machine, began)
    engine = rng.choice(("onnxruntime", "openvino"))
    channels, side = rng.choice((32, 48, 64)), rng.choice((160, 192, 224))
    file = maps_onnx(folder / f"maps_{channels}_{side}.onnx", channels, side)
    model = ModelSettings(name="maps", file=file)
    limit = _peak_of(model, machine, engine, rng.randrange(12, 40)) + rng.randrange(4 * _MIB)
    watch = Watch(limit)
    with watch.on():
        chosen, base, per_row = _choose(model, machine, engine, limit)
        died = _fails(model, machine, engine, chosen, [rng.randrange(1, chosen + 1) for _ in range(_LATER)])
    true_max = _largest(lambda rows: _peak_of(model, machine, engine, rows) <= limit, (limit - base) // per_row)
    killed = max(len(watch.killed), int(died))
    return Trial(seed, engine, limit, base, per_row, chosen, true_max, killed, time.monotonic() - began)


def _simulated(seed: int, rng: random.Random, machine: MachineFacts, began: float) -> Trial:
    total = rng.choice((8, 16, 24, 80, 141)) * 1024 * _MIB
    weights = int(total * rng.uniform(0.02, 0.35))
    device = SimulatedSettings(
        memory_total_bytes=total,
        memory_weights_bytes=weights,
        memory_per_row_bytes=int(total * rng.uniform(2e-3, 0.04)),
    )
    model = ModelSettings(name="device", engine="simulated", simulated=device)
    chosen, base, per_row = _choose(model, machine, "simulated", total)
    died = _fails(model, machine, "simulated", chosen)
    true_max = _largest(lambda rows: not _fails(model, machine, "simulated", rows), (total - base) // per_row)
    return Trial(seed, "simulated", total, base, per_row, chosen, true_max, int(died), time.monotonic() - began)


def _choose(model: ModelSettings, machine: MachineFacts, engine: str, limit: int) -> tuple[int, int, int]:
    """What a plan would take: (largest batch, base, bytes per row)."""
    machine = replace(machine, memory_limit_bytes=limit)
    probe = FactsProbe(model, machine, 16, limit, _MOST_ROWS, Budget(60.0))
    line = probe.find(engine).profile.memory
    assert line is not None
    return max(1, min(_MOST_ROWS, rows_in_memory(line, limit, 1))), line.base_bytes, line.per_row_bytes


def _peak_of(model: ModelSettings, machine: MachineFacts, engine: str, rows: int) -> int:
    with start_crew(model, machine, engine, 1, 1, 16) as crew:
        crew.loaded(60.0)
        return crew.ask(Peak(rows), Peaked, 60.0)[0].peak_bytes


def _fails(model: ModelSettings, machine: MachineFacts, engine: str, rows: int, later: Sequence[int] = ()) -> bool:
    """Whether a process dies of `rows` rows, as a worker runs them when it warms up, or of what comes later."""
    try:
        with start_crew(model, machine, engine, 1, 1, 16) as crew:
            crew.loaded(60.0)
            for count in (rows, *later):
                crew.ask(Peak(count), Peaked, 60.0)
    except ProbeFailed as failed:
        if failed.late:
            raise  # a machine that is too busy says nothing of memory
        return True
    return False


def _largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number that fits, by steps that double from a guess and halves of the last one; 0 when none does."""
    guess = max(1, guess)
    step, low, high = 1, guess, guess + 1
    if fits(guess):
        while fits(high):
            step *= 2
            low, high = high, high + step
    else:
        low, high = guess - 1, guess
        while low > 0 and not fits(low):
            step *= 2
            low, high = max(0, low - step), low
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _children() -> list[int]:
    """Processes started here that run a program of their own; until then they show the memory of this one.

    As the kernel lists them: going through all processes takes 15 times as long.
    """
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += map(int, (task / "children").read_text().split())
    return [pid for pid in found if _program(pid) not in (b"", _program("self"))]


def _program(pid: int | str) -> bytes:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _resident(pid: int) -> tuple[int, int]:
    """Resident bytes of a process now and at most; 0 when it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(("VmHWM:", "VmRSS:"))}
    return sizes.get("VmRSS", 0), sizes.get("VmHWM", 0)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the trials, print a table per kind, and write bench/results/memory_limit.json."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory_limit")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--more", action="store_true", help="keep the trials that were run before, and add to them")
    options = parser.parse_args([] if argv is None else argv)
    facts, machine = machine_facts(), read_machine()
    trials = _earlier() if options.more else []
    first = _SEED * 1000 + len(trials)
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(first, first + options.trials):
            try:
                trial = run_trial(seed, Path(folder), machine)
            except ProbeFailed as failed:
                if not failed.late:
                    raise
                print(f"trial {seed}: void, {failed.text}; taken once more")
                trial = run_trial(seed, Path(folder), machine)
            trials.append(trial)
            path = _write(trials, facts)  # each time: a run of an hour that is stopped goes on with `--more`
    rows = [(n, s["trials"], s["killed"], s["median_share"], s["least_share"], s["below"]) for n, s in _groups(trials)]
    columns = ("", "trials", "killed", "chosen / true max: median", "least", "below 0.75")
    show("largest batch under a memory limit", columns, rows)
    print(path)


def _write(trials: Sequence[Trial], facts: dict[str, Any]) -> Path:
    content = {"seed": _SEED, "summary": dict(_groups(trials)), "trials": [asdict(trial) for trial in trials]}
    return write("memory_limit", facts, {"command": "python -m bench.memory_limit", **content})


def _groups(trials: Sequence[Trial]) -> list[tuple[str, dict[str, Any]]]:
    roomy = [trial for trial in trials if not trial.crowded]
    groups = {kind: [trial for trial in roomy if trial.kind == kind] for kind in sorted({t.kind for t in trials})}
    groups["together"] = roomy
    groups["weights above 30 %"] = [trial for trial in trials if trial.crowded]
    return [(name, _summary(group)) for name, group in groups.items() if group]


def _earlier() -> list[Trial]:
    path = RESULTS / "memory_limit.json"
    found = json.loads(path.read_text())["trials"] if path.exists() else []
    return [convert(trial, Trial) for trial in found]


def _summary(trials: Sequence[Trial]) -> dict[str, Any]:
    shares = [trial.share for trial in trials]
    return {
        "trials": len(trials),
        "killed": sum(trial.killed for trial in trials),
        "median_share": round(median(shares), 3),
        "least_share": round(min(shares), 3),
        "below": sum(share < _GOAL_SHARE for share in shares),
    }


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
