"""Machine and models in, one plan per model out, each number with its reason. Pure.

A plan is made in two steps. First a `Guess` per model says how it would run if nobody had an opinion; then `_settle`
lets model.toml, profile and flags fix numbers, derives the rest and writes the plan. A guess that comes from measuring
the model on this machine goes through the same second step. Nothing here reads a file, a clock or the machine.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from msgspec import structs

from hybrid.config import ModelSettings, engines_for
from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.planner.fitting import PROCESS_BYTES, least_worker_bytes, refuse_beyond_memory
from hybrid.planner.guess import (
    MIB,
    Guess,
    for_throughput,
    guess_cpu,
    guess_device,
    guess_simulated,
    has_own_device,
    is_simulated,
)
from hybrid.planner.layers import Choices, Layer, layers_of
from hybrid.planner.measured import measured_guess
from hybrid.planner.measures import MemoryLine, ModelProfile
from hybrid.planner.placement import Demand, place
from hybrid.planner.questions import gains, questions_for
from hybrid.planner.search import choose
from hybrid.planner.shares import Key, key_of, share_cpus
from hybrid.planner.space import timings_of
from hybrid.planner.types import Objective, Plan, PlanOverrides, Profile

_QUEUE_BYTES: Final = 256 * MIB
_QUEUE_ROWS_FLOOR: Final = 512
_MAX_PREPROCESS: Final = 8
_PREPROCESS_MEMORY: Final = 0.25
_STATIC_WAIT_MS: Final = 10.0


def first_plan(
    machine: MachineFacts,
    models: Sequence[ModelSettings],
    profile: Profile | None,
    flags: PlanOverrides | None = None,
    file_bytes: Mapping[str, int] | None = None,
    objective: Objective = "latency",
    measured: Mapping[Key, ModelProfile] | None = None,
) -> tuple[Plan, ...]:
    """Plan every model on this machine; those that were measured by their times, the others by rules.

    Args:
        machine: What there is.
        models: What is served, in the order of the plans; each version of a model is one of its own.
        profile: Overrides for this kind of machine.
        flags: Overrides from the command line, for every model.
        file_bytes: Size of each model file by model name; a missing one counts as 0.
        objective: What the first guess aims at; fixed numbers stay as they are.
        measured: What was measured of a model, by its name and version; for other models rules must do.

    Raises:
        ConfigError: two models share name and version, or the overrides contradict each other or the memory.
    """
    _refuse_twins(models)
    flags, measured = flags or PlanOverrides(), measured or {}
    layers = {key_of(m): layers_of(m, profile, flags, has_own_device(m), key_of(m) in measured) for m in models}
    models = [_with_engine(m, layers[key_of(m)]) for m in models]
    choices = {key: Choices(those) for key, those in layers.items()}
    questions = questions_for(machine, models, choices, measured, objective)
    on_cpu = [m for m in models if not has_own_device(m)]
    curves = {key: gains(question) for key, question in questions.items()} if len(on_cpu) > 1 else {}
    shares = share_cpus(machine, on_cpu, choices, curves, questions)
    sizes = file_bytes or {}
    guesses = {key_of(m): _guess(m, machine, shares, sizes.get(m.name, 0)) for m in models}
    for model in models:
        key = key_of(model)
        if key in questions:
            # A device of its own has no share, and all CPUs for what is done beside it.
            question = structs.replace(questions[key], cpus=shares.get(key, questions[key].cpus))
            guesses[key] = measured_guess(model, choose(question, timings_of(question)), measured[key])
    if objective == "throughput":
        guesses = {key: for_throughput(guess) for key, guess in guesses.items()}
    demands = [_demand(machine, m, guesses[key_of(m)], choices[key_of(m)], shares.get(key_of(m))) for m in models]
    for model, demand in zip(models, demands, strict=True):
        key = key_of(model)
        line = _memory(measured.get(key), guesses[key].engine) if demand.on_cpu else None
        each = PROCESS_BYTES if is_simulated(model) else least_worker_bytes(sizes.get(model.name, 0), line)
        fixed = "instances", choices[key].number("instances") or 1, choices[key].source("instances")
        refuse_beyond_memory(machine, model.name, fixed, each)
    placements = place(machine, demands)
    return tuple(
        _settle(machine, model, guesses[key_of(model)], choices[key_of(model)], demand, placement, objective)
        for model, demand, placement in zip(models, demands, placements, strict=True)
    )


def _with_engine(model: ModelSettings, layers: tuple[Layer, ...]) -> ModelSettings:
    """The model with the engine that somebody fixed. Settled first: what an engine can do shapes the guess."""
    fixed = Choices(layers).fixed("engine")
    if fixed is None:
        return model
    source, engine = fixed
    takers = ("simulated",) if is_simulated(model) else engines_for(structs.replace(model, engine="auto"))
    if takers and engine not in takers:
        expected = " or ".join(takers)
        raise ConfigError(f"model `{model.name}`: `engine` {engine} ({source}) does not take it; expected {expected}")
    return structs.replace(model, engine=cast(Any, engine))


def _guess(model: ModelSettings, machine: MachineFacts, shares: Mapping[Key, int], file_bytes: int) -> Guess:
    if is_simulated(model):
        return guess_simulated(model)
    if has_own_device(model):
        return guess_device(model)
    return guess_cpu(model, machine, shares[key_of(model)], len(shares), file_bytes)


def _refuse_twins(models: Sequence[ModelSettings]) -> None:
    seen: set[Key] = set()
    for model in models:
        if key_of(model) in seen:
            raise ConfigError(f"two models are called `{model.name}`; give one of them another `name` or `version`")
        seen.add(key_of(model))


def _demand(machine: MachineFacts, model: ModelSettings, guess: Guess, choices: Choices, share: int | None) -> Demand:
    """Settle workers, threads and pinning, which all models must agree on before cores are handed out.

    `share` is the CPUs of a model that runs on them.
    """
    threads = choices.settle("threads_per_instance", guess.threads_per_instance, guess.reasons["threads_per_instance"])
    fitting, why = guess.instances, guess.reasons["instances"]
    if share is not None and choices.fixed("instances") is None and share // threads < fitting:
        fitting = max(1, share // threads)
        fits = "not even one fits" if threads > share else f"{fitting} can run"
        why += f" With {threads} threads each, {fits}."
    instances = choices.settle("instances", fitting, why)
    usable = machine.cpu.usable
    if guess.device == "cpu" and instances * threads > usable:
        choices.reasons["instances"] += (
            f" Warning: {instances} x {threads} threads are more than {usable} usable CPUs, so they take turns."
        )
    pin = choices.settle("pin", guess.pin, "")
    source = choices.reasons.pop("pin")
    return Demand(model.name, guess.device == "cpu", instances, threads, pin, source)


def _memory(measured: ModelProfile | None, engine: str) -> MemoryLine | None:
    found = measured.engines if measured is not None else ()
    return next((one.memory for one in found if one.engine == engine), None)


def _settle(
    machine: MachineFacts,
    model: ModelSettings,
    guess: Guess,
    choices: Choices,
    demand: Demand,
    placement: tuple[tuple[tuple[int, ...], ...], str],
    objective: Objective,
) -> Plan:
    """Fix the remaining numbers in the order in which they depend on each other, and check them together."""
    reasons = choices.reasons
    reasons["device"] = guess.reasons["device"]
    fixed_engine = choices.fixed("engine")
    reasons["engine"] = guess.reasons["engine"] if fixed_engine is None else f"Set by {fixed_engine[0]}."
    cores, reasons["cores"] = placement
    batching = choices.settle("batching", "dynamic", "Requests that wait together run together.")
    max_batch, max_wait_ms, early_trigger = _batch_numbers(guess, choices, batching)
    queue_rows = choices.settle("queue_rows", *_queue_rows(max_batch, demand.instances))
    queue_bytes = choices.settle("queue_bytes", *_queue_bytes(machine))
    preprocess = _preprocess(machine, model, choices, objective)
    depth = choices.settle("pipeline_depth", guess.pipeline_depth, guess.reasons["pipeline_depth"])
    length, reasons["static_length"] = _static_length(model, batching, max_batch, reasons)
    edges, reasons["size_edges"] = _size_edges(model, batching)
    _refuse_above(model.name, choices, "early_trigger", early_trigger, "max_batch", max_batch)
    _refuse_above(model.name, choices, "max_batch", max_batch, "queue_rows", queue_rows)
    return Plan(
        model=model.name,
        version=model.version,
        device=guess.device,
        engine=guess.engine,
        instances=demand.instances,
        threads_per_instance=demand.threads,
        max_batch=max_batch,
        max_wait_ms=max_wait_ms,
        early_trigger=early_trigger,
        batching=batching,
        queue_rows=queue_rows,
        queue_bytes=queue_bytes,
        preprocess_processes=preprocess,
        cores=cores,
        size_edges=edges,
        pipeline_depth=depth,
        reasons=reasons,
        static_length=length,
        alternatives=guess.alternatives,
    )


def _batch_numbers(guess: Guess, choices: Choices, batching: str) -> tuple[int, float, int]:
    """max_batch, max_wait_ms and early_trigger. With batching off, numbers set for it do not count."""
    if batching == "off":
        why = f"Batching is off ({choices.source('batching')}), so every row runs alone and at once."
        choices.reasons.update(dict.fromkeys(("max_batch", "max_wait_ms", "early_trigger"), why))
        return 1, 0.0, 1
    max_batch = choices.settle("max_batch", guess.max_batch, guess.reasons["max_batch"])
    wait, why = guess.max_wait_ms, guess.reasons["max_wait_ms"]
    if batching == "static":
        wait, why = _STATIC_WAIT_MS, "A static batch costs the same however full it is, so it waits a little for rows."
    max_wait_ms = choices.settle("max_wait_ms", wait, why)
    early = choices.settle("early_trigger", max_batch, "Equal to max_batch: only a full batch ends a wait early.")
    if early > max_batch and choices.fixed("max_batch") is None:
        # Nobody contradicts himself here, and the times, which decide the batch, must not keep a server from starting.
        choices.reasons["early_trigger"] = (
            f"Set by {choices.source('early_trigger')} to {early}, but a full batch, of {max_batch}, leaves anyway."
        )
        early = max_batch
    return max_batch, max_wait_ms, early


def _queue_rows(max_batch: int, instances: int) -> tuple[int, str]:
    rows = 64 * max_batch * instances
    if rows <= _QUEUE_ROWS_FLOOR:
        return _QUEUE_ROWS_FLOOR, f"At least {_QUEUE_ROWS_FLOOR} rows, so that a short burst is queued, not refused."
    return rows, f"64 full batches per worker ({instances}): beyond that the wait helps nobody, so refuse early."


def _queue_bytes(machine: MachineFacts) -> tuple[int, str]:
    eighth = machine.memory_limit_bytes // 8
    if eighth < _QUEUE_BYTES:
        return max(1, eighth), f"An eighth of the memory limit ({machine.memory_source}): waiting data stays small."
    return _QUEUE_BYTES, "Enough for bursts of large requests, and at most an eighth of the memory limit."


def _preprocess(machine: MachineFacts, model: ModelSettings, choices: Choices, objective: Objective) -> int:
    if model.preprocess.text is None and model.preprocess.image is None:
        # Not to be overridden: a profile that sets it for all models means those that have such a step.
        choices.reasons["preprocess_processes"] = "The model takes tensors as they come; nothing is preprocessed."
        return 0
    usable = machine.cpu.usable
    processes = min(_MAX_PREPROCESS, max(1, usable // 4))
    why = (
        f"One process per four of the {usable} usable CPUs, at least 1 and at most {_MAX_PREPROCESS}: preprocessing "
        "costs far less than the model."
    )
    if objective == "throughput" and model.preprocess.image is not None:
        processes = max(1, usable // 2)
        why = f"One process per two of the {usable} usable CPUs: decoding images keeps pace with the workers."
    fitting = max(1, int(_PREPROCESS_MEMORY * machine.memory_limit_bytes) // PROCESS_BYTES)
    if fitting < processes:
        processes, why = fitting, f"As many as a quarter of the memory holds ({machine.memory_source})."
    processes = choices.settle("preprocess_processes", processes, why)
    fixed = "preprocess_processes", choices.number("preprocess_processes") or 1, choices.source("preprocess_processes")
    refuse_beyond_memory(machine, model.name, fixed, PROCESS_BYTES)
    return processes


def _static_length(model: ModelSettings, batching: str, rows: int, reasons: dict[str, str]) -> tuple[int, str]:
    """The one length of padded inputs. Adds to the reason for static batching what shape that is."""
    settings, text = model.batching, model.preprocess.text
    if batching != "static":
        return 0, "Only static batching fixes a length."
    if not settings.pad_inputs:
        reasons["batching"] += f" Every batch is run with exactly {rows} rows."
        return 0, "No input may be padded, so rows are as long as they come."
    length = settings.static_length or (text.max_tokens if text is not None else 0)
    where = f"model `{model.name}`: `batching.static_length`"
    if not length:
        raise ConfigError(f"{where}: missing; expected the one length to which static batching fills rows up")
    if text is not None and length < text.max_tokens:
        raise ConfigError(
            f"{where}: expected at least `preprocess.text.max_tokens` ({text.max_tokens}), got {length}; "
            "lower max_tokens to cut texts"
        )
    reasons["batching"] += f" Every batch is run with exactly {rows} rows of length {length}."
    why = "Set by the model's settings." if settings.static_length else "`max_tokens`, the longest text there is."
    return length, why


def _size_edges(model: ModelSettings, batching: str) -> tuple[tuple[int, ...], str]:
    edges = model.batching.size_edges
    if list(edges) != sorted(set(edges)):
        raise ConfigError(f"model `{model.name}`: `batching.size_edges`: expected rising numbers, got {list(edges)}")
    if batching == "static":
        return (), "One size class: static batching gives every row the same length."
    if edges:
        return edges, "Set by the model's settings: requests of like size share a batch, so padding stays small."
    return edges, "None yet: learned from the sizes of live requests, where these vary."


def _refuse_above(model: str, choices: Choices, key: str, value: int, limit_key: str, limit: int) -> None:
    if value > limit:
        raise ConfigError(
            f"model `{model}`: `{key}` {value} ({choices.source(key)}) must not be above "
            f"`{limit_key}` {limit} ({choices.source(limit_key)})"
        )
