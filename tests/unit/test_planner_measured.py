"""Measured plans: their words, what somebody fixed, and how models share CPUs."""

import re
from typing import Any

import pytest
from msgspec.structs import replace

from hybrid.config import BatchingSettings, ModelSettings, SimulatedSettings, WorkerSettings
from hybrid.facts import CpuBudget, MachineFacts
from hybrid.planner.explain import WIDTH, plan_table
from hybrid.planner.measures import EngineProfile, MemoryLine, ModelProfile, Probe, Timing
from hybrid.planner.plan import first_plan
from hybrid.planner.questions import own_memory
from hybrid.planner.shares import split_cpus
from hybrid.planner.types import Plan, PlanOverrides

GIB = 1 << 30
PLACES = [(2, 1, 1), (2, 1, 8), (2, 1, 32), (1, 2, 1), (1, 2, 8), (1, 2, 32)]


def machine(cpus: int = 2) -> MachineFacts:
    ids = tuple(range(cpus))
    return MachineFacts(CpuBudget(cpus, ids, cpus, None, None, cpus, f"all {cpus}"), 16 * GIB, "host memory")


def serial(instances: int, threads: int, rows: int) -> float:
    return 0.002 + 0.005 * rows * (0.7 + 0.3 / threads)


def parallel(instances: int, threads: int, rows: int) -> float:
    return 0.002 + 0.005 * rows / threads * (1 + 0.4 * (instances > 1))


def profile(law: Any = serial, scale: float = 1.0, engine: str = "onnxruntime", **more: Any) -> EngineProfile:
    timings = tuple(Timing(Probe(engine, *place), scale * law(*place)) for place in PLACES)
    return EngineProfile(engine, "1", timings=timings, **more)


def plan(
    *engines: EngineProfile,
    on: MachineFacts | None = None,
    flags: Any = None,
    missing: tuple[str, ...] = (),
    measured_at: str = "",
    **settings: Any,
) -> Plan:
    model = ModelSettings(name="m", file="a.onnx", **settings)
    found = ModelProfile("m", "", "", 32, engines or (profile(),), 9.0, measured_at, missing)
    measured = {("m", "1"): found}
    (made,) = first_plan(on or machine(), [model], None, flags, measured=measured)
    return made


def test_times_that_were_taken_in_a_crowd_are_said_to_be() -> None:
    crowded = profile()
    crowded = replace(crowded, timings=tuple(replace(one, waited=0.42) for one in crowded.timings))
    assert (
        "in 9 s, while other processes had 42% of the CPU time that was asked for." in plan(crowded).reasons["device"]
    )
    assert "other processes" not in plan().reasons["device"]


def test_an_engine_without_times_was_not_beaten() -> None:
    untimed = EngineProfile("openvino", "1")
    assert plan(profile(), untimed).reasons["engine"] == "ONNX Runtime is the one engine that was measured."
    slow = profile(scale=50.0, engine="openvino")
    assert plan(profile(), slow).reasons["engine"].startswith("ONNX Runtime: ")


def test_an_engine_that_could_be_installed_is_named_with_the_command() -> None:
    missing = plan(missing=("openvino",)).reasons["engine"]
    assert "OpenVINO takes such files too and is not installed: after `pip install openvino`" in missing
    assert "install" not in plan().reasons["engine"]


def test_without_an_objective_a_quick_model_need_not_be_quicker_than_anybody_notices() -> None:
    quick, slow = plan(profile(scale=0.01)), plan(profile())
    assert "within a p99 of 20 ms" in quick.reasons["instances"]
    assert quick.reasons["device"].endswith("with a p99 within 20 ms, which nobody notices.")
    assert slow.reasons["device"].endswith("10 times one row alone at its fastest.")


def test_the_times_decide_between_workers_and_threads() -> None:
    assert (plan().instances, plan().threads_per_instance) == (2, 1)
    threads = plan(profile(parallel))
    assert (threads.instances, threads.threads_per_instance, threads.cores) == (1, 2, ((0, 1),))


def test_every_number_says_what_was_measured() -> None:
    made = plan(slo_p99_ms=200)
    reasons = made.reasons
    assert reasons["instances"].startswith("2 workers x 1 thread: 1.")
    assert "what 1 worker x 2 threads carries within a p99 of 190 ms" in reasons["instances"]
    assert "rows/s, " in reasons["instances"]
    assert "on 1 thread and in" in reasons["threads_per_instance"]
    assert reasons["max_batch"].startswith(f"Batch {made.max_batch} within a p99 of 190 ms: ")
    assert "a batch costs about" in reasons["max_batch"]
    assert "6 batch times were taken in 9 s. They predict what each of 72 settings" in reasons["device"]
    assert (
        "in 9 s, with 32 elements along variable dimensions. They predict"
        in plan(profile(variable=True)).reasons["device"]
    )
    assert "within 190 ms, 95 % of the objective" in reasons["device"]
    assert all(text.endswith(".") and "\n" not in text for text in reasons.values())
    assert "no `slo_p99_ms` is set" in plan().reasons["device"]
    earlier = plan(measured_at="2026-11-30T19:58:05+0000")
    assert "batch times were taken in 9 s (2026-11-30 19:58). They" in earlier.reasons["device"]


def test_one_worker_tells_its_mean_at_half_load() -> None:
    assert "At half of that load a row takes" in plan(profile(parallel)).reasons["instances"]


def test_the_table_shows_the_plan_and_what_it_was_weighed_against() -> None:
    made = plan()
    first, *others = made.alternatives
    assert first.chosen
    assert (first.instances, first.max_batch) == (made.instances, made.max_batch)
    assert not any(one.chosen for one in others)
    assert (others[-1].instances, others[-1].threads_per_instance, others[-1].max_batch) == (1, 2, 1)
    text = plan_table([made], machine())
    assert max(map(len, text.splitlines())) <= WIDTH
    assert f"> 2 x 1, batch {made.max_batch}" in text
    assert "weighed against" in text
    assert [line.endswith(", the default of frameworks") for line in text.splitlines()].count(True) == 1
    assert "`hybrid tune MODEL` looks for the best by load tests" in " ".join(text.split())
    assert [one.is_default for one in made.alternatives].count(True) == 1
    assert "weighed against" not in plan_table(first_plan(machine(), [ModelSettings(name="m")], None), machine())


def test_what_somebody_fixed_moves_no_objective_and_is_nobodys_default() -> None:
    """One setting, one prediction, whether it was chosen or asked for."""
    free = plan()
    fixed = plan(
        flags=PlanOverrides(
            instances=free.instances, threads_per_instance=free.threads_per_instance, max_batch=free.max_batch
        )
    )
    (only,) = fixed.alternatives
    assert (only.rps, only.p99_ms) == (free.alternatives[0].rps, free.alternatives[0].p99_ms)
    assert not only.is_default
    assert "They predict what it carries" in fixed.reasons["device"]


def test_the_batch_says_what_full_ones_would_make() -> None:
    made = plan()
    assert "(" in made.reasons["max_batch"]
    assert f"({made.alternatives[0].rps:.0f} against " in made.reasons["max_batch"]
    assert "Full batches without a pause would make" in made.reasons["max_batch"]
    assert re.search(rf" Next to it batch {made.max_batch - 1} carries \d+ and batch ", made.reasons["max_batch"])


def test_the_faster_engine_serves_and_says_by_how_much() -> None:
    made = plan(profile(), profile(scale=0.5, engine="openvino"), slo_p99_ms=1000)
    assert made.engine == "openvino"
    why = made.reasons["engine"]
    assert re.match(r"OpenVINO: its best setting carries (1\.9|2\.0)\dx what ONNX Runtime's does", why)
    assert re.search(r" it runs a batch of \d+ in [\d.]+ ms, ONNX Runtime in [\d.]+ ms\.$", why)
    tight = plan(profile(), profile(scale=0.5, engine="openvino"), slo_p99_ms=18).reasons["engine"]
    assert tight.endswith("because slower batches leave less room within the p99.")


def test_a_fixed_engine_is_kept_and_its_own_times_count() -> None:
    made = plan(profile(), profile(parallel, 0.5, "openvino"), engine="onnxruntime")
    assert (made.engine, made.instances) == ("onnxruntime", 2)
    unmeasured = plan(profile(engine="openvino"), engine="onnxruntime")
    assert unmeasured.alternatives == ()


def test_fixed_numbers_stay_and_the_rest_is_chosen_for_them() -> None:
    made = plan(flags=PlanOverrides(threads_per_instance=2))
    assert (made.instances, made.threads_per_instance) == (1, 2)
    assert plan(flags=PlanOverrides(max_batch=3)).max_batch == 3
    off = plan(batching=BatchingSettings(enabled=False))
    assert (off.max_batch, off.batching) == (1, "off")
    assert plan(workers=WorkerSettings(instances=1)).instances == 1


def test_fixed_workers_get_the_threads_that_serve_most() -> None:
    one = plan(profile(parallel), flags=PlanOverrides(instances=1))
    assert (one.instances, one.threads_per_instance) == (1, 2)
    two = plan(profile(parallel), flags=PlanOverrides(instances=2))
    assert (two.instances, two.threads_per_instance) == (2, 1)


def test_fixed_workers_share_the_cpus_with_other_models() -> None:
    rising, none = (10.0, 20.0, 30.0, 40.0), (0.0, 10.0, 11.0, 12.0)
    a, b = ("a", "1"), ("b", "1")
    assert split_cpus({a: rising, b: none}, 4, {a: 1, b: 2}) == {a: 2, b: 2}
    assert split_cpus({a: rising, b: rising}, 2, {a: 1, b: 2}) == {a: 1, b: 2}
    flat = (1.0,)  # the other one was not measured
    assert split_cpus({a: flat, b: flat}, 4, {a: 1, b: 3}) == {a: 1, b: 3}
    assert split_cpus({a: flat, b: flat}, 5, {a: 1, b: 1}) == {a: 3, b: 2}


def test_what_was_measured_does_not_contradict_what_somebody_fixed() -> None:
    small = plan(profile(), slo_p99_ms=30, batching=BatchingSettings(early_trigger=8))
    assert small.early_trigger == small.max_batch < 8
    assert small.reasons["early_trigger"].startswith("Set by the model's settings to 8, but a full batch")
    wide = {"slo_p99_ms": 2000}
    assert plan(**wide).max_batch > 10
    assert 1 < plan(**wide, batching=BatchingSettings(queue_rows=10)).max_batch <= 10


def test_illegal_batches_fixed_rows_and_memory_bound_the_batch() -> None:
    alone = plan(profile(batching_fault="row 2 differs by 0.5"))
    assert (alone.max_batch, alone.reasons["max_batch"]) == (1, "Rows run alone: row 2 differs by 0.5.")
    fixed = plan(profile(fixed_rows=8))
    assert (fixed.max_batch, fixed.reasons["max_batch"]) == (8, "The model is made for batches of exactly 8.")
    small = plan(profile(memory=MemoryLine(GIB, 2 * GIB)))
    assert small.max_batch <= 2
    assert "memory holds 2 rows: 85% of 16.0 GiB for 2 workers, less 1024 MiB" in small.reasons["max_batch"]


def test_only_failures_are_as_good_as_nothing() -> None:
    failed = EngineProfile("onnxruntime", "1", timings=(Timing(Probe("onnxruntime", 2, 1, 1), 9e9, failure="killed"),))
    assert plan(failed).alternatives == ()
    assert plan(failed).max_batch == 8


def test_a_device_waits_for_nobody_and_is_bounded_by_its_memory() -> None:
    device = SimulatedSettings(fixed_ms=6, per_row_ms=0.4, memory_total_bytes=24 * GIB)
    model = ModelSettings(name="g", engine="simulated", simulated=device)
    timings = tuple(Timing(Probe("simulated", 1, 1, b, "simulated"), (6 + 0.4 * b) / 1000) for b in (1, 8, 32))
    flat = tuple(Timing(Probe("simulated", 1, 1, b, "simulated"), max(b, 8) / 1000) for b in (1, 2, 4, 8, 16, 32))
    engine = EngineProfile("simulated", "1", "simulated", timings, MemoryLine(2 * GIB, GIB // 2))
    measured = {("g", "1"): ModelProfile("g", "", "", 0, (engine,))}
    (made,) = first_plan(machine(), [model], None, measured=measured)
    assert (made.device, made.instances, made.max_batch, made.max_wait_ms) == ("simulated", 1, 36, 0.0)
    assert "memory holds 36 rows" in made.reasons["max_batch"]
    assert "half of one row's time" in made.reasons["max_wait_ms"]
    assert own_memory(model, machine()) == 24 * GIB
    engine = EngineProfile("simulated", "1", "simulated", flat, MemoryLine(2 * GIB, GIB // 2))
    measured = {("g", "1"): ModelProfile("g", "", "", 0, (engine,))}
    (made,) = first_plan(machine(), [model], None, measured=measured)
    assert "Up to about 8 rows a batch takes hardly longer than one row." in made.reasons["max_batch"]


@pytest.mark.parametrize(("together", "instances"), [(1.97, 1), (1.8, 2)])
def test_more_workers_on_a_gpu_must_gain_something(together: float, instances: int) -> None:
    slower = {1: 1.0, 2: together, 3: 3.0, 4: 4.0}
    sizes = (1, 4, 8, 16, 32, 64, 128, 256)
    timings = tuple(
        Timing(Probe("torch", count, 1, rows, "cuda:0"), (0.006 + 0.0004 * rows) * slower[count])
        for count in slower
        for rows in sizes
    )
    made = plan(
        EngineProfile("torch", "1", "cuda:0", timings),
        engine="torch",
        slo_p99_ms=3000.0,
        workers=WorkerSettings(device="cuda:0"),
    )
    assert made.instances == instances
    must_gain = "More workers on one device must gain 4%: each holds the weights once more."
    assert (must_gain in made.reasons["instances"]) == (instances == 1)


def test_cpus_go_to_the_model_that_gains() -> None:
    flat, rising = (10.0, 10.0, 10.0, 10.0), (10.0, 20.0, 30.0, 40.0)
    stairs = (10.0, 10.0, 40.0, 40.0)
    assert split_cpus({("a", "1"): flat, ("b", "1"): rising}, 4) == {("a", "1"): 1, ("b", "1"): 3}
    assert split_cpus({("a", "1"): rising, ("b", "1"): rising}, 4) == {("a", "1"): 2, ("b", "1"): 2}
    assert split_cpus({("a", "1"): stairs, ("b", "1"): flat}, 4)["a", "1"] == 3
    assert split_cpus({("a", "1"): flat, ("b", "1"): flat}, 4) == {("a", "1"): 2, ("b", "1"): 2}
    assert split_cpus({("a", "1"): rising, ("b", "1"): rising}, 1) == {("a", "1"): 1, ("b", "1"): 1}


@pytest.mark.slow
def test_measured_models_share_the_machine() -> None:
    def stuck(instances: int, threads: int, rows: int) -> float:
        return 0.005 * rows * instances  # co-running gains nothing

    def engine(law: Any) -> EngineProfile:
        places = [*((i, 1, b) for i in (1, 2, 6) for b in (1, 8, 32)), *((1, 6, b) for b in (1, 8, 32))]
        timings = tuple(Timing(Probe("onnxruntime", *place), law(*place)) for place in places)
        return EngineProfile("onnxruntime", "1", timings=timings)

    models = [ModelSettings(name="stuck", file="a.onnx"), ModelSettings(name="gains", file="b.onnx")]
    measured = {
        (m.name, "1"): ModelProfile(m.name, "", "", 0, (engine(law),))
        for m, law in zip(models, (stuck, serial), strict=True)
    }
    first, second = first_plan(machine(6), models, None, measured=measured)
    assert second.instances * second.threads_per_instance > first.instances * first.threads_per_instance
    assert {cpu for cores in first.cores for cpu in cores}.isdisjoint(cpu for cores in second.cores for cpu in cores)
