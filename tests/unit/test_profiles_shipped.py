"""The profiles that are shipped: each is for the machine it was written for, and the plans made with it make sense."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from hybrid.config import ModelSettings, PreprocessSettings, SimulatedSettings, TextSettings, WorkerSettings
from hybrid.facts import CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.layers import MEASURED, layers_of
from hybrid.planner.matching import matches, specificity
from hybrid.planner.measures import EngineProfile, ModelProfile, Probe, Timing
from hybrid.planner.plan import first_plan
from hybrid.planner.profiles import known_profiles, load_profile, read_profile
from hybrid.planner.types import Plan, PlanOverrides, Profile

GIB = 1 << 30
AVX2 = ("sse4_2", "avx", "f16c", "fma", "avx2")
AVX512 = (*AVX2, "avx512f", "avx512bw", "avx512_vnni")
AMX = (*AVX512, "avx512_bf16", "amx_tile", "amx_int8", "amx_bf16")


def machine(usable: int, isa: tuple[str, ...] = AVX2, memory_gib: int = 64, **more: Any) -> MachineFacts:
    budget = CpuBudget(usable, tuple(range(usable)), usable, None, None, usable, "test")
    return MachineFacts(budget, memory_gib * GIB, "host memory", architecture="x86_64", isa=isa, **more)


def card(mib: int, **more: Any) -> tuple[GpuFacts, ...]:
    return (GpuFacts(0, "card", mib * (1 << 20), **more),)


IGPU = (GpuFacts(0, "iGPU", 0, kind="intel", integrated=True),)
SLICES = (GpuFacts(0, "slice", 20 * GIB, mig=True, slices=2), GpuFacts(1, "slice", 40 * GIB, mig=True, slices=3))

#: A machine, and the profile that it must find; memory of cards as their drivers say it.
FIXTURES: dict[str, tuple[MachineFacts, str | None]] = {
    "one CPU": (machine(1), None),
    "container with 2": (machine(2, memory_gib=4), "cpu-small"),
    "virtual machine with 4 and AMX": (machine(4, AMX), "cpu-small"),
    "workstation of 8": (machine(8), "cpu-avx2"),
    "Skylake server without VNNI": (machine(36, (*AVX2, "avx512f", "avx512bw"), numa_nodes=2), "cpu-avx2"),
    "Cascade Lake": (machine(48, AVX512, numa_nodes=2), "cpu-avx512"),
    "Zen 4": (machine(32, AVX512), "cpu-avx512"),
    "virtual machine with AMX on one node": (machine(16, AMX), "cpu-avx512"),
    "Sapphire Rapids, two sockets": (machine(112, AMX, 512, numa_nodes=2), "cpu-amx"),
    "Graviton": (machine(64, ("neon", "fp16", "dotprod", "i8mm", "bf16", "sve")), None),
    "RTX 3070": (machine(16, gpus=card(8192)), "gpu-8g"),
    "two CPUs and a P4": (machine(2, gpus=card(7611)), "gpu-8g"),
    "T4": (machine(8, AVX512, gpus=card(15360)), "gpu-24g"),
    "L4": (machine(8, AVX512, gpus=card(23034)), "gpu-24g"),
    "RTX 4090": (machine(32, gpus=card(24564)), "gpu-24g"),
    "A100 40 GB": (machine(12, AVX512, gpus=card(40960)), "gpu-80g"),
    "H100 and AMX": (machine(104, AMX, 1024, numa_nodes=2, gpus=card(81559) * 8), "gpu-80g"),
    "H200": (machine(96, AMX, 1024, numa_nodes=2, gpus=card(143771)), "gpu-141g"),
    "slices of an H100": (machine(26, AMX, gpus=SLICES), "gpu-mig"),
    "small desktop with an Intel GPU": (machine(4, gpus=IGPU), "intel-igpu"),
    "laptop with two kinds of cores": (
        machine(12, (*AVX2, "avx_vnni"), 16, efficiency_cpus=tuple(range(4, 12)), battery=True, gpus=IGPU),
        "laptop",
    ),
    "old laptop": (machine(4, memory_gib=8, battery=True), "laptop"),
    "laptop with a card": (machine(16, AVX512, 32, battery=True, gpus=card(8188)), "laptop"),
    "AMD card, which no engine here drives": (machine(16, gpus=card(24 * 1024, kind="amd")), "cpu-avx2"),
}
TEXT = ModelSettings(name="text", file="text.onnx", preprocess=PreprocessSettings(text=TextSettings()))
ON_GPU = ModelSettings(name="gpu", file="gpu.pt", workers=WorkerSettings(device="cuda"))


@pytest.fixture(autouse=True)
def nothing_but_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


@pytest.mark.parametrize("name", FIXTURES)
def test_a_machine_finds_its_profile_and_no_second_is_as_good(name: str) -> None:
    on, wanted = FIXTURES[name]
    found = load_profile("auto", on)
    assert (found.name if found else None) == wanted
    fitting = {key: content.match for key, path in known_profiles().items() if (content := read_profile(path)).match}
    ranks = {key: specificity(match) for key, match in fitting.items() if matches(match, on)}
    best = max(ranks.values(), default=None)
    assert [key for key, rank in ranks.items() if rank == best] == ([wanted] if wanted else [])


def test_every_profile_with_a_match_has_its_machine() -> None:
    contents = {name: read_profile(path) for name, path in known_profiles().items()}
    assert {name for _, name in FIXTURES.values() if name} == {n for n, c in contents.items() if c.match is not None}
    assert {n for n, c in contents.items() if c.match is None} == {"ci"}
    assert all(content.description for content in contents.values())


@pytest.mark.parametrize("name", [name for name, (_, wanted) in FIXTURES.items() if wanted])
@pytest.mark.parametrize("asked", [False, True])
def test_plans_with_it_are_whole_and_do_what_it_says(name: str, asked: bool) -> None:
    on, wanted = FIXTURES[name]
    assert wanted is not None
    profile = load_profile(wanted if asked else "auto", on)
    assert profile is not None
    text, gpu = first_plan(on, [TEXT, ON_GPU], profile)
    for plan, named in ((text, profile.plan), (gpu, profile.gpu)):
        _follows(plan, named)
        assert plan.early_trigger <= plan.max_batch <= plan.queue_rows
    assert 1 <= text.instances * text.threads_per_instance <= on.cpu.usable
    assert text.max_wait_ms == 0
    assert gpu.instances == 1
    used = [cpu for cores in text.cores for cpu in cores]
    assert len(used) == len(set(used))


def _follows(plan: Plan, named: PlanOverrides) -> None:
    """What the profile names is in the plan, with the profile as the reason where the guess was another."""
    for key, value in structs.asdict(named).items():
        if key == "preprocess_processes" and not plan.preprocess_processes:
            continue  # the model has no such step
        if key == "pin":
            assert value is None or any(plan.cores) == value or plan.device != "cpu"
        elif value is not None:
            assert getattr(plan, key) == value
            assert "profile" in plan.reasons[key]


def profile(automatic: bool, **tables: Any) -> Profile:
    return Profile("p", "p.toml", automatic=automatic, **tables)


@pytest.mark.parametrize("automatic", [False, True])
def test_plan_is_about_the_cpu_and_gpu_about_devices(automatic: bool) -> None:
    on = profile(automatic, plan=PlanOverrides(max_batch=3), gpu=PlanOverrides(max_batch=5))
    plans = first_plan(machine(4), [TEXT, ON_GPU], on)
    assert [plan.max_batch for plan in plans] == [3, 5]
    assert "profile p [gpu]" in plans[1].reasons["max_batch"]


def test_a_card_is_rehearsed_on_a_simulated_device_when_asked_for() -> None:
    device = ModelSettings(name="s", simulated=SimulatedSettings())
    gpu = PlanOverrides(max_batch=5)
    assert first_plan(machine(4), [device], profile(False, gpu=gpu))[0].max_batch == 5
    assert first_plan(machine(4), [device], profile(True, gpu=gpu))[0].max_batch == 64


def test_what_was_measured_beats_a_profile_that_was_found_but_not_one_that_was_asked_for() -> None:
    named = PlanOverrides(
        engine="onnxruntime", instances=1, threads_per_instance=1, max_batch=8, max_wait_ms=1, early_trigger=8,
        pipeline_depth=1, preprocess_processes=1, pin=False,
    )  # fmt: skip
    found = layers_of(TEXT, profile(True, plan=named), PlanOverrides(), own_device=False, measured=True)
    assert {key for key, value in structs.asdict(found[-1].overrides).items() if value is not None} == {
        "preprocess_processes",
        "pin",
    }
    asked = layers_of(TEXT, profile(False, plan=named), PlanOverrides(), own_device=False, measured=True)
    assert asked[1].overrides == named
    one = profile(True, model={"text": named})
    assert layers_of(TEXT, one, PlanOverrides(), own_device=False, measured=True)[1].overrides == named
    assert set(MEASURED) <= set(PlanOverrides.__struct_fields__)


def test_a_measured_plan_is_not_undone_by_a_profile_that_fits() -> None:
    on, wanted = FIXTURES["container with 2"]
    probes = [Probe("onnxruntime", i, t, rows) for i, t in ((1, 1), (2, 1), (1, 2)) for rows in (1, 2, 8, 32)]
    timings = tuple(Timing(probe, 0.010 + 0.0001 * probe.rows) for probe in probes)
    measured = ModelProfile("text", "machine", "digest", 16, (EngineProfile("onnxruntime", "1", timings=timings),))
    for name in ("auto", "cpu-small"):
        (plan,) = first_plan(on, [TEXT], load_profile(name, on), measured={("text", "1"): measured})
        assert ("profile" in plan.reasons["max_batch"]) == (name == wanted)
        assert (plan.max_batch > 8) == (name == "auto")
