"""The first plan: what the rules say on machines that tests make up, and what holds on all of them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from hybrid.config import (
    BatchingSettings,
    ImageSettings,
    ModelSettings,
    PreprocessSettings,
    SimulatedSettings,
    TextSettings,
    WorkerSettings,
)
from hybrid.errors import ConfigError
from hybrid.facts import CpuBudget, MachineFacts
from hybrid.planner.placement import placement_order
from hybrid.planner.plan import first_plan
from hybrid.planner.prepare import file_bytes
from hybrid.planner.types import Plan, PlanOverrides, Profile

GIB = 1 << 30
MIB = 1 << 20
TEXT = PreprocessSettings(text=TextSettings())


def machine(usable: int = 2, cpus: tuple[int, ...] | None = None, memory: int = 16 * GIB, **more: Any) -> MachineFacts:
    ids = tuple(range(usable)) if cpus is None else cpus
    budget = CpuBudget(usable, ids, len(ids), None if usable == len(ids) else float(usable), None, len(ids), "test")
    return MachineFacts(cpu=budget, memory_limit_bytes=memory, memory_source="host memory", **more)


def model(name: str = "m", **settings: Any) -> ModelSettings:
    return ModelSettings(name=name, **settings)


def plan(of: ModelSettings, on: MachineFacts | None = None, **more: Any) -> Plan:
    (made,) = first_plan(on or machine(), [of], more.pop("profile", None), **more)
    return made


def numbers(made: Plan) -> tuple[int, int]:
    return made.instances, made.threads_per_instance


# --- the rules --------------------------------------------------------------------------------------------------------


def test_two_cpus() -> None:
    made = plan(model())
    assert numbers(made) == (2, 1)
    assert (made.device, made.engine, made.batching) == ("cpu", "onnxruntime", "dynamic")
    assert (made.max_batch, made.max_wait_ms, made.early_trigger) == (8, 0.0, 8)
    assert made.cores == ((0,), (1,))
    assert (made.queue_rows, made.queue_bytes, made.pipeline_depth) == (1024, 256 * MIB, 1)


@pytest.mark.parametrize(
    ("settings", "engine", "why"),
    [
        ({"file": "a.onnx"}, "onnxruntime", "ONNX Runtime is the engine for .onnx files."),
        ({"file": "a.XML"}, "openvino", "OpenVINO is the engine for .XML files."),
        ({"file": "a.pt2"}, "torch", "PyTorch is the engine for .pt2 files."),
        ({"file": "a.onnx", "engine": "openvino"}, "openvino", "The model's settings ask for OpenVINO."),
    ],
)
def test_the_engine_follows_settings_and_file(settings: dict[str, Any], engine: str, why: str) -> None:
    made = plan(model(**settings))
    assert (made.device, made.engine, made.reasons["engine"]) == ("cpu", engine, why)


def test_a_model_on_a_gpu_has_one_unpinned_worker_and_leaves_the_cpus_to_others() -> None:
    gpu = model("gpu", file="a.pt", workers=WorkerSettings(device="cuda:1"))
    first, second = first_plan(machine(2), [gpu, model("cpu")], None)
    assert (first.device, numbers(first), first.cores, first.pipeline_depth) == ("cuda:1", (1, 1), ((),), 2)
    assert (second.device, numbers(second), second.cores) == ("cpu", (2, 1), ((0,), (1,)))
    intel = plan(model(file="a.xml", workers=WorkerSettings(device="gpu")))
    assert (intel.device, intel.engine, intel.pipeline_depth) == ("gpu", "openvino", 1)


@pytest.mark.parametrize(("usable", "workers"), [(1, 1), (2, 2), (7, 7), (8, 7), (23, 22), (24, 22), (64, 62)])
def test_large_machines_leave_cpus_to_the_front_end(usable: int, workers: int) -> None:
    assert plan(model(), machine(usable, memory=64 * GIB)).instances == workers


def test_quota_below_affinity_means_no_pinning() -> None:
    made = plan(model(), machine(2, cpus=tuple(range(8))))
    assert made.instances == 2
    assert made.cores == ((), ())
    assert "quota" in made.reasons["cores"]


def test_pinned_ids_come_from_a_cpuset_with_gaps() -> None:
    assert plan(model(), machine(3, cpus=(1, 5, 9))).cores == ((1,), (5,), (9,))


def test_pinning_can_be_switched_off() -> None:
    made = plan(model(workers=WorkerSettings(pin=False)))
    assert made.cores == ((), ())
    assert "the model's settings" in made.reasons["cores"]


def test_memory_bounds_the_workers() -> None:
    # 3 x 500 MiB + 200 MiB = 1700 MiB each; 75 % of 8 GiB holds three.
    made = plan(model(), machine(6, memory=8 * GIB), file_bytes={"m": 500 * MIB})
    assert made.instances == 3
    assert "1700 MiB" in made.reasons["instances"]
    assert plan(model(), machine(6, memory=256 * MIB), file_bytes={"m": 500 * MIB}).instances == 1


def test_queue_bytes_stay_below_an_eighth_of_the_limit() -> None:
    assert plan(model(), machine(memory=GIB)).queue_bytes == 128 * MIB


def test_models_share_the_cpus_evenly() -> None:
    plans = first_plan(machine(5), [model("a"), model("b"), model("c")], None)
    assert [p.instances for p in plans] == [2, 2, 1]
    assert [p.cores for p in plans] == [((0,), (1,)), ((2,), (3,)), ((4,),)]


def test_two_models_on_two_cpus() -> None:
    first, second = first_plan(machine(2), [model("a"), model("b")], None)
    assert (first.cores, second.cores) == (((0,),), ((1,),))


def test_eight_models_on_eight_cpus_use_the_front_ends_cpu_too() -> None:
    plans = first_plan(machine(8), [model(str(i)) for i in range(8)], None)
    assert [p.cores for p in plans] == [((i,),) for i in range(8)]


def test_more_models_than_cpus() -> None:
    plans = first_plan(machine(2), [model(str(i)) for i in range(3)], None)
    assert [p.instances for p in plans] == [1, 1, 1]
    assert all(p.cores == ((),) for p in plans)
    assert "3 threads" in plans[0].reasons["cores"]
    assert "3 models share 2" in plans[0].reasons["instances"]


def test_what_one_model_fixes_is_taken_off_the_others_share() -> None:
    fixed = model("a", workers=WorkerSettings(instances=1, threads=2))
    plans = first_plan(machine(6), [fixed, model("b"), model("c")], None)
    assert [numbers(p) for p in plans] == [(1, 2), (2, 1), (2, 1)]
    assert plans[0].cores == ((0, 1),)


def test_fast_cores_and_first_siblings_are_taken_first() -> None:
    on = machine(6, core_groups=((0, 1), (2, 3), (4,), (5,)), efficiency_cpus=(4, 5))
    assert placement_order(on) == (0, 2, 1, 3, 4, 5)
    assert plan(model(workers=WorkerSettings(instances=2)), on).cores == ((0,), (2,))


def test_preprocess_processes() -> None:
    assert plan(model()).preprocess_processes == 0
    assert [plan(model(preprocess=TEXT), machine(n)).preprocess_processes for n in (1, 4, 12, 64)] == [1, 1, 3, 8]
    image = PreprocessSettings(image=ImageSettings(), processes=5)
    assert plan(model(preprocess=image)).preprocess_processes == 5


def test_simulated_device_takes_no_cpu_of_the_others() -> None:
    device = model("simulated:x", simulated=SimulatedSettings())
    first, second = first_plan(machine(2), [device, model("b")], None)
    assert (first.device, first.engine, first.instances, first.max_batch, first.cores) == (
        "simulated", "simulated", 1, 64, ((),),
    )  # fmt: skip
    assert second.cores == ((0,), (1,))


@pytest.mark.parametrize(("total", "weights", "rows"), [(10, 1, 15), (1000, 1, 128), (2, 5, 1)])
def test_memory_model_of_a_simulated_device(total: int, weights: int, rows: int) -> None:
    device = SimulatedSettings(
        memory_total_bytes=total * GIB, memory_weights_bytes=weights * GIB, memory_per_row_bytes=GIB // 2
    )
    assert plan(model(simulated=device)).max_batch == rows


def test_engine_named_simulated_without_a_table() -> None:
    assert plan(model(engine="simulated")).device == "simulated"


def test_size_edges_pass_through_and_must_rise() -> None:
    assert plan(model(batching=BatchingSettings(size_edges=(16, 32)))).size_edges == (16, 32)
    with pytest.raises(ConfigError, match=r"`batching.size_edges`: expected rising numbers, got \[32, 16\]"):
        plan(model(batching=BatchingSettings(size_edges=(32, 16))))


# --- who wins ---------------------------------------------------------------------------------------------------------


def profile(automatic: bool = False, model: dict[str, PlanOverrides] | None = None, **general: Any) -> Profile:
    return Profile("p", "p.toml", automatic=automatic, plan=PlanOverrides(**general), model=model or {})


def test_model_settings_override_the_guess() -> None:
    batching = BatchingSettings(max_batch=4, max_wait_s=0.002, early_trigger=2, queue_rows=99, queue_bytes=5)
    made = plan(model(batching=batching, workers=WorkerSettings(instances=1, threads=2, pipeline_depth=2)))
    assert numbers(made) == (1, 2)
    assert (made.max_batch, made.max_wait_ms, made.early_trigger) == (4, 2.0, 2)
    assert (made.queue_rows, made.queue_bytes, made.pipeline_depth, made.max_wait_s) == (99, 5, 2, 0.002)
    assert made.reasons["max_batch"] == "Set by the model's settings; the first guess was 8."
    assert plan(model(), profile=profile(pin=False)).reasons["cores"] == "Not pinned. Set by profile p [plan]."


def test_threads_alone_shrink_the_number_of_workers() -> None:
    assert numbers(plan(model(workers=WorkerSettings(threads=2)), machine(7))) == (3, 2)
    reason = plan(model(workers=WorkerSettings(threads=2)), machine(7)).reasons["instances"]
    assert reason.endswith("With 2 threads each, 3 can run.")
    scarce = plan(model(workers=WorkerSettings(threads=3)), machine(7, memory=600 * MIB))  # for two workers
    assert numbers(scarce) == (2, 3)
    reason = plan(model(workers=WorkerSettings(threads=4))).reasons["instances"]
    assert "With 4 threads each, not even one fits. Warning: 1 x 4 threads are more than 2 usable CPUs" in reason


def test_order_of_the_layers() -> None:
    of = model(batching=BatchingSettings(max_batch=2))
    named = {"m": PlanOverrides(max_batch=16)}
    flags = PlanOverrides(max_batch=32)
    assert plan(of, profile=profile(max_batch=4)).max_batch == 4
    assert plan(of, profile=profile(max_batch=4, model=named)).max_batch == 16
    assert plan(of, profile=profile(max_batch=4, model=named), flags=flags).max_batch == 32
    assert "command line" in plan(of, flags=flags).reasons["max_batch"]


def test_a_profile_found_by_matching_is_weaker_than_the_models_settings() -> None:
    of = model(batching=BatchingSettings(max_batch=2))
    assert plan(of, profile=profile(automatic=True, max_batch=4)).max_batch == 2
    assert plan(model(), profile=profile(automatic=True, max_batch=4)).max_batch == 4
    assert plan(of, profile=profile(automatic=True, model={"m": PlanOverrides(max_batch=16)})).max_batch == 16


def test_the_general_table_of_a_profile_is_not_about_simulated_devices() -> None:
    of = model(simulated=SimulatedSettings())
    assert plan(of, profile=profile(max_batch=4)).max_batch == 64
    assert plan(of, profile=profile(model={"m": PlanOverrides(max_batch=4)})).max_batch == 4


def test_a_profile_does_not_make_up_a_preprocess_step() -> None:
    assert plan(model(), profile=profile(preprocess_processes=3)).preprocess_processes == 0
    assert plan(model(preprocess=TEXT), profile=profile(preprocess_processes=3)).preprocess_processes == 3


def test_profile_can_pin_against_the_models_settings() -> None:
    assert plan(model(workers=WorkerSettings(pin=False)), profile=profile(pin=True)).cores == ((0,), (1,))


def test_batching_off() -> None:
    made = plan(model(batching=BatchingSettings(enabled=False, max_batch=16, early_trigger=4)))
    assert (made.batching, made.max_batch, made.early_trigger, made.max_wait_ms) == ("off", 1, 1, 0.0)
    assert "off (the model's settings)" in made.reasons["max_batch"]
    assert plan(model(batching=BatchingSettings(enabled=False)), profile=profile(batching="dynamic")).max_batch == 8


def test_more_threads_than_cpus_is_allowed_and_warned_about() -> None:
    made = plan(model(workers=WorkerSettings(instances=3, threads=2)))
    assert numbers(made) == (3, 2)
    assert "Warning: 3 x 2 threads" in made.reasons["instances"]
    assert made.cores == ((), (), ())


def refusal(of: ModelSettings, **more: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan(of, **more)
    return str(caught.value)


def test_overrides_that_contradict_each_other_are_refused() -> None:
    batching = BatchingSettings(max_batch=4, early_trigger=5)
    source = "(the model's settings)"
    expected = f"model `m`: `early_trigger` 5 {source} must not be above `max_batch` 4 {source}"
    assert refusal(model(batching=batching)) == expected
    message = refusal(model(batching=BatchingSettings(queue_rows=4)))
    assert message == f"model `m`: `max_batch` 8 (first guess) must not be above `queue_rows` 4 {source}"
    message = refusal(model(batching=BatchingSettings(early_trigger=6)), profile=profile(max_batch=4))
    assert "`max_batch` 4 (profile p [plan])" in message


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two models are called `a`"):
        first_plan(machine(), [model("a"), model("a")], None)


def test_versions_of_one_model_share_the_machine_like_models() -> None:
    plans = first_plan(machine(), [model("a"), model("a", version="2")], None)
    assert [(p.model, p.version) for p in plans] == [("a", "1"), ("a", "2")]
    assert sum(p.instances for p in plans) <= machine().cpu.usable


def test_external_weights_count_as_part_of_the_model_file(tmp_path: Path) -> None:
    for name, size in (
        ("m.onnx", 10),
        ("m.onnx.data", 200),
        ("m.onnx_data", 3000),
        ("m.onnx.txt", 40_000),
        ("m.bin", 500_000),
    ):
        (tmp_path / name).write_bytes(b"x" * size)
    assert file_bytes(tmp_path / "m.onnx") == 3210
    (tmp_path / "m.xml").write_bytes(b"x")
    assert file_bytes(tmp_path / "m.xml") == 500_001
    assert file_bytes(tmp_path / "nowhere" / "m.onnx") == 0


def test_no_model_no_plan() -> None:
    assert first_plan(machine(), [], None) == ()


# --- on every machine -------------------------------------------------------------------------------------------------


def machines(least_bytes: int) -> st.SearchStrategy[MachineFacts]:
    return st.builds(
        lambda ids, quota, memory: machine(max(1, min(quota, len(ids))), tuple(sorted(ids)), memory),
        st.sets(st.integers(0, 200), min_size=1, max_size=70),
        st.integers(1, 80),
        st.integers(least_bytes, 512 * GIB),
    )


models = st.lists(
    st.builds(
        model,
        st.text("abcdefgh", min_size=1, max_size=4),
        preprocess=st.sampled_from([PreprocessSettings(), TEXT]),
        simulated=st.sampled_from([None, None, SimulatedSettings(), SimulatedSettings(memory_total_bytes=GIB)]),
        workers=st.builds(WorkerSettings, pin=st.booleans()),
        batching=st.builds(BatchingSettings, enabled=st.booleans()),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda m: m.name,
)
sizes = st.integers(0, 4 * GIB)


def check(on: MachineFacts, plans: tuple[Plan, ...], wanted: list[ModelSettings]) -> None:
    assert [p.model for p in plans] == [m.name for m in wanted]
    pinned = [cpu for p in plans for cores in p.cores for cpu in cores]
    assert len(pinned) == len(set(pinned))
    assert set(pinned) <= set(on.cpu.cpus)
    for made in plans:
        assert made.instances >= 1
        assert len(made.cores) == made.instances
        assert all(len(cores) in (0, made.threads_per_instance) for cores in made.cores)
        assert 1 <= made.early_trigger <= made.max_batch <= made.queue_rows
        assert made.queue_bytes >= 1
        explained = set(structs.asdict(made)) - {"model", "version", "reasons", "alternatives"}
        assert set(made.reasons) == explained
        assert all(text.endswith((".", ")")) and "\n" not in text for text in made.reasons.values())


@settings(deadline=None, max_examples=60)
@given(machines(64 * MIB), models, sizes)
def test_without_overrides_threads_never_exceed_the_cpus(
    on: MachineFacts, wanted: list[ModelSettings], size: int
) -> None:
    plans = first_plan(on, wanted, None, file_bytes=dict.fromkeys((m.name for m in wanted), size))
    check(on, plans, wanted)
    on_cpu = [p for p in plans if p.device == "cpu"]
    assert all(p.instances * p.threads_per_instance <= on.cpu.usable for p in on_cpu)
    if len(on_cpu) <= on.cpu.usable:
        assert sum(p.instances * p.threads_per_instance for p in on_cpu) <= on.cpu.usable


overrides = st.builds(
    PlanOverrides,
    instances=st.none() | st.integers(1, 100),
    threads_per_instance=st.none() | st.integers(1, 100),
    max_batch=st.none() | st.integers(1, 64),
    max_wait_ms=st.none() | st.floats(0, 100),
    batching=st.sampled_from([None, "dynamic", "off"]),
    preprocess_processes=st.none() | st.integers(1, 4),
    pin=st.none() | st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(machines(16 * GIB), models, overrides, overrides, st.booleans())
def test_with_any_overrides_cores_stay_disjoint_and_reasons_complete(
    on: MachineFacts, wanted: list[ModelSettings], general: PlanOverrides, named: PlanOverrides, automatic: bool
) -> None:
    loaded = Profile("p", "p.toml", automatic=automatic, plan=general, model={wanted[0].name: named})
    check(on, first_plan(on, wanted, loaded), wanted)


def test_a_fixed_engine_is_in_the_plan_with_its_source() -> None:
    (plan,) = first_plan(machine(), [model(file="/models/m.onnx")], None, PlanOverrides(engine="openvino"))
    assert plan.engine == "openvino"
    assert plan.reasons["engine"] == "Set by command line."


def test_an_engine_that_does_not_take_the_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"`engine` openvino \(command line\).*expected torch"):
        first_plan(machine(), [model(file="/models/m.pt")], None, PlanOverrides(engine="openvino"))
    simulated = model(simulated=SimulatedSettings())
    with pytest.raises(ConfigError, match="expected simulated"):
        first_plan(machine(), [simulated], None, PlanOverrides(engine="torch"))
