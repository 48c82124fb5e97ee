"""Exhaustive sweep: the goodput of every configuration of a grid on real servers, the yardstick of planner and tuner.

`python -m bench.brute_force MODEL --slo-ms N --rows FILE` measures what FILE does not have yet: first everything in
random order with short windows, then the best third again with long ones, so that a sweep that is cut short is still a
whole one; `--waits 0` leaves out the half of the grid that waits for more rows. `--through COMMAND` runs each
configuration under a command, such as one that waits until the machine is free. `python -m bench.brute_force MODEL
--summary NAME --rows FILE` writes bench/results/NAME.json.
"""

import argparse
import itertools
import random
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from bench.planner_goodput import Goodput, Windows, goodput
from bench.planner_quiet import Quiet, Watch
from bench.report import machine_facts, show, spread, write
from bench.servers import hybrid
from hybrid.load.payloads import PayloadSettings, for_model
from hybrid.load.target import Target
from hybrid.models.catalog import resolve
from hybrid.planner.measures import Setting

_ENGINES: Final = ("onnxruntime", "openvino")
_PARALLEL: Final = ((1, 1), (2, 1), (1, 2))
_BATCHES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WAITS_MS: Final = "0,5"
_PASSES: Final = (Windows(1.5, 200, 4.0, 4), Windows(5.0, 600, 8.0, 6))
_PAUSE_S: Final = 8.0  # others who share the machine get their turn
_BUSY_S: Final = 5.0
_NOT_FREE: Final = 75
_MAY_BE_FOREIGN: Final = 0.2
_TRIES: Final = 3  # for settings that were disturbed


class Row(Struct, frozen=True):
    """One line of a sweep: which pass over the grid, what was measured, and the wall time of all of it."""

    number: int
    setting: Setting
    found: Goodput
    wall_s: float
    at: str
    quiet: Quiet

    @property
    def undisturbed(self) -> bool:
        """Whether nobody else took much of the CPUs meanwhile."""
        return self.quiet.foreign_cpus <= _MAY_BE_FOREIGN


class Job(Struct, frozen=True):
    """Settings to measure one after the other, as part of pass `number`."""

    number: int
    windows: Windows
    settings: tuple[Setting, ...]


def grid(waits_ms: Sequence[float]) -> tuple[Setting, ...]:
    """Every configuration of a machine with two usable cores that is worth a look."""
    return tuple(
        Setting(engine, instances, threads, max_batch, wait_ms)
        for engine, (instances, threads), max_batch, wait_ms in itertools.product(
            _ENGINES, _PARALLEL, _BATCHES, waits_ms
        )
    )


def options(setting: Setting) -> tuple[str, ...]:
    """The options of `hybrid serve` for a setting."""
    return (
        *("--engine", setting.engine, "--workers", str(setting.instances), "--threads", str(setting.threads)),
        *("--max-batch", str(setting.max_batch), "--max-wait-ms", f"{setting.max_wait_ms:g}"),
    )


def measure(model: str, setting: Setting, slo_s: float, windows: Windows, seed: int = 0) -> Goodput:
    """Measure one configuration on a server of its own, compiled as for users, with requests of `hybrid baseline`."""
    found = resolve(model)
    image = found.preprocess.image
    settings = PayloadSettings(image_inputs=(image.input,) if image is not None else ())
    with hybrid(model, *options(setting), "--grpc-port", "-1") as (base, pid):
        target = Target(base, pid)
        payloads = for_model(target.metadata(found.name), settings)
        return goodput(target.infer_url(found.name), payloads, slo_s, windows, seed)


def read_rows(path: Path) -> list[Row]:
    """Read a sweep so far; a last line that was cut off is dropped."""
    rows = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            rows.append(msgspec.json.decode(line, type=Row))
        except msgspec.DecodeError:
            continue
    return rows


def careful_rows(rows: Sequence[Row]) -> tuple[Row, ...]:
    """The most careful measurement of each setting; a disturbed one only where there is no other."""
    careful: dict[Setting, Row] = {}
    for row in sorted(rows, key=lambda row: (row.undisturbed, row.number)):
        careful[row.setting] = row
    return tuple(careful.values())


def best_third(rows: Sequence[Row]) -> list[Setting]:
    """The settings that the first pass found best."""
    first = careful_rows([row for row in rows if row.number == 0])
    return [row.setting for row in sorted(first, key=lambda row: -row.found.rate_rps)[: len(first) // 3]]


def main() -> None:
    """Sweep, measure one configuration, or summarise."""
    parser = argparse.ArgumentParser(prog="python -m bench.brute_force")
    parser.add_argument("model")
    parser.add_argument("--slo-ms", type=float, default=200.0)
    parser.add_argument("--rows", type=Path, required=True)
    parser.add_argument("--through", default="")
    parser.add_argument("--passes", type=int, default=len(_PASSES))
    parser.add_argument("--waits", default=_WAITS_MS, metavar="MS,MS", help="waits of the grid, in milliseconds")
    parser.add_argument("--together", type=int, default=1, help="configurations that one COMMAND measures")
    parser.add_argument("--these", metavar="JSON", help="measure these configurations and append them to the rows")
    parser.add_argument("--summary", metavar="NAME")
    parser.add_argument("--note", default="", help="what a reader of the summary should know")
    arguments = parser.parse_args()
    if arguments.summary:
        summarise(arguments.summary, arguments.model, arguments.slo_ms, read_rows(arguments.rows), arguments.note)
    elif arguments.these:
        job = msgspec.json.decode(arguments.these, type=Job)
        for setting in job.settings:
            _measure_one(arguments.model, arguments.slo_ms, arguments.rows, job, setting)
    else:
        for number in range(arguments.passes):
            _sweep(arguments, number)


def summarise(name: str, model: str, slo_ms: float, rows: Sequence[Row], note: str = "") -> None:
    """Print the best and write all, each configuration with its most careful measurement."""
    careful = careful_rows(rows)
    ranked = sorted(careful, key=lambda row: -row.found.rate_rps)
    twice = _twice(rows)
    summary: dict[str, Any] = {
        "model": model,
        "slo_p99_ms": slo_ms,
        "note": note,
        "configurations": len(careful),
        "disturbed": sum(not row.undisturbed for row in careful),
        "measured_twice": len(twice),
        "measuring_minutes": round(sum(row.wall_s for row in rows) / 60, 1),
        "second_over_first": spread(twice) if twice else None,
        "rows": [_line(row) for row in ranked],
    }
    columns = ("engine", "inst x thr", "max batch", "wait ms", "goodput/s", "saturated/s", "p99 ms", "pass")
    cells = [
        (
            row.setting.engine,
            f"{row.setting.instances} x {row.setting.threads}",
            row.setting.max_batch,
            f"{row.setting.max_wait_ms:g}",
            f"{row.found.rate_rps:.1f}",
            f"{row.found.saturated_rps:.1f}",
            f"{row.found.best.p99_ms:.0f}" if row.found.best and row.found.best.p99_ms else "-",
            row.number + 1,
        )
        for row in ranked[:12] + ranked[-3:]
    ]
    show(f"{model}, p99 <= {slo_ms:g} ms: {len(careful)} configurations, the best 12 and the last 3", columns, cells)
    print(write(name, machine_facts(), summary))


def run_job(model: str, slo_ms: float, rows: Path, through: str, job: Job) -> None:
    """Have a child measure, under the command `through`; waits while that ends with 75, "not free"."""
    command = [*shlex.split(through), sys.executable, "-m", "bench.brute_force", model, "--slo-ms", f"{slo_ms:g}"]
    command += ["--rows", str(rows), "--these", msgspec.json.encode(job).decode()]
    while (code := subprocess.call(command)) == _NOT_FREE:
        time.sleep(_BUSY_S)
    if code:
        print(f"{job}: ended with {code}", file=sys.stderr, flush=True)
    if through:
        time.sleep(_PAUSE_S)


def _line(row: Row) -> dict[str, Any]:
    best = row.found.best
    return {
        **msgspec.structs.asdict(row.setting),
        "goodput_rps": round(row.found.rate_rps, 2),
        "saturated_rps": round(row.found.saturated_rps, 2),
        "p50_ms": None if best is None or best.p50_ms is None else round(best.p50_ms, 2),
        "p99_ms": None if best is None or best.p99_ms is None else round(best.p99_ms, 2),
        "rates_tried": len(row.found.trials),
        "pass": row.number + 1,
        "foreign_cpus": row.quiet.foreign_cpus,
    }


def _twice(rows: Sequence[Row]) -> list[float]:
    """The second measurement relative to the first, where there are both: how far one can be trusted."""
    first, second = (
        {r.setting: r.found.rate_rps for r in careful_rows([r for r in rows if r.number == n])} for n in (0, 1)
    )
    return [rate / first[setting] for setting, rate in second.items() if first.get(setting)]


def _todo(rows: Sequence[Row], number: int, waits_ms: Sequence[float]) -> Iterator[Setting]:
    wanted = list(grid(waits_ms)) if number == 0 else best_third(rows)
    done = {row.setting for row in rows if row.number == number and row.undisturbed}
    random.Random(number).shuffle(wanted)
    tried = {row.setting for row in rows if row.number == number}
    # Without waiting first, because half of the grid is a whole one too; what was disturbed comes last.
    wanted.sort(key=lambda setting: (setting.max_wait_ms, setting in tried))
    return (setting for setting in wanted if setting not in done)


def _sweep(arguments: argparse.Namespace, number: int) -> None:
    waits_ms = [float(wait) for wait in arguments.waits.split(",")]
    for _ in range(_TRIES):
        todo = _todo(read_rows(arguments.rows), number, waits_ms)
        while these := list(itertools.islice(todo, arguments.together)):
            job = Job(number, _PASSES[number], tuple(these))
            run_job(arguments.model, arguments.slo_ms, arguments.rows, arguments.through, job)


def _measure_one(model: str, slo_ms: float, path: Path, job: Job, setting: Setting) -> None:
    began_s = time.monotonic()
    watch = Watch()
    found = measure(model, setting, slo_ms / 1e3, job.windows, seed=job.number)
    quiet = watch.end()
    row = Row(job.number, setting, found, time.monotonic() - began_s, time.strftime("%Y-%m-%dT%H:%M:%S"), quiet)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(row) + b"\n")
    shown = f"{found.rate_rps:.1f} good, {found.saturated_rps:.1f} saturated, {row.wall_s:.1f} s"
    print(" ".join(options(setting)), shown, quiet, flush=True)


if __name__ == "__main__":
    main()
