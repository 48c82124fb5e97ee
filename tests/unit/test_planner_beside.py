"""Work outside of the workers: what it takes from them, and what is chosen with it."""

import numpy as np
import pytest
from msgspec.structs import replace

from hybrid.config import ModelSettings, WorkerSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.fitted import Models, models
from hybrid.planner.measures import Beside, EngineProfile, ModelProfile, Probe, Setting, Timing
from hybrid.planner.plan import first_plan
from hybrid.planner.questions import gains
from hybrid.planner.queueing import goodput_rps, replay
from hybrid.planner.search import choose
from hybrid.planner.space import SearchQuestion, timings_of
from hybrid.planner.types import Plan

GIB = 1 << 30
PICTURES = Beside(0.002, 0.00001)
PLACES = [(2, 1, 1), (2, 1, 8), (2, 1, 64), (1, 2, 1), (1, 2, 8), (1, 2, 64), (1, 1, 1), (1, 1, 8), (1, 1, 64)]


def law(instances: int, threads: int, rows: int) -> float:
    """A small model: 0.2 ms per row, and two workers take a quarter more time each than one alone."""
    return (0.001 + 0.0002 * rows / threads**0.5) * (1.25 if instances > 1 else 1.0)


def question(beside: Beside, slo_s: float | None = 0.025, **more: object) -> SearchQuestion:
    timings = tuple(Timing(Probe("onnxruntime", *place), law(*place)) for place in PLACES)
    engine = EngineProfile("onnxruntime", "1", timings=timings, beside=beside, **more)  # type: ignore[arg-type]
    return SearchQuestion((engine,), 2, 64 * GIB, slo_s=slo_s)


def known(beside: Beside) -> Models:
    asked = question(beside)
    return models(asked, timings_of(asked))


def setting(instances: int, threads: int, max_batch: int = 8) -> Setting:
    return Setting("onnxruntime", instances, threads, max_batch)


def test_nothing_beside_is_nothing_added() -> None:
    free = known(Beside())
    assert free.server(setting(2, 1)).batch_s.tolist() == free.curve(setting(2, 1)).tolist()


def test_workers_on_all_cpus_wait_for_their_share_of_the_work_beside() -> None:
    busy = known(Beside(0.0004, 0.0001))
    added_s = busy.server(setting(2, 1)).batch_s - busy.curve(setting(2, 1))
    assert added_s.tolist() == pytest.approx([0.0004 * rows for rows in range(1, 9)])  # 2 x rows, on 2 CPUs


def test_threads_wait_for_the_one_that_is_held_up() -> None:
    busy = known(Beside(0.0004, 0.0001))
    added_s = busy.server(setting(1, 2)).batch_s - busy.curve(setting(1, 2))
    assert added_s.tolist() == pytest.approx([0.75 * 0.0004 * rows for rows in range(1, 9)])
    # per row of both workers half of 0.4 ms, per row of the one with two threads three quarters of it


def test_each_batch_is_handed_over_however_many_rows_it_has() -> None:
    handed, free = known(Beside(0.0004, 0.0001, 0.0007)), known(Beside(0.0004, 0.0001))
    added_s = handed.server(setting(2, 1)).batch_s - free.server(setting(2, 1)).batch_s
    assert added_s.tolist() == pytest.approx([1.5 * 0.0007] * 8)  # caches are cold where all CPUs have a worker


def test_a_worker_waits_for_its_next_batch_though_a_cpu_is_idle() -> None:
    lone, waiting = setting(1, 1), known(Beside(0.0001, 0.0001, 0.0007))
    assert waiting.server(lone).batch_s.tolist() == pytest.approx((waiting.curve(lone) + 0.0007).tolist())


@pytest.mark.parametrize(("shape", "held_s"), [((2, 1), 0.0075), ((1, 2), 0.0075), ((1, 1), 0.0)])
def test_where_workers_have_all_cpus_the_slowest_answers_wait_for_one(shape: tuple[int, int], held_s: float) -> None:
    handed = known(Beside(0.0001, 0.0001, 0.0007)).server(setting(*shape))
    free = replace(handed, held_up_s=0.0)
    assert handed.held_up_s == pytest.approx(held_s)  # three tenths of the objective of 25 ms
    slow, fast = (replay([server], np.array([500.0])) for server in (handed, free))
    assert slow.tail_s - fast.tail_s == pytest.approx([held_s])
    assert slow.p50_s == fast.p50_s
    assert goodput_rps([handed], 0.025) == pytest.approx(goodput_rps([free], 0.025 - held_s), rel=0.02)


def test_a_device_computes_while_it_gets_its_next_batch_but_the_server_has_work_with_each() -> None:
    asked = question(Beside(0.0002, 0.0002, 0.04))
    (engine,) = asked.engines
    timings = tuple(replace(one, probe=replace(one.probe, device="cuda")) for one in engine.timings)
    gpu = models(replace(asked, engines=(replace(engine, device="cuda", timings=timings),)), timings)
    server = gpu.server(Setting("onnxruntime", 1, 1, 8, device="cuda"))
    assert server.held_up_s == 0.0
    # Two CPUs share half of the 40 ms, one loop has a quarter of them.
    assert server.batch_s.tolist() == pytest.approx([0.01 + 0.0002 * rows for rows in range(1, 9)])


def test_many_workers_keep_one_loop_busy_with_their_batches() -> None:
    asked = replace(question(Beside(0.0001, 0.00005, 0.0007)), cpus=128, instances=64)
    server = models(asked, timings_of(asked)).server(setting(64, 1, 1))
    assert server.capacity_rps <= 1.001 / (0.25 * 0.0007 + 0.00005)


def test_an_objective_that_one_row_just_holds_is_held_though_no_cpu_can_be_left() -> None:
    asked = replace(question(Beside(0.0001, 0.0001, 0.0007), slo_s=0.004), cpus=1)
    assert choose(asked, timings_of(asked)).rated.rps > 0.0
    tight, wide = (models(replace(asked, slo_s=slo_s), timings_of(asked)) for slo_s in (0.004, 0.008))
    assert tight.server(setting(1, 1)).held_up_s < wide.server(setting(1, 1)).held_up_s <= 0.3 * 0.008


def test_under_a_long_objective_it_is_as_long_as_slices_are() -> None:
    asked = question(Beside(0.0001, 0.0001, 0.0007), slo_s=1.0)
    assert models(asked, timings_of(asked)).server(setting(2, 1)).held_up_s == pytest.approx(0.008)


def test_a_cpu_that_no_worker_has_is_there_at_once() -> None:
    asked = replace(question(Beside(0.0001, 0.0001, 0.0007)), spare_cpus=1)
    assert models(asked, timings_of(asked)).server(setting(2, 1)).held_up_s == 0.0


def test_what_a_batch_costs_beside_is_a_reason_for_larger_ones() -> None:
    beside = Beside(0.0001, 0.00005)
    asked = [question(one, slo_s=1.0) for one in (beside, replace(beside, turn_s=0.005))]
    cheap, dear = (choose(one, timings_of(one)) for one in asked)
    assert dear.setting.max_batch > cheap.setting.max_batch


def test_a_cpu_that_stays_idle_does_it_for_nothing_as_far_as_it_goes() -> None:
    lone, both = setting(1, 1), (known(Beside(0.0001, 0.0001)), known(Beside(0.01, 0.0001)))
    assert both[0].server(lone).batch_s.tolist() == both[0].curve(lone).tolist()
    rows = np.arange(1, 9)
    assert both[1].server(lone).batch_s.tolist() == pytest.approx(((both[1].curve(lone) + 0.01 * rows) / 2).tolist())


def test_the_loop_has_one_cpu() -> None:
    slow = known(Beside(0.01, 0.01))
    assert slow.server(setting(1, 1)).batch_s.tolist() == pytest.approx([0.01 * rows for rows in range(1, 9)])


def test_a_device_of_its_own_leaves_all_cpus_to_it() -> None:
    asked = question(Beside(0.0002, 0.0002))
    (engine,) = asked.engines
    timings = tuple(replace(one, probe=replace(one.probe, device="cuda")) for one in engine.timings)
    asked = replace(asked, engines=(replace(engine, device="cuda", timings=timings),))
    gpu = models(asked, timings)
    where = Setting("onnxruntime", 1, 1, 8, device="cuda")
    assert gpu.server(where).batch_s.tolist() == gpu.curve(where).tolist()


def test_cpus_that_no_worker_gets_are_there_for_it() -> None:
    asked = replace(question(Beside(0.0004, 0.00001)), spare_cpus=1)
    spare = models(asked, timings_of(asked))
    crowded_s = known(Beside(0.0004, 0.00001)).server(setting(2, 1)).batch_s
    own_s = spare.curve(setting(2, 1))
    assert (spare.server(setting(2, 1)).batch_s < crowded_s).all()
    assert (spare.server(setting(2, 1)).batch_s >= own_s).all()


def test_what_a_model_gains_from_a_cpu_is_what_it_would_be_planned_to_carry() -> None:
    asked = question(Beside(0.0004, 0.00001))
    first, second = gains(asked)
    alone = replace(asked, cpus=1)
    assert first == pytest.approx(choose(alone, timings_of(alone)).rated.rps, rel=0.25)
    assert second > 1.3 * first  # with a CPU for the front end, too


def gpu_plan(cpus: int, beside: Beside) -> Plan:
    probes = [Probe("onnxruntime", 1, 1, rows, device="cuda") for rows in (1, 8, 32, 128)]
    timings = tuple(Timing(probe, 0.002 + 0.0005 * probe.rows) for probe in probes)
    profile = ModelProfile("m", "", "", 0, (EngineProfile("onnxruntime", "1", "cuda", timings, beside=beside),))
    machine = MachineFacts(
        CpuBudget(cpus, tuple(range(cpus)), cpus, None, None, cpus, "all"),
        64 * GIB,
        "host memory",
        gpus=(GpuFacts(0, "A", 80 * GIB),),
    )
    model = ModelSettings(name="m", file="a.onnx", workers=WorkerSettings(device="cuda"))
    return first_plan(machine, [model], None, measured={("m", "1"): profile})[0]


def test_beside_a_gpu_all_cpus_of_the_machine_do_it() -> None:
    free, many, few = gpu_plan(16, Beside()), gpu_plan(16, PICTURES), gpu_plan(2, PICTURES)
    assert many.alternatives[0].rps == pytest.approx(free.alternatives[0].rps, rel=0.1)
    assert few.alternatives[0].rps == pytest.approx(0.95 * 2 / PICTURES.cpu_s, rel=0.1)


def test_what_is_promised_counts_it_and_a_cpu_is_left_to_the_server() -> None:
    alone, beside = (
        choose(asked, timings_of(asked)) for asked in (question(Beside()), question(Beside(0.00018, 0.00018)))
    )
    assert beside.rated.rps < 0.75 * alone.rated.rps
    assert (alone.setting.instances, beside.setting.instances, beside.setting.threads) == (2, 1, 1)
    rate = beside.rated.rps
    shape = beside.setting
    used = rate * (0.00018 + shape.threads * law(shape.instances, shape.threads, shape.max_batch) / shape.max_batch)
    assert used < 2.0  # CPUs: without the work beside, the same workers would be taken to carry more than there is


def test_engines_are_not_told_apart_by_it() -> None:
    asked = question(Beside(0.0002, 0.0001))
    other = replace(asked.engines[0], engine="openvino", beside=Beside(0.0004, 0.0003))
    found = models(replace(asked, engines=(*asked.engines, other)), timings_of(asked))
    assert (found.beside.cpu_s, found.beside.loop_s) == pytest.approx((0.0003, 0.0002))


def test_a_reader_is_told() -> None:
    cpu = CpuBudget(2, (0, 1), 2, None, None, 2, "all 2")
    machine = MachineFacts(cpu, 16 * GIB, "host memory")

    def reason(beside: Beside, name: str = "device") -> str:
        profile = ModelProfile("m", "", "", 0, question(beside).engines)
        (plan,) = first_plan(machine, [ModelSettings(name="m", file="a.onnx")], None, measured={("m", "1"): profile})
        return plan.reasons[name]

    assert (
        "Besides, each row takes 0.18 ms of CPU time to be taken in, preprocessed and answered; all rates count it in."
        in reason(Beside(0.00018, 0.00018))
    )
    handed = Beside(0.00018, 0.00018, 0.0007)
    assert "answered, and each batch 0.7 ms for its way to a worker and back; all rates" in reason(handed)
    idle = "1 of 2 CPUs stays idle: if workers kept all busy, a batch would take 1.27x as long as alone,"
    wait = "and the slowest answers would wait up to 6 ms for a CPU, which costs more than it would bring."
    assert f"{idle} {wait}" in reason(handed, "instances")
    assert "taken in" not in reason(Beside())


def test_without_an_objective_what_is_done_beside_counts_into_the_bound() -> None:
    asked = question(Beside(0.05, 0.001), slo_s=None)  # pictures of megapixels
    choice = choose(asked, timings_of(asked))
    assert choice.known.slo_s > 10 * 0.05
    assert choice.rated.rps > 0.5 * 2 / 0.05  # of what two CPUs do of it


@pytest.mark.parametrize("cpus", [1, 2])
def test_more_threads_than_there_are_do_not_make_more_of_the_cpus(cpus: int) -> None:
    asked = replace(question(Beside(0.05, 0.001)), cpus=cpus, instances=3, threads=8)
    many = models(asked, timings_of(asked)).server(setting(3, 8))
    assert many.capacity_rps <= cpus / 0.05 * 1.001
