"""Does an engine's memory settle when shapes vary? Rows MEM-01, 02, 04 and 05 of the field reports.

    python -m bench.memory [NAME ...] [--requests 20000]

Each variant runs the real engine in a process of its own, which notes its resident memory and the number of its
mappings 200 times on the way. `settled` means that it grew by less than 2 % over the last half.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct

from bench.report import machine_facts, show, write
from bench.small_models import conv_onnx, conv_script, encoder_onnx
from hybrid.config import ModelSettings, OpenVinoSettings, TensorSettings, TorchSettings
from hybrid.engines.base import EngineSettings
from hybrid.engines.registry import load_engine

_SAMPLES: Final = 200
_MARKS: Final = (0.1, 0.25, 0.5, 0.75, 1.0)
_SETTLED: Final = 0.02
_PEAK_RUNS: Final = 50
_SEED: Final = 7

Run = Callable[[], None]


class Sample(Struct, frozen=True):
    """After so many requests: resident memory in bytes, and mappings of the process."""

    requests: int
    rss: int
    mappings: int


class Case(Struct, frozen=True):
    """One load. `variants` name what differs between its processes; `steps` yields the requests of one."""

    title: str
    variants: tuple[str, ...]
    write: Callable[[Path], str]
    steps: Callable[[str, str], Iterator[Run]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the named cases, or all, and write bench/results/memory_NAME.json for each."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(CASES)}; none: all")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--child", nargs=2, metavar=("VARIANT", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    unknown = [name for name in options.names if name not in CASES]
    if unknown:
        parser.error(f"unknown case {unknown[0]}; known: {', '.join(CASES)}")
    if options.child:
        variant, file = options.child
        _child(CASES[options.names[0]], variant, file, options.requests)
        return
    for name in options.names or CASES:
        _measure(name, CASES[name], options.requests)


def _measure(name: str, case: Case, requests: int) -> None:
    facts = machine_facts()
    rows, figures = [], {}
    for variant in case.variants:
        began = time.monotonic()
        samples = _spawned(name, case, variant, requests)
        summary = _summary(samples) | {"seconds": round(time.monotonic() - began, 1)}
        figures[variant] = summary | {"samples": [[s.requests, s.rss, s.mappings] for s in samples]}
        mappings = f"{samples[0].mappings} -> {samples[-1].mappings}"
        sizes = [summary[key] for key in ("start_mb", *map(_mark, _MARKS), "slope_kb_per_1000")]
        rows.append((variant, *sizes, mappings, "yes" if summary["settled"] else "NO"))
    columns = ("", "start", *(f"{mark:.0%}" for mark in _MARKS), "kB/1000", "mappings", "settled")
    show(f"{name}: {case.title}; RSS in MB after part of {requests} requests", columns, rows)
    command = f"python -m bench.memory {name} --requests {requests}"
    content = {"command": command, "title": case.title, "requests": requests, "figures": figures}
    print(write(f"memory_{name}", facts, content))


def _spawned(name: str, case: Case, variant: str, requests: int) -> list[Sample]:
    with tempfile.TemporaryDirectory() as folder:
        file = case.write(Path(folder))
        command = [sys.executable, "-m", "bench.memory", name, "--requests", str(requests), "--child", variant, file]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return [Sample(*json.loads(line)) for line in done.stdout.splitlines()]


def _summary(samples: Sequence[Sample]) -> dict[str, Any]:
    half = samples[len(samples) // 2 :]
    slope = np.polyfit([s.requests for s in half], [s.rss for s in half], 1)[0]
    grown = slope * (half[-1].requests - half[0].requests)
    marks = {_mark(mark): _mb(samples[round(mark * (len(samples) - 1))].rss) for mark in _MARKS}
    return {
        "start_mb": _mb(samples[0].rss),
        **marks,
        "peak_mb": _mb(max(s.rss for s in samples)),
        "slope_kb_per_1000": round(float(slope) * 1000 / 1e3, 1),
        "settled": bool(grown <= _SETTLED * half[0].rss),
    }


def _mark(part: float) -> str:
    return f"at_{part:.0%}"


def _mb(count: int) -> int:
    return round(count / 1e6)


# The process that is measured --------------------------------------------------------------------------------------


def _child(case: Case, variant: str, file: str, requests: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    steps = case.steps(variant, file)
    next(steps)()
    _note(0)
    for number in range(1, requests + 1):
        next(steps)()
        if number * _SAMPLES % requests < _SAMPLES:
            _note(number)


def _note(requests: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    with open("/proc/self/maps", "rb") as file:
        mappings = sum(1 for _ in file)
    print(json.dumps([requests, pages * os.sysconf("SC_PAGE_SIZE"), mappings]), flush=True)


def _engine(settings: ModelSettings) -> Callable[[str, Any], Run]:
    engine = load_engine(settings, EngineSettings(threads=1))

    def prepared(name: str, array: Any) -> Run:
        def run() -> None:
            engine.run({name: array}, len(array))

        return run

    return prepared


def _ort_lengths(variant: str, file: str) -> Iterator[Run]:
    rng, run = np.random.default_rng(_SEED), _engine(ModelSettings(name="m", file=file))
    while True:
        yield run("ids", rng.integers(0, 1000, (1, rng.integers(1, 513))))


def _openvino_shapes(variant: str, file: str) -> Iterator[Run]:
    settings = OpenVinoSettings() if variant == "as served" else OpenVinoSettings(cache_entries=5000)
    rng, run = (
        np.random.default_rng(_SEED),
        _engine(ModelSettings(name="m", file=file, openvino=settings, engine="openvino")),
    )
    while True:
        yield run("x", np.zeros((1, 3, *rng.integers(16, 96, 2)), np.float32))


def _torch(variant: str, file: str) -> Callable[[str, Any], Run]:
    settings = TorchSettings() if variant == "as served" else TorchSettings(cache_entries=1024)
    x = TensorSettings(name="x", datatype="FP32", shape=(-1, 3, -1, -1))
    y = TensorSettings(name="y", datatype="FP32", shape=(-1, 32))
    return _engine(ModelSettings(name="m", file=file, inputs=(x,), outputs=(y,), torch=settings))


def _torch_batches(variant: str, file: str) -> Iterator[Run]:
    rng, run = np.random.default_rng(_SEED), _torch(variant, file)
    while True:
        yield run("x", np.zeros((rng.integers(1, 31), 3, 32, 32), np.float32))


def _torch_shapes(variant: str, file: str) -> Iterator[Run]:
    """Two rows and more: with one row and one thread PyTorch does not use oneDNN, whose cache this is about."""
    rng, run = np.random.default_rng(_SEED), _torch(variant, file)
    while True:
        yield run("x", np.zeros((rng.integers(2, 9), 3, *rng.integers(16, 64, 2)), np.float32))


def _ort_peak(variant: str, file: str) -> Iterator[Run]:
    """Batches of 64 rows first, rows alone after. ORT can be asked to shrink its arena after each run."""
    rng, run = np.random.default_rng(_SEED), _engine(ModelSettings(name="m", file=file))
    if variant != "as served":
        run = _shrinking(file, trim=variant.endswith("trim"))
    yield run("ids", rng.integers(0, 1000, (1, 128)))
    for _ in range(_PEAK_RUNS):
        yield run("ids", rng.integers(0, 1000, (64, 128)))
    while True:
        yield run("ids", rng.integers(0, 1000, (1, 128)))


def _shrinking(file: str, trim: bool) -> Callable[[str, Any], Run]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    each = onnxruntime.RunOptions()
    each.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    libc = ctypes.CDLL(None)

    def prepared(name: str, array: Any) -> Run:
        def run() -> None:
            session.run(None, {name: array}, each)
            if trim:
                libc.malloc_trim(0)

        return run

    return prepared


CASES: Final = {
    "ort_lengths": Case(
        "MEM-01, ONNX Runtime, 1 x 1..512 ids",
        ("as served",),
        lambda folder: encoder_onnx(folder / "m.onnx"),
        _ort_lengths,
    ),
    "openvino_shapes": Case(
        "MEM-02, OpenVINO, 1 x 3 x 16..95 x 16..95",
        ("as served", "cache of 5000"),
        lambda folder: conv_onnx(folder / "m.onnx"),
        _openvino_shapes,
    ),
    "torch_batches": Case(
        "MEM-04, PyTorch, 1..30 x 3 x 32 x 32",
        ("as served", "cache of 1024"),
        lambda folder: conv_script(folder / "m.pt"),
        _torch_batches,
    ),
    "torch_shapes": Case(
        "PyTorch, 2..8 x 3 x 16..63 x 16..63",
        ("as served", "cache of 1024"),
        lambda folder: conv_script(folder / "m.pt"),
        _torch_shapes,
    ),
    "ort_peak": Case(
        f"MEM-05, ONNX Runtime, {_PEAK_RUNS} batches of 64 x 128 ids, then 1 x 128",
        ("as served", "shrink", "shrink and trim"),
        lambda folder: encoder_onnx(folder / "m.onnx"),
        _ort_peak,
    ),
}


if __name__ == "__main__":
    main()
