"""From measured times to the numbers of a plan, each with the measurement behind it in words. Pure.

Owns the wording of what the search found. Knows no rule of the search.
"""

from math import isfinite
from typing import Final

from msgspec.structs import replace

from hybrid.config import ModelSettings
from hybrid.planner.batch_words import batch_reason
from hybrid.planner.fitted import SHORTEST_OBJECTIVE_S, SLOWEST_TIMES_SINGLE
from hybrid.planner.guess import Guess
from hybrid.planner.measures import ModelProfile, Setting
from hybrid.planner.queueing import mean_latency_s
from hybrid.planner.ranking import Rated
from hybrid.planner.search import INSTANCES_GAIN, Choice
from hybrid.planner.types import Alternative
from hybrid.planner.wording import all_busy, engine_title, full_batch, ms, rates, ratio, shape_of, within

_MUCH_MORE: Final = 1.3


def measured_guess(model: ModelSettings, choice: Choice, profile: ModelProfile) -> Guess:
    """The chosen setting as the numbers of a plan, with reasons."""
    setting = choice.setting
    engine = next(one for one in choice.known.question.engines if one.engine == setting.engine)
    own_device = setting.device != "cpu"
    overlaps = setting.engine == "torch" and setting.device.startswith("cuda")
    return Guess(
        device="simulated" if setting.engine == "simulated" else setting.device,
        engine=setting.engine,
        instances=setting.instances,
        max_batch=setting.max_batch,
        threads_per_instance=setting.threads,
        max_wait_ms=setting.max_wait_ms,
        pipeline_depth=2 if overlaps else 1,
        pin=not own_device,
        alternatives=_table(choice),
        reasons={
            "device": _device_reason(model, choice, profile),
            "engine": _engine_reason(choice) + _missing(profile),
            "instances": _instances_reason(choice),
            "threads_per_instance": _threads_reason(choice),
            "max_batch": batch_reason(choice, engine),
            "max_wait_ms": _wait_reason(choice),
            "pipeline_depth": "A second batch is copied to the device while the first computes."
            if overlaps
            else "One batch at a time per worker keeps requests in the queue, where they can still be reordered or "
            "dropped.",
        },
    )


def _table(choice: Choice) -> tuple[Alternative, ...]:
    others = [one for one in choice.alternatives if one.setting != choice.default.setting]
    rows = [choice.rated, *others] + ([choice.default] if choice.default.setting != choice.setting else [])
    question = choice.known.question
    fixed = (question.instances, question.threads, question.max_batch) != (None, None, None)
    return tuple(
        Alternative(
            engine=one.setting.engine,
            instances=one.setting.instances,
            threads_per_instance=one.setting.threads,
            max_batch=one.setting.max_batch,
            rps=round(one.rps, 1),
            p50_ms=round(one.p50_s * 1000.0, 2),
            p99_ms=round(one.p99_s * 1000.0, 2),
            measured=one.measured,
            chosen=one is choice.rated,
            is_default=one.setting == choice.default.setting and not fixed,
        )
        for one in rows
    )


def _device_reason(model: ModelSettings, choice: Choice, profile: ModelProfile) -> str:
    if choice.setting.engine == "simulated":
        where = "A simulated device stands for hardware of its own"
    elif choice.setting.device == "cpu":
        where = "The model runs on the CPU, as its settings say"
    else:
        where = f"The model's settings ask for `{choice.setting.device}`"
    took = f" in {profile.took_s:.0f} s" if profile.took_s >= 1 else ""
    variable = any(engine.variable for engine in profile.engines)
    what = "tokens per row" if model.preprocess.text is not None else "elements along variable dimensions"
    length = f", with {profile.length} {what}" if profile.length and variable else ""
    when = f" ({profile.measured_when})" if profile.measured_when else ""
    times = f"{choice.measured} batch times were taken{took}{when}{length}{_crowd(profile)}"
    return f"{where}. {times}. They predict what {_space(choice)} carries; {_aim(choice)}.{_beside(choice)}"


def _space(choice: Choice) -> str:
    question = choice.known.question
    free = {
        "engine": len(question.engines) > 1,
        "workers": question.instances is None and question.cpus > 1,
        "threads": question.threads is None and question.cpus > 1,
        "largest batch": question.max_batch is None,
    }
    return (
        f"each of {choice.space} settings ({', '.join(k for k, v in free.items() if v)})" if choice.space > 1 else "it"
    )


def _beside(choice: Choice) -> str:
    beside = choice.known.beside
    if not beside.cpu_s:
        return ""
    question = choice.known.question
    turn_s = choice.known.turn_s(choice.setting, question.cpus + question.spare_cpus)
    turn = f", and each batch {ms(turn_s)} for its way to a worker and back" if turn_s else ""
    row = f" Besides, each row takes {ms(beside.cpu_s)} of CPU time to be taken in, preprocessed and answered"
    return f"{row}{turn}; all rates count it in."


def _crowd(profile: ModelProfile) -> str:
    """What a reader must know of times that others had their part in."""
    share = profile.crowded_share
    return f", while other processes had {share:.0%} of the CPU time that was asked for" if share else ""


def _aim(choice: Choice) -> str:
    known = choice.known
    if known.question.objective == "throughput":
        return "the aim is rows per second"
    if known.question.slo_s is not None:
        return f"the aim is the most rows per second with a p99 within {ms(known.slo_s)}, 95 % of the objective"
    short = known.slo_s <= SHORTEST_OBJECTIVE_S
    why = "which nobody notices" if short else f"{SLOWEST_TIMES_SINGLE:.0f} times one row alone at its fastest"
    return f"no `slo_p99_ms` is set, so the aim is the most rows per second with a p99 within {ms(known.slo_s)}, {why}"


def _engine_reason(choice: Choice) -> str:
    own, timed = engine_title(choice.setting.engine), choice.known.by_engine
    others = {one.setting.engine: one for one in reversed(choice.alternatives)}
    others.pop(choice.setting.engine, None)
    if not others:
        return f"{own} is the one engine that was measured." if len(timed) == 1 else f"{own} was the fastest by far."
    best = max(others.values(), key=lambda one: one.rps)
    other, rows, shape = engine_title(best.setting.engine), choice.setting.max_batch, shape_of(choice.setting)
    text = f"{own}: its best setting carries {ratio(choice.rated, best)} what {other}'s does{within(choice)} "
    text += f"({rates(choice.rated, best)})."
    same = replace(choice.setting, engine=best.setting.engine)
    if same.device != best.setting.device or choice.known.engine(same.engine).fixed_rows is not None:
        return text
    own_s, other_s = choice.rated.batch_s, choice.known.seconds(same, rows)
    text += f" On {shape}{all_busy(same)} it runs a batch of {rows} in {ms(own_s)}, {other} in {ms(other_s)}"
    if not within(choice) or choice.rated.rps * own_s < _MUCH_MORE * best.rps * other_s:
        return f"{text}."
    return f"{text}; what they carry differs by more, because slower batches leave less room within the p99."


def _missing(profile: ModelProfile) -> str:
    """Engines that may well be faster, which only measuring can tell: 2.3 times for minilm (bench.planner_fixed)."""
    return "".join(
        f" {engine_title(name)} takes such files too and is not installed: after `pip install {name}` "
        "a start that measures compares it."
        for name in profile.missing
    )


def _instances_reason(choice: Choice) -> str:
    best, setting = choice.rated, choice.setting
    if choice.known.question.instances is not None:
        return f"{shape_of(setting)}, the number of workers being fixed."
    rival = _rival(choice)
    if rival is None:
        share = "1 CPU" if choice.known.question.cpus == 1 else f"{choice.known.question.cpus} CPUs"
        way = f"the only way on this model's share of {share}" if setting.device == "cpu" else "the only way here"
        return f"{shape_of(setting)} is {way}: {best.rps:.0f} rows/s{within(choice)}."
    how = "from measured batch times" if best.measured and rival.measured else "partly from predicted batch times"
    text = f"{shape_of(setting)}: {ratio(best, rival)} what {shape_of(rival.setting)} carries{within(choice)} "
    text += f"({rates(best, rival)}, {how}; {full_batch(best)} takes {ms(best.batch_s)}{all_busy(setting)}, "
    text += f"{full_batch(rival)} of the other {ms(rival.batch_s)}{all_busy(rival.setting)})."
    if setting.device != "cpu" and setting.instances == 1 and 0 < rival.rps / best.rps - 1 <= INSTANCES_GAIN:
        text += f" More workers on one device must gain {INSTANCES_GAIN:.0%}: each holds the weights once more."
    return text + _idle(choice) + _at_half_load(choice)


def _at_half_load(choice: Choice) -> str:
    """What one worker's rows take when there is less to do, by the closed form; for several there is none."""
    setting, rows = choice.setting, choice.setting.max_batch
    if setting.instances > 1 or rows == 1 or setting.max_wait_ms:
        return ""
    batch_s = choice.known.server(setting).batch_s
    single_s = float(batch_s[0])
    per_row_s = (float(batch_s[-1]) - single_s) / (rows - 1)
    mean_s = mean_latency_s(choice.rated.rps / 2, single_s - per_row_s, per_row_s)
    return f" At half of that load a row takes {ms(mean_s)} in the mean." if isfinite(mean_s) else ""


def _rival(choice: Choice) -> Rated | None:
    """What a reader would have tried instead: one worker on all threads, else the next best shape."""
    shape = (choice.setting.instances, choice.setting.threads)
    own = [one for one in choice.alternatives if one.setting.engine == choice.setting.engine]
    others = [one for one in own if (one.setting.instances, one.setting.threads) != shape]
    fat = [one for one in others if one.setting.instances == 1 and one.setting.threads > choice.setting.threads]
    return next(iter(fat or others), None)


def _idle(choice: Choice) -> str:
    known, setting = choice.known, choice.setting
    cpus = known.question.cpus
    idle = cpus - setting.instances * setting.threads
    if setting.device != "cpu" or idle <= 0 or known.question.threads is not None:
        return ""
    slow = known.by_engine[setting.engine].slow_down
    held_up_s = known.server(_with(setting, cpus)).held_up_s
    wait = f" and the slowest answers would wait up to {ms(held_up_s)} for a CPU," if held_up_s else ""
    stay = f" {idle} of {cpus} CPUs {'stays' if idle == 1 else 'stay'} idle"
    text = f"{stay}: if workers kept all busy, a batch would take {slow:.2f}x as long as alone,{wait}"
    all_busy = [one for one in choice.alternatives if one.setting.instances * one.setting.threads >= cpus]
    close = any(one.rps > choice.rated.rps for one in all_busy)  # the table shows it, so "more" would contradict it
    return f"{text} which costs {'about what' if close else 'more than'} it would bring."


def _threads_reason(choice: Choice) -> str:
    setting, known = choice.setting, choice.known
    if setting.device != "cpu":
        return "The device computes; the worker's one thread only feeds it."
    if known.question.threads is not None:
        return "The number of threads is fixed."
    if known.question.cpus == 1:
        return "This model's share is one CPU."
    fewer, more = (1, setting.threads) if setting.threads > 1 else (1, known.question.cpus)
    rows = setting.max_batch
    alone = [known.seconds(_with(setting, count), rows) for count in (fewer, more)]
    text = f"One worker alone runs a batch of {rows} in {ms(alone[0])} on 1 thread and in {ms(alone[1])} on {more}: "
    gain = alone[0] / alone[1]
    so = ""
    if setting.threads > 1 and gain >= 0.8 * more:
        so = ", which is worth it"
    elif setting.threads == 1 and setting.instances > 1 and gain < more:
        so = ", so workers of one thread carry more"
    return f"{text}{gain:.2f}x as fast for {more}x the CPUs{so}."


def _wait_reason(choice: Choice) -> str:
    waiting, setting = choice.waiting, choice.setting
    if setting.device == "cpu":
        return (
            "While workers are busy the next batch fills by itself. One that is idle takes whatever is there: were it "
            "to wait for more, each row would wait as long as that lasts, to save less than what a batch costs."
        )
    if waiting is None:
        return "While the device is busy the next batch fills by itself: waiting adds nothing."
    if setting.max_wait_ms:
        return (
            f"Waiting up to {setting.max_wait_ms:g} ms, half of one row's time, gains: {rates(choice.rated, waiting)}."
        )
    change = waiting.rps / max(choice.rated.rps, 1e-12) - 1.0
    return (
        f"Waiting up to {waiting.setting.max_wait_ms:g} ms, half of one row's time, would change the goodput by "
        f"{change:+.1%}: while the device is busy the next batch fills by itself."
    )


def _with(setting: Setting, threads: int) -> Setting:
    return Setting(setting.engine, 1, threads, setting.max_batch, device=setting.device)
