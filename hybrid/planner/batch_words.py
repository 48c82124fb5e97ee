"""The largest batch of a measured plan in words. Pure; part of `measured`."""

from typing import Final

from hybrid.planner.guess import MIB
from hybrid.planner.latency import turning_point
from hybrid.planner.measures import EngineProfile, MemoryLine
from hybrid.planner.ranking import VARIABLE_BATCH_GAIN, Rated
from hybrid.planner.search import Choice
from hybrid.planner.space import rows_in_memory, usable_bytes
from hybrid.planner.wording import ms, rates, ratio, within

_HARDLY_LONGER: Final = 1.3
_ABOUT: Final = VARIABLE_BATCH_GAIN


def batch_reason(choice: Choice, engine: EngineProfile) -> str:
    """Why this many rows: what fewer and more would carry, what memory holds, what a batch costs."""
    setting, question = choice.setting, choice.known.question
    if engine.fixed_rows is not None:
        return f"The model is made for batches of exactly {engine.fixed_rows}."
    if engine.batching_fault:
        return f"Rows run alone: {engine.batching_fault.rstrip('.')}."
    if question.max_batch is not None:
        return f"Fixed at {setting.max_batch}."
    parts = []
    if choice.smaller is not None:
        smaller, best = choice.smaller, choice.rated
        parts.append(f"{ratio(best, smaller)} what batch {smaller.setting.max_batch} carries ({rates(best, smaller)})")
    limit = rows_in_memory(engine.memory, question.memory_bytes, setting.instances)
    if engine.memory is not None and limit < 2 * setting.max_batch:
        parts.append(_memory(engine.memory, limit, question.memory_bytes, setting.instances))
    elif choice.larger is not None:
        parts.append(_larger(choice.rated, choice.larger))
    text = f"Batch {setting.max_batch}{within(choice)}: {'; '.join(parts) or 'the largest that was considered'}."
    return text + _nearby(choice) + _cost(choice) + _back_to_back(choice)


def _nearby(choice: Choice) -> str:
    """The next batches, because the best one is one of many that are nearly as good."""
    near, best = choice.nearby, choice.rated
    if not near or choice.known.question.objective == "throughput":
        return ""
    text = " and ".join(f"batch {one.setting.max_batch} carries {one.rps:.0f}" for one in near)
    if all(one.rps < (1.0 - _ABOUT) * best.rps for one in near):
        return f" Next to it {text} rows/s."
    return (
        f" Next to it {text} rows/s, about as much: the smallest is taken that comes within {_ABOUT:.0%} of the most "
        "also when times are some percent longer or shorter than measured."
    )


def _cost(choice: Choice) -> str:
    """What rows cost on this hardware, which is why the batch is not another one."""
    setting, model = choice.setting, choice.known.by_engine[choice.setting.engine]
    shape = (setting.instances, setting.threads)
    own = [one for one in model.timings if (one.probe.instances, one.probe.threads) == shape]
    corner = turning_point([one.probe.rows for one in own], [one.seconds for one in own])
    one_s, at_s = (choice.known.seconds(setting, rows) for rows in (1, max(1, round(corner or 1.0))))
    if corner is not None and round(corner) > 1 and at_s <= _HARDLY_LONGER * one_s:
        return f" Up to about {corner:.0f} rows a batch takes hardly longer than one row."
    if setting.device != "cpu" or setting.threads > 1:
        return ""
    return f" On one worker alone a batch costs about {ms(model.fixed_s)}, and {ms(model.per_row_s)} for each row."


def _back_to_back(choice: Choice) -> str:
    """Why less is carried than the batch times seem to allow."""
    if choice.known.question.objective == "throughput":
        return ""
    most = choice.known.server(choice.setting).capacity_rps
    return f" Full batches without a pause would make {most:.0f} rows/s; at that rate requests at random times wait."


def _larger(best: Rated, larger: Rated) -> str:
    gain = larger.rps / max(best.rps, 1e-12) - 1.0
    gains_words = (
        f"would gain {gain:.0%}" if gain >= 0.005 else "gains nothing" if gain > -0.02 else f"carries {-gain:.0%} less"
    )
    slower = larger.batch_s / best.batch_s
    late = ", too long for many who wait for it" if gain <= -0.02 else ""
    return f"batch {larger.setting.max_batch} {gains_words}, and when full takes {slower:.1f}x as long{late}"


def _memory(line: MemoryLine, limit: int, memory_bytes: int, instances: int) -> str:
    among = f" for {instances} workers" if instances > 1 else ""
    share = usable_bytes(memory_bytes / instances, line.base_bytes) / (memory_bytes / instances)
    return (
        f"memory holds {limit} rows: {share:.0%} of {memory_bytes / (1024 * MIB):.1f} GiB{among}, less "
        f"{line.base_bytes / MIB:.0f} MiB of weights and overhead each, at {line.per_row_bytes / MIB:.1f} MiB per row"
    )
