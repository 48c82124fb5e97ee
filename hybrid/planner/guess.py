"""How a model would run if nobody had an opinion: the numbers of the plan that measuring can improve. Pure.

The figures behind the rules stand here with where they come from. What depends on them (queue bounds, cores, early
trigger) is derived later, in `plan`, from whatever numbers win.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from hybrid.config import ModelSettings, engine_of
from hybrid.facts import MachineFacts
from hybrid.planner.types import Alternative

MIB: Final = 1024 * 1024
#: Two processes x 1 thread against 1 x 2 on 2 cores, items/s of a small text model at batch 1/4/8/32.
_MEASURED: Final = "minilm on 2 x 1 served 157/266/280/314 items/s at batch 1/4/8/32 where 1 x 2 served 123/200/239/337"
_CPU_MAX_BATCH: Final = 8
_THROUGHPUT_BATCH: Final = 32
_THROUGHPUT_DEPTH: Final = 2
_DEVICE_MAX_BATCH: Final = 64
#: Engine -> its name for people.
ENGINE_NAMES: Final = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch": "PyTorch"}
_DEVICE_BATCH_CAP: Final = 128
_DEVICE_MEMORY_SHARE: Final = 0.85
_WORKER_BASE_BYTES: Final = 200 * MIB
_WORKER_FILE_FACTOR: Final = 3  # the file, the weights as the engine repacks them, and room for activations
_WORKER_MEMORY_SHARE: Final = 0.75  # the rest is for the front end, queued requests and preprocessing


class Guess(Struct, frozen=True):
    """How a model would run if nobody fixed anything; `reasons` explains each number under its own name.

    `alternatives` are there where it was measured.
    """

    device: str
    engine: str
    instances: int
    max_batch: int
    reasons: dict[str, str]
    threads_per_instance: int = 1
    max_wait_ms: float = 0.0
    pipeline_depth: int = 1
    pin: bool = True
    alternatives: tuple[Alternative, ...] = ()


def is_simulated(model: ModelSettings) -> bool:
    """Whether the model runs on the simulated device, which is no part of this machine."""
    return model.engine == "simulated" or (model.engine == "auto" and model.simulated is not None)


def has_own_device(model: ModelSettings) -> bool:
    """Whether the model computes elsewhere than on the CPUs of this machine."""
    return is_simulated(model) or model.workers.device != "cpu"


def front_end_cpus(usable: int) -> int:
    """CPUs left to the front end and preprocessing. Small machines share: giving away 1 of 4 costs a quarter."""
    return 0 if usable < 8 else 1 if usable < 24 else 2


def worker_bytes(file_bytes: int) -> int:
    """Memory of one worker as a first guess, from the size of its model file."""
    return file_bytes * _WORKER_FILE_FACTOR + _WORKER_BASE_BYTES


def guess_cpu(model: ModelSettings, machine: MachineFacts, share: int, models: int, file_bytes: int) -> Guess:
    """Workers of one thread on every CPU of the share, as far as memory goes."""
    engine, engine_why = _engine(model)
    usable = machine.cpu.usable
    each = worker_bytes(file_bytes)
    budget = int(machine.memory_limit_bytes * _WORKER_MEMORY_SHARE / models)
    fitting = budget // each
    instances = max(1, min(share, fitting))
    left = front_end_cpus(usable)
    if models > usable:
        why = f"{models} models share {usable} usable CPUs, so each has the one worker that it needs"
    elif models > 1:
        why = f"this model's share of {usable} usable CPUs among {models} models is {share}"
    else:
        why = f"one worker per usable CPU ({machine.cpu.reason})"
    if left and models <= usable - left:
        why += f", with {left} of {usable} left to the front end"
    if fitting < share:
        why += (
            f"; memory allows {max(1, fitting)}: {_mib(each)} each as a first guess (3 x file + 200 MiB), of "
            f"{_mib(budget)} for this model ({machine.memory_source})"
        )
    return Guess(
        device="cpu",
        engine=engine,
        instances=instances,
        max_batch=_CPU_MAX_BATCH,
        reasons={
            "device": "The model runs on the CPU: its settings ask for no other device.",
            "engine": engine_why,
            "instances": _sentence(why),
            "threads_per_instance": f"Workers of one thread beat one worker of many at small batches: {_MEASURED}.",
            "max_batch": "On CPUs most of the gain is there at 8 rows, and a larger batch delays its first row more.",
            "max_wait_ms": "A CPU worker gains little from waiting: an idle one takes whatever is there.",
            "pipeline_depth": "One batch at a time per worker keeps requests in the queue, where they can still be "
            "reordered or dropped.",
        },
    )


def guess_device(model: ModelSettings) -> Guess:
    """One worker drives a GPU that the settings name. How many rows its memory holds is not known before measuring."""
    engine, engine_why = _engine(model)
    device = model.workers.device
    overlaps = engine == "torch" and device.startswith("cuda")
    return Guess(
        device=device,
        engine=engine,
        instances=1,
        max_batch=_DEVICE_MAX_BATCH,
        pipeline_depth=2 if overlaps else 1,
        pin=False,
        reasons={
            "device": f"The model's settings ask for `{device}`.",
            "engine": engine_why,
            "instances": "One worker keeps a device busy, and a second would hold its weights a second time.",
            "threads_per_instance": "The device computes; the worker's one thread only feeds it.",
            "max_batch": f"{_DEVICE_MAX_BATCH} rows, until the model has been measured on this device.",
            "max_wait_ms": "While the device is busy the next batch fills by itself: waiting adds nothing.",
            "pipeline_depth": "A second batch is copied to the device while the first computes."
            if overlaps
            else "This engine starts a batch when the one before it is done.",
        },
    )


def guess_simulated(model: ModelSettings) -> Guess:
    """The simulated device is one device of its own; only its memory model limits the batch."""
    device = model.simulated
    rows, why = _DEVICE_MAX_BATCH, "The simulated device has no memory model, so 64 rows, as for an unknown GPU."
    if device is not None and device.memory_total_bytes and device.memory_per_row_bytes:
        free = int(device.memory_total_bytes * _DEVICE_MEMORY_SHARE) - device.memory_weights_bytes
        fitting = free // device.memory_per_row_bytes
        rows = min(_DEVICE_BATCH_CAP, max(1, fitting))
        why = (
            f"85 % of {_mib(device.memory_total_bytes)} less {_mib(device.memory_weights_bytes)} of weights holds "
            f"{max(0, fitting)} rows of {device.memory_per_row_bytes} bytes; at least 1, at most {_DEVICE_BATCH_CAP}."
        )
    return Guess(
        device="simulated",
        engine="simulated",
        instances=1,
        max_batch=rows,
        pin=False,
        reasons={
            "device": "The simulated device stands for hardware of its own and takes no share of the CPUs.",
            "engine": "The model is a description of a device, run by the simulated engine.",
            "instances": "There is one simulated device, and one worker drives it.",
            "threads_per_instance": "The device computes, or sleeps, in one thread.",
            "max_batch": why,
            "max_wait_ms": "While the device is busy the next batch fills by itself: waiting adds nothing.",
            "pipeline_depth": "The simulated device starts a batch when the one before it is done.",
        },
    )


def for_throughput(guess: Guess) -> Guess:
    """The same device for work that waits already, where nobody looks at the latency of a single row."""
    open_batch = guess.device == "cpu" and not guess.alternatives
    rows = max(guess.max_batch, _THROUGHPUT_BATCH) if open_batch else guess.max_batch
    reasons = {
        "pipeline_depth": "A second batch lies ready in the worker, so that it never waits for the next one.",
    }
    if rows != guess.max_batch:
        reasons["max_batch"] = f"Throughput counts and latency does not; beyond {rows} rows a CPU gains nothing more."
    return replace(guess, max_batch=rows, pipeline_depth=_THROUGHPUT_DEPTH, reasons=guess.reasons | reasons)


def _engine(model: ModelSettings) -> tuple[str, str]:
    """The engine and why. A model that no engine takes has been refused where its file was looked at."""
    name = engine_of(model) or "onnxruntime"
    known = ENGINE_NAMES.get(name, name)
    if model.engine != "auto":
        return name, f"The model's settings ask for {known}."
    _, dot, suffix = model.file.rpartition(".")
    return name, f"{known} is the engine for {dot}{suffix} files." if dot else f"{known} is the engine of first choice."


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


def _mib(count: int) -> str:
    return f"{count / MIB:.0f} MiB"
