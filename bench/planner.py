"""The plan against everything else, on real servers: goodput under a p99 objective, in rounds that take turns.

`python -m bench planner` asks the planner for the setting of three models and measures it beside the best of an
exhaustive sweep (`bench.brute_force`, whose rows must be there), the framework's default (one instance, all threads, no
batching), one fat instance with large batches, the published way to split CPUs, and `hybrid tune` where a setting of it
is handed in. What was measured stays in a file, so that a run can be taken up again.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from bench.brute_force import Job, Row, careful_rows, read_rows, run_job
from bench.planner_goodput import Windows
from bench.planner_models import SUBJECTS, Subject
from bench.planner_packrat import setting as packrat_setting
from bench.planner_packrat import solo_table
from bench.report import RESULTS, Spread, machine_facts, show, spread, write
from hybrid.config import ModelSettings, PlannerSettings
from hybrid.facts import MachineFacts
from hybrid.planner.machine import read_machine
from hybrid.planner.measures import ModelProfile, Setting
from hybrid.planner.prepare import plan_here
from hybrid.planner.questions import question_for
from hybrid.planner.shares import Key
from hybrid.planner.space import space
from hybrid.planner.types import Objective
from hybrid.probing.budget import Budget
from hybrid.probing.measuring import Measuring
from hybrid.probing.runner import ProcessMeasurer

_ROUNDS: Final = 3
_WINDOWS: Final = Windows(seconds=4.0, least_n=500, most_s=6.0, steps=5, saturate_s=2.5, chances=2)
_TRIES: Final = 2
_TABLE_S: Final = 60.0
_RESAMPLES: Final = 4000
#: Contenders whose ratio to the plan is of interest: the plan's goodput over theirs.
_BASELINES: Final = ("best of sweep", "best of rivals", "default", "fat", "packrat", "tune")
_RIVALS: Final = 6


class Contender(Struct, frozen=True):
    """A setting and what it is called; several may turn out to be the same one, and are measured once."""

    name: str
    setting: Setting


class Field(Struct, frozen=True):
    """Who runs for one model. `space` and `measured` are the plan's own counts of settings and of times taken."""

    model: str
    contenders: tuple[Contender, ...]
    space: int
    measured: int
    planning_s: float
    sweep_best_rps: float | None
    plan_in_sweep_rps: float | None


def main() -> None:
    """Measure, print, and write bench/results/planner.json."""
    parser = argparse.ArgumentParser(prog="python -m bench.planner")
    parser.add_argument("--models", default=",".join(SUBJECTS))
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "hybrid-bench")
    parser.add_argument("--rounds", type=int, default=_ROUNDS)
    parser.add_argument("--through", default=os.environ.get("BENCH_THROUGH", ""))
    parser.add_argument("--field", metavar="MODEL", help="find the contenders of one model and print them")
    arguments, _ = parser.parse_known_args()
    if arguments.field:
        print(msgspec.json.encode(find_field(SUBJECTS[arguments.field], arguments.folder)).decode())
        return
    facts = machine_facts()
    arguments.folder.mkdir(exist_ok=True)
    found = {}
    for name in arguments.models.split(","):
        field = _field(name, arguments.folder, arguments.through)
        rows = _rounds(SUBJECTS[name], field, arguments)
        found[name] = (field, rows)
    report(found, facts)


def find_field(subject: Subject, folder: Path) -> Field:
    """Plan, read the sweep, and build the baselines; takes the CPUs for a minute."""
    plan = _plan(subject)
    cpus, chosen = read_machine().cpu.usable, plan.setting
    contenders = [
        Contender("plan", chosen),
        Contender("default", Setting("onnxruntime", 1, cpus, 1)),
        Contender("fat", Setting("onnxruntime", 1, cpus, 64)),
        Contender("packrat", _packrat(subject, chosen.engine, cpus)),
    ]
    swept = {row.setting: row.found.rate_rps for row in careful_rows(read_rows(sweep_path(folder, subject.name)))}
    best = max(swept, key=lambda setting: swept[setting], default=None)
    if best is not None:
        contenders.append(Contender("best of sweep", best))
    else:
        contenders += _rivals(subject.name)
    tuned = folder / f"tune_{subject.name}.json"
    if tuned.exists():
        contenders.append(Contender("tune", _setting(json.loads(tuned.read_text())["best"])))
    return Field(
        model=subject.name,
        contenders=tuple(contenders),
        space=plan.space,
        measured=plan.measured,
        planning_s=plan.took_s,
        sweep_best_rps=None if best is None else swept[best],
        plan_in_sweep_rps=swept.get(chosen),
    )


def _rivals(model: str) -> list[Contender]:
    """What did best where the sweep that is committed was made; who has an hour sweeps this machine instead."""
    path = RESULTS / f"brute_{model}.json"
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    best = sorted(rows, key=lambda row: -row["goodput_rps"])[:_RIVALS]
    return [Contender(f"rival {n}", msgspec.convert(row, Setting)) for n, row in enumerate(best, 1)]


def sweep_path(folder: Path, model: str) -> Path:
    """Where the rows of a model's sweep are looked for."""
    return folder / f"sweep_{model}.jsonl"


def report(found: Mapping[str, tuple[Field, Sequence[Row]]], facts: dict[str, Any]) -> None:
    """Print the tables and write bench/results/planner.json, without a sweep of this machine planner_rivals.json."""
    document: dict[str, Any] = {}
    cells, gains = [], []
    ratios: dict[str, dict[str, list[float]]] = {name: {} for name in _BASELINES}
    for model, (field, rows) in found.items():
        rates = _rates(field, rows)
        rivals = [name for name in rates if name.startswith("rival") and rates[name]]
        if rivals:
            rates["best of rivals"] = rates[max(rivals, key=lambda name: statistics.median(rates[name].values()))]
        disturbed = sum(not row.undisturbed for row in rows)
        latencies = {row.setting: row.found.best for row in rows}
        for contender in field.contenders:
            best, setting = latencies[contender.setting], contender.setting
            p99_ms = "-" if best is None or best.p99_ms is None else f"{best.p99_ms:.0f}"
            shape = f"{setting.instances} x {setting.threads}, {setting.max_batch}"
            wait = f"{setting.max_wait_ms:g}"
            cells.append(
                (f"{model} {contender.name}", setting.engine, shape, wait, _spread(rates[contender.name]), p99_ms)
            )
        for name in _BASELINES:
            if name in rates:
                own_rates, their_rates = rates["plan"], rates[name]
                ratios[name][model] = [own_rates[n] / their_rates[n] for n in own_rates if their_rates.get(n)]
        document[model] = {
            "slo_p99_ms": SUBJECTS[model].slo_ms,
            "space": field.space,
            "measured": field.measured,
            "planning_s": field.planning_s,
            "share_measured": round(field.measured / field.space, 4),
            "sweep_best_rps": field.sweep_best_rps,
            "plan_in_sweep_rps": field.plan_in_sweep_rps,
            "contenders": [
                {"name": c.name, **msgspec.structs.asdict(c.setting), "goodput_rps": _spread(rates[c.name])}
                for c in field.contenders
            ],
            "plan_over": {name: spread(own[model]) for name, own in ratios.items() if own.get(model)},
            "rounds": max((len(own) for own in rates.values()), default=0),
            "rounds_disturbed": disturbed,
            "speed_moved": sum(_moved(row) for row in rows),
        }
    columns = ("model, who", "engine", "inst x thr, batch", "wait ms", "goodput/s", "p99 ms")
    show("goodput at the p99 objective: median (smallest..largest) of the rounds", columns, cells)
    for name, own in ratios.items():
        if any(own.values()):
            gain, bound = _with_bound([values for values in own.values() if values])
            gains.append((f"plan over {name}", f"{gain:.3f}", f"{bound:.3f}", sum(map(bool, own.values()))))
            document[f"plan over {name}"] = {"geomean": round(gain, 4), "bound_5": round(bound, 4)}
    show("geometric mean over the models", ("", "ratio", "5 % bound", "models"), gains)
    print(write("planner_rivals" if any(ratios["best of rivals"].values()) else "planner", facts, document))


class Planned(Struct, frozen=True):
    """What the planner says, out of how many settings, and after how many times taken."""

    setting: Setting
    space: int
    measured: int
    took_s: float


def _plan(subject: Subject) -> Planned:
    """What `hybrid serve` would do with this objective on its first start."""
    model = replace(subject.settings, slo_p99_ms=subject.slo_ms)
    seen: list[ModelProfile] = []
    with tempfile.TemporaryDirectory() as folder:
        measuring = Measuring(PlannerSettings(cache_folder=folder), fresh=True)

        def measure(
            machine: MachineFacts, models: Sequence[ModelSettings], objective: Objective
        ) -> Mapping[Key, ModelProfile]:
            found = measuring(machine, models, objective)
            seen.extend(found.values())
            return found

        prepared = plan_here((model,), measure=measure)
    plan, profile = prepared.plans[0], seen[0]
    question = question_for(model, profile, prepared.machine.cpu.usable, prepared.machine.memory_limit_bytes)
    setting = Setting(plan.engine, plan.instances, plan.threads_per_instance, plan.max_batch, plan.max_wait_ms)
    measured = sum(len(engine.timings) for engine in profile.engines)
    return Planned(setting, len(space(question)), measured, profile.took_s)


def _setting(plan: Mapping[str, Any]) -> Setting:
    """The setting in the fixed JSON form of a plan."""
    return Setting(
        plan["engine"], plan["instances"], plan["threads_per_instance"], plan["max_batch"], plan["max_wait_ms"]
    )


def _packrat(subject: Subject, engine: str, cpus: int) -> Setting:
    with ProcessMeasurer(subject.settings, read_machine(), 32, Budget(_TABLE_S)) as measurer:
        table = solo_table(measurer, engine, cpus)
    return packrat_setting(table, engine, cpus, subject.slo_ms / 1e3)


def _field(name: str, folder: Path, through: str) -> Field:
    """The contenders of a model, found once: a second plan might differ and would be another contender."""
    path = folder / f"field_{name}.json"
    if not path.exists():
        command = [*through.split(), sys.executable, "-m", "bench.planner", "--field", name, "--folder", str(folder)]
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        path.write_bytes(output.splitlines()[-1])
    return msgspec.json.decode(path.read_bytes(), type=Field)


def _rounds(subject: Subject, field: Field, arguments: argparse.Namespace) -> list[Row]:
    """Measure each setting once per round, every second round in reverse; again where others disturbed it."""
    path = arguments.folder / f"rounds_{subject.name}.jsonl"
    settings = list(dict.fromkeys(contender.setting for contender in field.contenders))
    for number in [*range(arguments.rounds)] * _TRIES:
        done = {row.setting for row in read_rows(path) if row.number == number and row.undisturbed}
        todo = [one for one in (settings if number % 2 == 0 else settings[::-1]) if one not in done]
        if todo:
            run_job(subject.argument, subject.slo_ms, path, arguments.through, Job(number, _WINDOWS, tuple(todo)))
    rows = [row for row in read_rows(path) if row.setting in settings]
    return [row for n in range(arguments.rounds) for row in careful_rows([row for row in rows if row.number == n])]


def _rates(field: Field, rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Goodput of each contender by round; without what others disturbed."""
    return {
        contender.name: {
            row.number: row.found.rate_rps for row in rows if row.setting == contender.setting and row.undisturbed
        }
        for contender in field.contenders
    }


def _spread(rates: Mapping[int, float]) -> Spread | None:
    return spread(list(rates.values())) if rates else None


def _moved(row: Row) -> bool:
    """Whether the machine became much faster or slower during a measurement."""
    return abs(row.quiet.speed_after / row.quiet.speed_before - 1.0) > 0.1


def _with_bound(cells: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Geometric mean over models, and what it stays above in 95 % of resamples of their rounds."""
    chance = random.Random(5)
    middle = statistics.geometric_mean([statistics.geometric_mean(cell) for cell in cells])
    resampled = sorted(
        statistics.geometric_mean([statistics.geometric_mean(chance.choices(cell, k=len(cell))) for cell in cells])
        for _ in range(_RESAMPLES)
    )
    return middle, resampled[int(0.05 * _RESAMPLES)]


if __name__ == "__main__":
    main()
