"""Which machine a profile says that it is for."""

import pytest
from profile_world import GIB, machine

from hybrid.facts import GpuFacts, MachineFacts
from hybrid.planner.matching import conditions, matches, specificity
from hybrid.planner.types import Match


@pytest.mark.parametrize(
    ("match", "fits"),
    [
        (Match(), True),
        (Match(usable_cpus_min=2, usable_cpus_max=2), True),
        (Match(usable_cpus_min=3), False),
        (Match(usable_cpus_max=1), False),
        (Match(memory_limit_bytes_min=17 * GIB), False),
        (Match(memory_limit_bytes_max=16 * GIB), True),
        (Match(isa=("avx2",)), True),
        (Match(isa=("avx2", "amx_int8")), False),
        (Match(architecture="aarch64"), False),
        (Match(numa_nodes_min=1), True),
        (Match(numa_nodes_min=2), False),
        (Match(battery=False), True),
        (Match(battery=True), False),
        (Match(efficiency_cpus=False), True),
        (Match(efficiency_cpus=True), False),
        (Match(gpu_memory_bytes_min=1), False),
        (Match(gpu_kind="cuda"), False),
        (Match(gpu_mig=False), False),
    ],
)
def test_conditions(match: Match, fits: bool) -> None:
    assert matches(match, machine()) is fits


def test_conditions_that_other_machines_meet() -> None:
    assert matches(Match(battery=True, efficiency_cpus=True), machine(battery=True, efficiency_cpus=(1,)))
    assert matches(Match(numa_nodes_min=2), machine(numa_nodes=4))


def test_gpu_conditions_ask_for_one_such_gpu() -> None:
    match = Match(gpu_memory_bytes_min=20 * GIB, gpu_memory_bytes_max=48 * GIB)
    assert matches(match, machine(gpu_gib=24))
    assert not matches(match, machine(gpu_gib=80))
    assert not matches(match, machine(gpu_gib=8))


def test_all_gpu_conditions_must_hold_of_the_same_gpu() -> None:
    slice_, card = GpuFacts(0, "slice", 10 * GIB, mig=True), GpuFacts(1, "card", 24 * GIB)
    on = MachineFacts(machine().cpu, GIB, "host memory", gpus=(slice_, card))
    assert matches(Match(gpu_mig=True, gpu_memory_bytes_max=12 * GIB), on)
    assert matches(Match(gpu_mig=False, gpu_memory_bytes_min=20 * GIB), on)
    assert not matches(Match(gpu_mig=True, gpu_memory_bytes_min=20 * GIB), on)
    assert not matches(Match(gpu_kind="intel"), on)
    assert not matches(Match(gpu_integrated=True), on)


def test_each_condition_says_what_it_asks_for_and_what_is_here() -> None:
    match = Match(usable_cpus_min=4, isa=("avx2", "amx_int8"), battery=False, gpu_kind="cuda", gpu_memory_bytes_min=GIB)
    said = [(one.text, one.holds, one.here) for one in conditions(match, machine())]
    assert said == [
        ("usable CPUs: at least 4", False, "2"),
        ("instructions: avx2", True, "avx2"),
        ("instructions: amx_int8", False, "avx2"),
        ("battery: no", True, "no"),
        ("a GPU: cuda, at least 1.0 GiB", False, "none"),
    ]


def test_more_specific_is_a_gpu_then_more_facts_then_more_bounds() -> None:
    rising = (
        Match(),
        Match(usable_cpus_min=1),
        Match(usable_cpus_min=1, usable_cpus_max=4),
        Match(usable_cpus_min=1, battery=False),
        Match(usable_cpus_min=1, isa=("avx2", "avx512f"), battery=False),
        Match(gpu_kind="cuda"),
        Match(gpu_kind="cuda", gpu_memory_bytes_min=GIB),
        Match(gpu_kind="cuda", gpu_memory_bytes_min=GIB, gpu_memory_bytes_max=GIB),
    )
    ranks = [specificity(match) for match in rising]
    assert ranks == sorted(set(ranks))
