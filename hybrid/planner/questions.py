"""What the search is asked for a model, and what its answer would be on fewer CPUs. Pure.

Owns how settings, fixed numbers and memory become a question. Knows no rule of the search and no wording.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.facts import MachineFacts
from hybrid.planner.fitted import models as fitted_models
from hybrid.planner.guess import has_own_device
from hybrid.planner.layers import Choices
from hybrid.planner.measures import ModelProfile, Setting
from hybrid.planner.queueing import rough_goodput_rps
from hybrid.planner.shares import Key, cpu_budget, key_of
from hybrid.planner.space import SearchQuestion, batches, pairs, timings_of
from hybrid.planner.types import Objective

#: The rest of an objective is for what nobody measures: the network, a moment in which something else runs.
_MODEL_SHARE_OF_SLO: Final = 0.95
_UNKNOWN_BYTES: Final = 1 << 60
#: CPUs of a share that stay idle, as far as it is looked at what they gain the others: a front end needs one or so.
_IDLE_CPUS: Final = 1
#: What a model's settings call a device -> the kind of GPU behind it; numbers count within a kind.
_KINDS: Final = {"cuda": "cuda", "gpu": "intel", "auto": "intel"}


class Fixed(Struct, frozen=True):
    """Numbers that somebody fixed; the search takes the best of the rest."""

    engine: str | None = None
    instances: int | None = None
    threads: int | None = None
    max_batch: int | None = None
    queue_rows: int | None = None


def question_for(
    model: ModelSettings,
    profile: ModelProfile,
    cpus: int,
    memory_bytes: int,
    objective: Objective = "latency",
    fixed: Fixed | None = None,
    spare_cpus: int = 0,
) -> SearchQuestion:
    """What the search is asked for a model that may use `cpus` CPUs, with `spare_cpus` beside, and `memory_bytes`."""
    fixed = fixed or Fixed()
    engines = tuple(one for one in profile.engines if fixed.engine in (None, one.engine))
    return SearchQuestion(
        engines=engines,
        cpus=cpus,
        memory_bytes=memory_bytes,
        objective=objective,
        largest_batch=fixed.queue_rows,  # a batch that no queue can hold would be refused
        slo_s=None if model.slo_p99_ms is None else _MODEL_SHARE_OF_SLO * model.slo_p99_ms / 1000.0,
        instances=fixed.instances,
        threads=fixed.threads,
        max_batch=fixed.max_batch if model.batching.enabled else 1,
        spare_cpus=spare_cpus,
    )


def own_memory(model: ModelSettings, machine: MachineFacts) -> int:
    """Memory of the device that a model has for itself: the simulated one's, else that of the GPU with its number.

    Where nobody knows it is taken to be without end; then what failed when measured bounds the batch.
    """
    if model.simulated is not None:
        return model.simulated.memory_total_bytes or _UNKNOWN_BYTES
    device, _, number = model.workers.device.lower().replace(".", ":").partition(":")
    address = _KINDS.get(device), int(number) if number.isdigit() else 0
    gpu = next((gpu for gpu in machine.gpus if (gpu.kind, gpu.index) == address), None)
    if gpu is None or not gpu.memory_total_bytes:
        return _UNKNOWN_BYTES
    return min(gpu.memory_total_bytes, machine.memory_limit_bytes) if gpu.integrated else gpu.memory_total_bytes


def gains(question: SearchQuestion) -> tuple[float, ...]:
    """Roughly what the model carries with 1, 2, ... `cpus` CPUs, in rows per second; never falling.

    Raises:
        ValueError: no engine has times.
    """
    known = fitted_models(question, timings_of(question))
    best = [0.0] * (question.cpus + 1)
    for engine in question.engines:
        for instances, threads in pairs(question, engine) if engine.engine in known.by_engine else ():
            setting = Setting(engine.engine, instances, threads, batches(question, engine, instances)[-1])
            used = min(question.cpus, instances * threads)
            for cpus in range(used, min(question.cpus, used + _IDLE_CPUS) + 1):
                carried = rough_goodput_rps(known.server(setting, cpus), known.slo_s)
                best[cpus] = max(best[cpus], carried)
    for used in range(1, len(best)):
        best[used] = max(best[used], best[used - 1])
    return tuple(best[1:])


def questions_for(
    machine: MachineFacts,
    models: Sequence[ModelSettings],
    choices: Mapping[Key, Choices],
    measured: Mapping[Key, ModelProfile],
    objective: Objective,
) -> dict[Key, SearchQuestion]:
    """What to choose from, for each model that has times of the engine that it is to run with."""
    on_cpu = max(1, sum(not has_own_device(model) for model in models))
    questions = {}
    for model in models:
        key, numbers = key_of(model), choices[key_of(model)]
        if key not in measured:
            continue
        fixed = Fixed(
            engine=None if model.engine == "auto" else model.engine,
            instances=numbers.number("instances"),
            threads=numbers.number("threads_per_instance"),
            max_batch=numbers.number("max_batch"),
            queue_rows=numbers.number("queue_rows"),
        )
        memory = own_memory(model, machine) if has_own_device(model) else machine.memory_limit_bytes // on_cpu
        cpus = cpu_budget(machine, on_cpu)
        spare_cpus = machine.cpu.usable - cpus
        question = question_for(model, measured[key], cpus, memory, objective, fixed, spare_cpus)
        if any(not timing.failure for timing in timings_of(question)):
            questions[key] = question
    return questions
