"""The space, the search over it, and what it takes."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.planner.fitted import models
from hybrid.planner.latency import fit
from hybrid.planner.measures import EngineProfile, MemoryLine, Probe, Setting, Timing
from hybrid.planner.queueing import Server, goodput_rps
from hybrid.planner.search import Choice, Search, choose, fixed_batch
from hybrid.planner.space import SearchQuestion, batches, pairs, rows_in_memory, space, usable_bytes

GIB = 1 << 30
ENGINE = EngineProfile("onnxruntime", "1")
Law = Callable[[int, int, int], float]


def ask(cpus: int = 2, *engines: EngineProfile, memory: int = 64 * GIB, **more: object) -> SearchQuestion:
    return SearchQuestion(engines or (ENGINE,), cpus, memory, **more)  # type: ignore[arg-type]


def good_threads(instances: int, threads: int, rows: int) -> float:
    return 0.001 + 0.005 * rows * (0.02 + 0.98 / threads) * (1 + 0.9 * (instances > 1))


def good_workers(instances: int, threads: int, rows: int) -> float:
    return 0.002 + 0.005 * rows * (0.7 + 0.3 / threads)


def times(law: Law, probes: Sequence[Probe]) -> tuple[Timing, ...]:
    return tuple(Timing(probe, law(probe.instances, probe.threads, probe.rows)) for probe in probes)


def run(question: SearchQuestion, laws: dict[str, Law], limit: int = 100) -> tuple[Choice, list[Probe]]:
    search, asked = Search(question), []
    while probes := search.next():
        asked += probes
        assert len(asked) <= limit
        for probe in probes:
            search.tell(times(laws[probe.engine], [probe]))
    return search.choice(), asked


# --- the space --------------------------------------------------------------------------------------------------------


def test_on_two_cpus_there_are_72_settings() -> None:
    assert pairs(ask(), ENGINE) == ((1, 1), (1, 2), (2, 1))
    assert len(space(ask())) == 72


@pytest.mark.parametrize("cpus", [1, 3, 7, 16, 100, 128])
def test_threads_stay_within_the_share_and_all_cpus_can_be_used(cpus: int) -> None:
    found = pairs(ask(cpus), ENGINE)
    used = [instances * threads for instances, threads in found]
    assert max(used) == cpus
    assert {(1, 1), (cpus, 1), (1, cpus)} <= set(found)
    assert len(found) == len(set(found))


def test_fixed_numbers_leave_the_rest() -> None:
    assert pairs(ask(8, instances=3), ENGINE) == ((3, 1), (3, 2))
    assert pairs(ask(8, threads=4), ENGINE) == ((1, 4), (2, 4))
    assert pairs(ask(2, instances=4, threads=2), ENGINE) == ((4, 2),)  # more than there is: as asked for
    assert batches(ask(max_batch=13), ENGINE, 1) == (13,)
    assert batches(ask(largest_batch=4), ENGINE, 1) == (1, 2, 3, 4)


def test_what_the_model_cannot_do_is_not_there() -> None:
    assert batches(ask(), EngineProfile("e", "1", batching_fault="rows differ"), 1) == (1,)
    assert batches(ask(), EngineProfile("e", "1", fixed_rows=5), 1) == (5,)


@pytest.mark.parametrize(
    ("memory", "instances", "rows"),
    [(24 * GIB, 1, 36), (24 * GIB, 2, 16), (48 * GIB, 2, 36), (2 * GIB, 1, 0), (3 * GIB, 1, 1)],
)
def test_rows_in_memory(memory: int, instances: int, rows: int) -> None:
    line = MemoryLine(2 * GIB, GIB // 2)
    assert rows_in_memory(line, memory, instances) == rows


@given(st.floats(0.0, 1.2), st.integers(1, 512))
def test_headroom_is_15_percent_and_less_where_weights_fill_the_memory(base_share: float, rows_there: int) -> None:
    memory = 1 << 40
    line = MemoryLine(int(base_share * memory), max(1, int((1.0 - base_share) * memory / rows_there)))
    rows, used = rows_in_memory(line, memory, 1), usable_bytes(memory, line.base_bytes)
    assert 0.85 * memory <= used + 1 <= 0.92 * memory + 1
    assert rows == 0 or line.base_bytes + rows * line.per_row_bytes <= used
    if base_share <= 0.25:
        assert used == int(0.85 * memory)  # the formula as published
    if rows_there >= 12 and base_share < 0.6:
        assert rows >= 0.75 * rows_there - 1


def test_memory_bounds_batches_and_instances() -> None:
    engine = EngineProfile("e", "1", memory=MemoryLine(2 * GIB, GIB // 2))
    assert batches(ask(memory=24 * GIB), engine, 1)[-1] == 36
    assert {count for count, _ in pairs(ask(16, memory=12 * GIB), engine)} == {1, 2, 3, 4}
    assert pairs(ask(2, memory=GIB), engine) == ((1, 1), (1, 2))  # one must be tried


def test_a_device_has_few_instances_and_a_simulated_one_a_single_one() -> None:
    assert pairs(ask(64, device := EngineProfile("torch", "1", device="cuda:0")), device)[-1] == (4, 1)
    assert pairs(ask(64, device := EngineProfile("simulated", "1", device="simulated")), device) == ((1, 1),)
    sizes = batches(ask(1, device := EngineProfile("torch", "1", device="cuda:0")), device, 1)
    assert max(large / small for small, large in pairwise(sizes[8:])) < 1.13


# --- the search -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_seven_times_suffice_on_two_cpus() -> None:
    choice, asked = run(ask(slo_s=0.2), {"onnxruntime": good_workers})
    assert len(asked) <= 7
    assert (choice.setting.instances, choice.setting.threads) == (2, 1)
    choice, asked = run(ask(slo_s=0.2), {"onnxruntime": good_threads})
    assert len(asked) <= 7
    assert (choice.setting.instances, choice.setting.threads) == (1, 2)
    assert choice.default.setting.threads == 2
    assert choice.default.setting.max_batch == 1
    assert choice.rated.rps > choice.default.rps


@pytest.mark.slow
def test_a_tight_objective_asks_for_smaller_batches() -> None:
    tight, _ = run(ask(slo_s=0.03), {"onnxruntime": good_workers})
    loose, _ = run(ask(slo_s=0.5), {"onnxruntime": good_workers})
    assert tight.setting.max_batch < loose.setting.max_batch
    assert tight.rated.p99_s <= 0.031


@pytest.mark.slow
def test_the_faster_engine_is_taken() -> None:
    engines = (ENGINE, EngineProfile("openvino", "1"))

    def fast(instances: int, threads: int, rows: int) -> float:
        return 0.6 * good_workers(instances, threads, rows)

    choice, asked = run(ask(2, *engines), {"onnxruntime": good_workers, "openvino": fast})
    assert choice.setting.engine == "openvino"
    assert any(one.setting.engine == "onnxruntime" for one in choice.alternatives)
    assert len(asked) <= 14


def test_for_throughput_the_batch_stops_where_a_doubling_gains_under_5_percent() -> None:
    def law(instances: int, threads: int, rows: int) -> float:
        return (0.004 + 0.004 * rows) * (1.0 if threads == 1 else 0.9)  # 8 -> 16 gains 5.9 %, 16 -> 32 gains 3 %

    choice, _ = run(ask(objective="throughput"), {"onnxruntime": law})
    assert 10 <= choice.setting.max_batch <= 20
    assert choice.setting.instances == 2


@pytest.mark.slow
def test_what_failed_is_not_taken() -> None:
    def law(instances: int, threads: int, rows: int) -> float:
        return 0.01 + 0.001 * rows

    search = Search(ask(1, device := EngineProfile("torch", "1", device="cuda:0"), slo_s=1.0))
    while probes := search.next():
        search.tell(
            [
                Timing(probe, float("inf"), failure="out of memory") if probe.rows > 40 else times(law, [probe])[0]
                for probe in probes
            ]
        )
    choice = search.choice()
    assert choice.setting.device == device.device
    assert choice.setting.max_batch <= 128
    failed = min(one.probe.rows for one in choice.known.timings if one.failure and one.probe.instances == 1)
    assert choice.setting.max_batch < failed


def test_nothing_measured_ends_the_search() -> None:
    search = Search(ask())
    search.tell([Timing(probe, float("inf"), failure="no such file") for probe in search.next()])
    assert search.next() == ()
    with pytest.raises(ValueError, match="at least one"):
        search.choice()


@pytest.mark.slow
def test_times_that_are_known_are_not_taken_again() -> None:
    choice, asked = run(ask(), {"onnxruntime": good_workers})
    known = EngineProfile("onnxruntime", "1", timings=times(good_workers, asked))
    assert Search(ask(2, known)).next() == ()
    assert choose(ask(2, known), known.timings).setting == choice.setting


@pytest.mark.slow
def test_times_of_the_whole_machine_serve_a_share_of_it() -> None:
    _, asked = run(ask(8), {"onnxruntime": good_workers})
    choice = choose(ask(3), times(good_workers, asked))
    assert choice.setting.instances * choice.setting.threads <= 3


@pytest.mark.slow
def test_cpus_stay_idle_where_busy_ones_slow_the_others_down_by_more() -> None:
    def law(instances: int, threads: int, rows: int) -> float:
        busy = instances * threads
        return (0.002 + 0.004 * rows * (0.3 + 0.7 / threads)) * (1.0 if busy <= 4 else (busy / 4) ** 1.6)

    choice, _ = run(ask(8, slo_s=0.1), {"onnxruntime": law})
    assert choice.setting.instances * choice.setting.threads < 8
    assert choice.rated.rps >= 0.95 * max(one.rps for one in choice.alternatives)


def roofline(instances: int, threads: int, rows: int) -> float:
    """Few rows cost what reading the weights does; all busy cores share what memory gives."""
    busy = instances * threads
    work, reading = 0.0005 * rows * (0.1 + 0.9 / threads), 0.0018 * max(1 / threads, busy / 3)
    return 0.0003 + max(work, reading) * (1 + 0.2 * (busy - 1) / 3)


def share_of_best(law: Law, cpus: int, slo_s: float, largest: int) -> float:
    """Goodput of what is chosen over the best there is."""
    question = ask(cpus, slo_s=slo_s)
    chosen = run(question, {"onnxruntime": law})[0].setting
    settings = [one for one in space(question) if one.max_batch <= largest or one == chosen]
    curves = [[law(one.instances, one.threads, rows + 1) for rows in range(one.max_batch)] for one in settings]
    servers = [Server(np.array(curve), one.instances) for curve, one in zip(curves, settings, strict=True)]
    true = dict(zip(settings, goodput_rps(servers, slo_s), strict=True))
    return true[chosen] / max(true.values())


@pytest.mark.slow
@pytest.mark.parametrize("slo_s", [0.006, 0.01])
def test_what_serves_most_is_found_where_goodput_falls_off_cliffs(slo_s: float) -> None:
    assert share_of_best(roofline, 4, slo_s, largest=128) > 0.96


def steep(cpus: int, step_s: float, power: float) -> Law:
    """Some threads are thrice as fast as one or all of them, of which the times at the corners tell nothing."""

    def law(instances: int, threads: int, rows: int) -> float:
        useful = min(threads, 1 + (threads - 1) * (1 - np.exp(-rows / 1.5)) ** 0.3)
        busy = 1 + 0.5 * (instances * threads - 1) / (cpus - 1)
        return float((0.004 * rows * (0.02 + 0.98 / useful) + step_s * threads**power) * busy)

    return law


@pytest.mark.slow
def test_what_holds_an_objective_is_found_where_only_idle_workers_do() -> None:
    assert share_of_best(steep(12, 8e-5, 1.0), 12, 0.003, largest=2) > 0.9


def test_where_nothing_seems_to_hold_the_objective_it_is_asked_who_is_fast_at_all() -> None:
    search, law = Search(ask(64, slo_s=0.0026)), steep(64, 3e-5, 1.3)
    search.tell(times(law, search.next()))
    asked = search.next()
    assert {(one.instances, one.rows) for one in asked} == {(1, 1)}
    assert len({one.threads for one in asked}) == 3


@pytest.mark.slow
def test_near_rivals_are_timed_again_at_other_sizes() -> None:
    def law(instances: int, threads: int, rows: int) -> float:
        return (0.002 + 0.005 * rows) / threads * (1.0 + 0.04 * np.sin(7 * instances + 3 * threads + rows))

    choice, asked = run(ask(6, slo_s=0.08), {"onnxruntime": law})
    setting = choice.setting
    near = [one for one in asked if (one.instances, one.threads) == (setting.instances, setting.threads)]
    assert len(near) >= 6
    assert len(set(near)) >= 5
    assert len(asked) <= 0.1 * choice.space


def test_the_rows_of_a_fixed_batch_are_as_certain_as_the_batch() -> None:
    engine = EngineProfile("onnxruntime", "1", fixed_rows=8)
    probes = [Probe("onnxruntime", instances, threads, 8) for instances, threads in ((1, 1), (1, 2), (2, 1))]
    known = models(ask(2, engine), times(good_workers, probes))
    doubts = known.doubts(Setting("onnxruntime", 2, 1, 8))
    assert len(doubts) == 8
    assert len(set(doubts.tolist())) == 1


@pytest.mark.parametrize("fixed", [{"max_batch": 4}, {}])
def test_only_batches_that_may_be_are_timed_where_nothing_holds_the_objective(fixed: dict[str, int]) -> None:
    engine = ENGINE if fixed else EngineProfile("onnxruntime", "1", fixed_rows=4)
    _, asked = run(ask(16, engine, slo_s=0.001, **fixed), {"onnxruntime": good_workers})
    assert {one.rows for one in asked} == {4}
    assert len({one.threads for one in asked if one.instances == 1}) > 2


def test_a_model_of_fixed_rows_is_timed_with_no_other() -> None:
    choice, asked = run(
        ask(8, EngineProfile("onnxruntime", "1", fixed_rows=8), slo_s=0.2), {"onnxruntime": good_workers}
    )
    assert {one.rows for one in asked} == {8}
    assert choice.setting.max_batch == 8


def test_the_default_of_a_fixed_batch_has_it_too() -> None:
    choice, _ = run(ask(2, max_batch=4), {"onnxruntime": good_workers})
    assert choice.default.setting.max_batch == 4


def test_for_throughput_no_time_is_taken_far_beyond_the_knee() -> None:
    _, asked = run(ask(2, objective="throughput"), {"onnxruntime": lambda i, t, b: 0.002 * max(b, 4) / t**0.5})
    assert sorted({one.rows for one in asked} - {1, 8, 32})[-1:] <= [16]


# --- a fixed batch ----------------------------------------------------------------------------------------------------


def test_a_fixed_batch_is_split_where_threads_help_little() -> None:
    places = [Probe("e", i, t, b) for i, t in ((1, 1), (1, 8), (8, 1), (2, 4)) for b in (1, 4, 16)]
    model = fit(times(good_workers, places), 8)
    split = fixed_batch(model, 16)
    assert (split.instances, split.rows_each) == (8, 2)
    assert split.seconds == pytest.approx(good_workers(8, 1, 2), rel=0.15)
    assert split.seconds < 0.4 * good_workers(1, 8, 16)
    assert fixed_batch(model, 1).instances == 1


def test_a_fixed_batch_stays_whole_where_threads_help() -> None:
    places = [Probe("e", i, t, b) for i, t in ((1, 1), (1, 8), (8, 1), (2, 4)) for b in (1, 4, 16)]
    split = fixed_batch(fit(times(good_threads, places), 8), 16)
    assert (split.instances, split.threads) == (1, 8)
    assert np.isfinite(split.seconds)


def test_an_engine_that_comes_later_is_timed_too() -> None:
    first, later = ENGINE, EngineProfile("openvino", "1")
    _, asked = run(ask(2, first), {"onnxruntime": good_workers})
    known = EngineProfile("onnxruntime", "1", timings=times(good_workers, asked))
    half = {"onnxruntime": good_workers, "openvino": lambda i, t, b: good_workers(i, t, b) / 2}
    choice, more = run(ask(2, known, later), half)
    assert {probe.engine for probe in more[:4]} == {"openvino"}
    assert choice.setting.engine == "openvino"


def test_a_fixed_batch_that_failed_before_is_left_to_the_worker_to_report() -> None:
    probes = [Probe("onnxruntime", 2, 1, 1), Probe("onnxruntime", 1, 2, 1)]
    failure = Timing(Probe("onnxruntime", 1, 1, 16), float("inf"), failure="out of memory")
    known = EngineProfile("onnxruntime", "1", timings=(*times(good_workers, probes), failure))
    assert choose(ask(2, known, max_batch=32), known.timings).setting.max_batch == 32
    assert choose(ask(2, known), known.timings).setting.max_batch < 16


def test_where_rows_vary_in_length_a_larger_batch_must_gain_more() -> None:
    def law(instances: int, threads: int, rows: int) -> float:
        return 0.001 + 0.005 * rows

    fixed, _ = run(ask(2, slo_s=1.0), {"onnxruntime": law})
    variable = EngineProfile("onnxruntime", "1", variable=True)
    varying, _ = run(ask(2, variable, slo_s=1.0), {"onnxruntime": law})
    assert varying.setting.max_batch < fixed.setting.max_batch
