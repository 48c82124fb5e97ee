"""The planner on random simulated devices, against an exhaustive sweep of each and against what others do.

`python -m bench.planner_simulated` runs 60 devices of a seed that nothing was tuned on (`--seed`). Each has at least
720 settings; the truth is the device without noise under a replay with arrivals of its own. Devices that are done stand
in a file, so that a run can be taken up again; `--fresh` begins anew.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from bench.planner_packrat import ROWS, setting
from bench.planner_world import ENGINE, TRUTH, Cpu, Device, best_of_sweep, devices
from bench.report import machine_facts, show, write
from hybrid.planner.measures import Probe
from hybrid.planner.queueing import goodput_rps
from hybrid.planner.search import Search, fixed_batch

HELD_OUT: Final = 577215
_COUNT: Final = 60
_FIXED: Final = (1, 2, 4, 8, 16, 32)
_ENOUGH: Final = 0.90


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.planner_simulated", description=__doc__)
    parser.add_argument("--seed", type=int, default=HELD_OUT)
    parser.add_argument("--count", type=int, default=_COUNT)
    parser.add_argument("--seconds", type=float, default=math.inf, help="stop after so long; run again to go on")
    parser.add_argument("--fresh", action="store_true")
    asked = parser.parse_args(list(arguments))
    kept = Path(tempfile.gettempdir()) / f"planner_simulated_{asked.seed}_{asked.count}.jsonl"
    if asked.fresh:
        kept.unlink(missing_ok=True)
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    ends_at = time.monotonic() + asked.seconds
    for number, device in enumerate(devices(asked.seed, asked.count)):
        if number < len(rows):
            continue
        if time.monotonic() > ends_at:
            sys.exit(f"{len(rows)} of {asked.count} devices are done; run it again to go on")
        rows.append(one(device))
        with kept.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    _report(rows, asked.seed)


def one(device: Device) -> dict[str, Any]:
    """Search, sweep and baselines of one device."""
    slo_s, grid = device.slo_s(), device.grid()
    search, measured = Search(device.question()), 0
    while probes := search.next():
        search.tell(device.time(probes))
        measured += len(probes)
    choice = search.choice()
    ours = choice.setting
    best, where = best_of_sweep(device, slo_s)
    default = (1, device.cores, 1)
    fat = (1, device.cores, grid.rows[-1] if isinstance(device, Cpu) else where[2])
    others = {"default": default, "fat": fat} | (
        {"packrat": _packrat(device, slo_s)} if isinstance(device, Cpu) else {}
    )
    tried = [(ours.instances, ours.threads, ours.max_batch), *others.values()]
    values = goodput_rps([device.server(*place) for place in tried], slo_s, samples=TRUTH)
    return {
        "kind": device.kind,
        "cores": device.cores,
        "noise": round(device.noise, 4),
        "slo_ms": round(slo_s * 1000, 3),
        "grid": grid.size,
        "space": choice.space,
        "measured": measured,
        "ours": tried[0],
        "best": where,
        "goodput": round(float(values[0]), 3),
        "best_goodput": round(best, 3),
        "ratio": round(float(values[0]) / best, 4),
        "over": {name: _ratio(float(values[0]), float(value)) for name, value in zip(others, values[1:], strict=True)},
        "fixed": _fixed(device, choice.known.by_engine[ENGINE]) if isinstance(device, Cpu) else None,
    }


def _packrat(device: Device, slo_s: float) -> tuple[int, int, int]:
    """Its setting by a table of solo times, measured with the same noise; threads are powers of two, and all."""
    threads = sorted({2**n for n in range(8) if 2**n <= device.cores} | {device.cores})
    probes = [Probe(ENGINE, 1, count, rows) for count in threads for rows in ROWS]
    table = {(one.probe.threads, one.probe.rows): one.seconds for one in device.time(probes)}
    found = setting(table, ENGINE, device.cores, slo_s)
    return found.instances, max(1, min(found.threads, device.cores // found.instances)), found.max_batch


def _fixed(device: Device, model: Any) -> dict[str, list[float]]:
    """How much faster than one fat instance a fixed batch is run: by the planner's split, and by the best there is."""
    ours, best = [], []
    for rows in _FIXED:
        fat = device.one(1, device.cores, rows)
        split = fixed_batch(model, rows)
        ours.append(round(fat / device.one(split.instances, split.threads, split.rows_each), 4))
        best.append(round(fat / min(device.one(i, t, -(-rows // i)) for i, t in device.grid().pairs), 4))
    return {"ours": ours, "best": best}


def _report(rows: Sequence[dict[str, Any]], seed: int) -> None:
    kinds = {
        "all": list(rows),
        "CPUs": [one for one in rows if one["kind"] == "cpu"],
        "GPUs": [one for one in rows if one["kind"] != "cpu"],
    }
    table = {name: _summary(group) for name, group in kinds.items() if group}
    columns = ("devices", "goodput / best", "worst", "below 0.90", "of the sweep", "of own space", "/ default", "/ fat")
    shown = [
        (name, s["devices"], s["geomean"], s["worst"], f"{s['below']:.1%}", f"{s['of_sweep']:.1%}",
         f"{s['of_space']:.1%}", s["over"]["default"], s["over"]["fat"])
        for name, s in table.items()
    ]  # fmt: skip
    show(f"planner on simulated devices, seed {seed}", ("", *columns), shown)
    large = [one for one in kinds["CPUs"] if one["cores"] >= 16]
    fixed = {name: _geomean([x for one in large for x in one["fixed"][name]]) for name in ("ours", "best")}
    packrat = [one["over"]["packrat"] for one in kinds["CPUs"]]
    contended = [one for one in large if _geomean(one["fixed"]["best"]) >= 1.8]
    where_it_says = {name: _geomean([x for one in contended for x in one["fixed"][name]]) for name in ("ours", "best")}
    lines = (
        ("latency at b = 1..32 against fat, 16 to 128 cores", fixed["ours"], fixed["best"]),
        (f"where the best split is at least 1.8x ({len(contended)} of {len(large)})", *where_it_says.values()),
    )
    show("fixed batch", ("", "ours", "best there is"), lines)
    show("goodput over Packrat's", ("", "geometric mean", "worst"), [("CPUs", _geomean(packrat), min(packrat))])
    content = {"seed": seed, "summary": table, "fixed": fixed, "fixed_where_it_pays": where_it_says}
    name = "planner_simulated" if seed == HELD_OUT else f"planner_simulated_{seed}"
    path = write(name, machine_facts(), {**content, "over_packrat": _geomean(packrat), "devices": list(rows)})
    print(path)


def _summary(group: Sequence[dict[str, Any]]) -> dict[str, Any]:
    ratios = [one["ratio"] for one in group]
    return {
        "devices": len(group),
        "geomean": _geomean(ratios),
        "worst": min(ratios),
        "below": sum(ratio < _ENOUGH for ratio in ratios) / len(ratios),
        "of_sweep": sum(one["measured"] / one["grid"] for one in group) / len(group),
        "of_sweep_most": max(one["measured"] / one["grid"] for one in group),
        "of_space": sum(one["measured"] / one["space"] for one in group) / len(group),
        "of_space_most": max(one["measured"] / one["space"] for one in group),
        "over": {name: _geomean([one["over"][name] for one in group]) for name in ("default", "fat")},
        "over_default_worst": min(one["over"]["default"] for one in group),
    }


def _ratio(ours: float, other: float) -> float:
    """Where the other carries nothing within the objective, 100 stands for any number."""
    return round(min(100.0, ours / other), 4) if other > 0 else 100.0


def _geomean(values: Sequence[float]) -> float:
    return round(math.exp(sum(map(math.log, values)) / len(values)), 4) if values else 1.0


if __name__ == "__main__":
    main(sys.argv[1:])
