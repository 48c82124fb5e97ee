"""The PyTorch engine on an NVIDIA GPU: right results, l(b), the largest batch, what overlapping gains, NVML's fields.

    python -m bench.gpu [--device cuda:0] [--rehearse]

Takes under 8 minutes. Without an NVIDIA GPU it says so in one line and ends with 2, because nothing was measured.
`--rehearse` goes the same way on the CPU, leaves out what only CUDA has, and writes no result.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from bench.report import machine_facts, show, write
from bench.servers import hybrid
from bench.small_models import conv_script
from hybrid.config import ModelSettings, TensorSettings, TorchSettings
from hybrid.engines.base import EngineFailure, EngineSettings
from hybrid.engines.torch_engine import TorchEngine, load
from hybrid.messages import FailureKind, Tensor
from hybrid.protocol.oip_client import encode_request

_SIDE: Final = 224
_TOLERANCE: Final = 1e-4  # of the largest value; FP32 without TF32, sums in another order
_CURVE: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_PROBES: Final = (1, 2, 4)
_BUDGET_BYTES: Final = 2 << 30  # the device is held to this, so that finding the limit takes seconds on any card
_CURVE_S: Final = 2.0
_OVERLAP_BATCHES: Final = 200
_ROUNDS: Final = 5
_NO_GPU: Final = 2

Inputs = dict[str, np.ndarray[Any, Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run everything that the device allows and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to see that the script works")
    options = parser.parse_args(argv)
    reason = _missing_gpu()
    if reason and not options.rehearse:
        print(f"no NVIDIA GPU: {reason}; nothing was measured")
        return _NO_GPU
    device = "cpu" if options.rehearse else options.device
    curve = (1, 2) if options.rehearse else _CURVE
    with tempfile.TemporaryDirectory() as folder:
        file = conv_script(Path(folder) / "m.pt")
        results: dict[str, Any] = {"correct": correctness(file, device), "curve": latency_curve(file, device, curve)}
        results["overlap"] = overlap(file, device, *((2, 4) if options.rehearse else (64, _OVERLAP_BATCHES)))
        if not options.rehearse:
            results |= {"graphs": graphs(file, device), "memory": largest_batch(file, device), "nvml": nvml_fields()}
        results["served"] = served(Path(folder), device)
    if not options.rehearse:
        command = {"command": f"python -m bench.gpu --device {options.device}"}
        print(write("gpu", machine_facts() | _gpu_facts(options.device), command | results))
    return 0 if results["correct"]["ok"] and results["served"]["ok"] else 1


def correctness(file: str, device: str) -> dict[str, Any]:
    """The same rows on the CPU and on the device: alone, batched, at three shapes."""
    cpu, there = _engine(file, "cpu"), _engine(file, device)
    rng = np.random.default_rng(3)
    worst = 0.0
    for rows, height, width in ((1, 32, 32), (7, 48, 97), (16, _SIDE, _SIDE)):
        x = rng.standard_normal((rows, 3, height, width), np.float32)
        expected = cpu.run({"x": x}, rows)["y"]
        batched = there.run({"x": x}, rows)["y"]
        alone = np.concatenate([there.run({"x": x[row : row + 1]}, 1)["y"] for row in range(rows)])
        worst = max(worst, *(float(np.abs(y - expected).max() / np.abs(expected).max()) for y in (batched, alone)))
    ok = worst <= _TOLERANCE
    show(f"{device} against the CPU", ("", "value"), [("largest relative distance", f"{worst:.2g}"), ("ok", ok)])
    return {"distance": worst, "tolerance": _TOLERANCE, "ok": ok}


def latency_curve(file: str, device: str, batches: Sequence[int]) -> dict[str, Any]:
    """Median seconds of a batch of b rows, and the line c + a b through them."""
    engine = _engine(file, device)
    medians = [_median_s(engine, rows) for rows in batches]
    fixed, per_row = line(batches, medians)
    rows = [
        (b, f"{s * 1e3:.3f}", f"{b / s:.0f}", f"{(fixed + per_row * b) * 1e3:.3f}")
        for b, s in zip(batches, medians, strict=True)
    ]
    show(f"l(b) = {fixed * 1e3:.3f} + {per_row * 1e3:.4f} b ms", ("b", "median ms", "rows/s", "line ms"), rows)
    return {"batches": list(batches), "median_s": medians, "fixed_s": fixed, "per_row_s": per_row}


def overlap(file: str, device: str, rows: int, batches: int) -> dict[str, Any]:
    """Batches one after the other, and with a second one begun before the first is fetched; rounds in turn."""
    engine, inputs = _engine(file, device), _pictures(rows)
    ratios = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        for _ in range(batches):
            engine.run(inputs, rows)
        alone_s = time.perf_counter() - began
        began = time.perf_counter()
        flying = engine.begin(inputs, rows)
        for _ in range(batches - 1):
            following = engine.begin(inputs, rows)
            flying.wait()
            flying = following
        flying.wait()
        ratios.append(alone_s / (time.perf_counter() - began))
    gain = statistics.median(ratios)
    show(f"two in flight, {batches} batches of {rows} rows", ("", "value"), [("gain in throughput", f"{gain:.2f}")])
    return {"rows": rows, "gain": gain, "rounds": ratios}


def graphs(file: str, device: str) -> dict[str, Any]:
    """One row, kernels launched one by one and as a recorded graph."""
    plain, recorded = (_engine(file, device, cuda_graphs=on) for on in (False, True))
    one = _pictures(1)
    same = float(np.abs(plain.run(one, 1)["y"] - recorded.run(one, 1)["y"]).max())
    times = [_median_s(engine, 1) for engine in (plain, recorded)]
    rows = [("plain ms", f"{times[0] * 1e3:.3f}"), ("graph ms", f"{times[1] * 1e3:.3f}"), ("distance", f"{same:.2g}")]
    show("CUDA graphs, one row", ("", "value"), rows)
    return {"plain_s": times[0], "graph_s": times[1], "distance": same}


def largest_batch(file: str, device: str) -> dict[str, Any]:
    """The batch that memory at b = 1, 2, 4 promises and the one that fits; then whether small ones still run."""
    import torch

    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, _BUDGET_BYTES / total), device)
    engine = _engine(file, device)
    peaks = []
    for rows in _PROBES:
        engine.run(_pictures(rows), rows)
        torch.cuda.reset_peak_memory_stats(device)
        engine.run(_pictures(rows), rows)
        peaks.append(torch.cuda.max_memory_allocated(device))
    fixed, per_row = line(_PROBES, peaks)
    promised = int((_BUDGET_BYTES - fixed) / per_row)
    real = largest(lambda rows: _fits(engine, rows), promised)
    engine.run(_pictures(1), 1)
    facts = engine.memory()
    torch.cuda.set_per_process_memory_fraction(1.0, device)
    rows_shown = [("promised", promised), ("real", real), ("promised / real", f"{promised / max(real, 1):.2f}")]
    show(f"largest batch in {_BUDGET_BYTES >> 20} MiB", ("", "rows"), rows_shown)
    figures = {"allocated": facts.allocated, "reserved": facts.reserved, "fragmented": facts.fragmented}
    return {"promised": promised, "real": real, "peaks": peaks, "after_out_of_memory": figures}


def served(folder: Path, device: str) -> dict[str, Any]:
    """One request through `hybrid serve` on the device, against the engine alone."""
    declared = [
        f'[[{role}]]\nname = "{name}"\ndatatype = "FP32"\nshape = {shape}\n'
        for role, name, shape in (("inputs", "x", [-1, 3, -1, -1]), ("outputs", "y", [-1, 32]))
    ]
    settings = f'name = "m"\nfile = "m.pt"\n{"".join(declared)}\n[workers]\ndevice = "{device}"\n'
    (folder / "model.toml").write_text(settings)
    x = _pictures(2)["x"][:, :, :32, :32].copy()
    body, length = encode_request([Tensor("x", "FP32", x)], binary=False)
    assert length is None
    with hybrid(str(folder)) as (base, _):
        request = urllib.request.Request(f"{base}/v2/models/m/infer", body)
        with urllib.request.urlopen(request, timeout=60) as answer:
            data = json.load(answer)["outputs"][0]["data"]
    expected = _engine(str(folder / "m.pt"), "cpu").run({"x": x}, 2)["y"]
    distance = float(np.abs(np.reshape(data, expected.shape) - expected).max() / np.abs(expected).max())
    show(f"hybrid serve on {device}", ("", "value"), [("relative distance", f"{distance:.2g}")])
    return {"distance": distance, "ok": distance <= _TOLERANCE}


def nvml_fields() -> dict[str, Any]:
    """What NVML says of each GPU; `n/a` where it does not say."""
    try:
        import pynvml
    except ImportError:
        return {"nvml": "n/a: nvidia-ml-py is not installed"}
    asked: dict[str, Callable[[Any], object]] = {
        "name": pynvml.nvmlDeviceGetName,
        "memory_total": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        "memory_used": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
        "utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
        "power_w": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
        "power_limit_w": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
        "temperature": lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
        "sm_clock_mhz": lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM),
        "mig": lambda gpu: pynvml.nvmlDeviceGetMigMode(gpu)[0],
    }
    found: dict[str, dict[str, object]] = {}
    try:
        pynvml.nvmlInit()
        for index in range(pynvml.nvmlDeviceGetCount()):
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            found[str(index)] = {name: _asked(read, gpu, pynvml.NVMLError) for name, read in asked.items()}
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return {"nvml": f"n/a: {error}"}
    show("NVML", ("field", "value"), [(f"{i}.{k}", v) for i, fields in found.items() for k, v in fields.items()])
    return found


def line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float]:
    """Least squares in relative distance, so that small batches count: (y at 0, slope), neither below 0."""
    x, y = np.asarray(xs, float), np.asarray(ys, float)
    slope, start = np.polyfit(x, y, 1, w=1 / y)
    if start < 0:
        return 0.0, float((x / y).sum() / ((x / y) ** 2).sum())
    return float(start), max(float(slope), 0.0)


def largest(fits: Callable[[int], bool], guess: int) -> int:
    """The largest number that fits, found by doubling or halving from `guess` and then by halves; 0 when none does."""
    low, high = 0, max(guess, 1)
    while fits(high):
        low, high = high, high * 2
    while high - low > max(1, low // 100):  # to 1 %
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _fits(engine: TorchEngine, rows: int) -> bool:
    try:
        engine.run(_pictures(rows), rows)
    except EngineFailure as failure:
        if failure.kind is not FailureKind.MEMORY:
            raise
        return False
    return True


def _engine(file: str, device: str, **more: Any) -> TorchEngine:
    x = TensorSettings(name="x", datatype="FP32", shape=(-1, 3, -1, -1))
    y = TensorSettings(name="y", datatype="FP32", shape=(-1, 32))
    settings = ModelSettings(name="m", file=file, inputs=(x,), outputs=(y,), torch=TorchSettings(**more))
    return load(settings, EngineSettings(threads=1, device=device))


def _pictures(rows: int) -> Inputs:
    return {"x": np.random.default_rng(1).standard_normal((rows, 3, _SIDE, _SIDE), np.float32)}


def _median_s(engine: TorchEngine, rows: int) -> float:
    inputs = _pictures(rows)
    for _ in range(3):
        engine.run(inputs, rows)
    times: list[float] = []
    ends = time.perf_counter() + _CURVE_S
    while len(times) < 5 or time.perf_counter() < ends:
        began = time.perf_counter()
        engine.run(inputs, rows)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _missing_gpu() -> str:
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    return "" if torch.cuda.is_available() else "PyTorch finds no CUDA device or driver"


def _gpu_facts(device: str) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(device)
    return {"gpu": properties.name, "gpu_memory": properties.total_memory, "torch": str(torch.__version__)}


def _asked(read: Callable[[Any], object], gpu: Any, missing: type[Exception]) -> object:
    try:
        value = read(gpu)
        return value if isinstance(value, int | float) else str(value)
    except missing as error:
        return f"n/a: {error}"


if __name__ == "__main__":
    sys.exit(main())
