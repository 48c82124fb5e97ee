"""What the measured speed of a machine means, and how it is told."""

import msgspec
import pytest

from hybrid.facts import CacheFacts, CpuBudget, GpuFacts, MachineFacts
from hybrid.planner.explain import WIDTH, machine_json, machine_table
from hybrid.planner.measures import CoreRate, MachineSpeed, SpinRate
from hybrid.planner.roofline import copy_bytes, core_counts, ridge_rows, ridge_sentence, saturation_cores
from hybrid.planner.spin import spin_counts

MIB, GIB = 1 << 20, 1 << 30
BUDGET = CpuBudget(4, (0, 1, 2, 3), 4, None, None, 4, "all 4 CPUs of the machine, no limit below that")
L1 = CacheFacts(1, "data", 32 << 10, 4)
CODE = CacheFacts(1, "instruction", 64 << 10, 4)
L2 = CacheFacts(2, "unified", MIB, 4)


def machine(*caches: CacheFacts, memory: int = 64 * GIB, **more: object) -> MachineFacts:
    return msgspec.structs.replace(MachineFacts(BUDGET, memory, "host memory", caches=caches), **more)


def rates(*copied: float) -> tuple[CoreRate, ...]:
    return tuple(CoreRate(2**power, 1e11, bytes_per_s) for power, bytes_per_s in enumerate(copied))


@pytest.mark.parametrize(
    ("usable", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (12, (1, 2, 4, 8, 12))]
)
def test_core_counts_are_powers_of_two_and_all(usable: int, counts: tuple[int, ...]) -> None:
    assert core_counts(usable) == counts


@pytest.mark.parametrize(
    ("usable", "counts"), [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (64, (1, 2, 32, 64))]
)
def test_spin_counts_are_few_and_end_with_all(usable: int, counts: tuple[int, ...]) -> None:
    assert spin_counts(usable) == counts


@pytest.mark.parametrize(
    ("copied", "first"),
    [
        ((10, 19, 30, 31), 8),
        ((10, 10), 2),
        ((10, 10.9), 2),
        ((10, 11.1), None),
        ((10, 20, 40), None),
        ((10,), None),
        ((), None),
        ((10, 5, 20), 2),
    ],
)
def test_saturation_is_the_first_count_that_gains_less_than_a_tenth(
    copied: tuple[float, ...], first: int | None
) -> None:
    assert saturation_cores(rates(*copied)) == first


def test_ridge_by_its_formula() -> None:
    # 4 bytes per weight at 20 GB/s are 5e9 weights per second; at 2 FLOP each, 100 GFLOP/s do 5e10 in that time.
    assert ridge_rows(CoreRate(1, 100e9, 20e9)) == pytest.approx(10.0)
    assert ridge_rows(CoreRate(1, 100e9, 20e9), bytes_per_weight=2) == pytest.approx(5.0)


def test_ridge_in_words_is_about_all_cores() -> None:
    sentence = ridge_sentence((CoreRate(1, 1e9, 1e9), CoreRate(4, 400e9, 40e9)))
    assert "with 4 cores" in sentence
    assert "20 rows or tokens" in sentence
    assert "with one core" in ridge_sentence(rates(10))
    assert ridge_sentence(()) == ""


def test_arrays_are_four_times_the_caches_that_the_cores_reach() -> None:
    one_l3 = machine(L1, CODE, L2, CacheFacts(3, "unified", 32 * MIB, 1))
    private = MIB + (32 << 10)
    assert copy_bytes(one_l3, 1) == (4 * (32 * MIB + private), True)
    assert copy_bytes(one_l3, 4) == (4 * (32 * MIB + 4 * private) // 4, True)
    two_l3 = machine(L1, L2, CacheFacts(3, "unified", 32 * MIB, 2))
    assert copy_bytes(two_l3, 4)[0] * 4 == 4 * (64 * MIB + 4 * private)


def test_without_l3_the_private_caches_count_once() -> None:
    assert copy_bytes(machine(L1, L2), 2)[0] * 2 == 4 * 2 * (MIB + (32 << 10))


def test_unknown_caches_are_taken_as_a_large_one() -> None:
    assert copy_bytes(machine(), 1) == (128 * MIB, True)


def test_memory_bounds_the_arrays_and_that_is_said() -> None:
    size, enough = copy_bytes(machine(CacheFacts(3, "unified", 32 * MIB, 1), memory=512 * MIB), 2)
    assert (size, enough) == (16 * MIB, False)
    huge = machine(CacheFacts(3, "unified", GIB, 1))
    assert copy_bytes(huge, 1) == (GIB, False)


# --- telling it -------------------------------------------------------------------------------------------------------

SPEED = MachineSpeed(
    0.9, (CoreRate(1, 100e9, 20e9), CoreRate(2, 190e9, 21e9)), (SpinRate(1, 1.0), SpinRate(2, 1.8)), "a note"
)


def test_speed_as_json() -> None:
    speed = machine_json(machine(), SPEED)["speed"]
    assert speed["spins"] == [{"busy": 1, "received_cpus": 1.0}, {"busy": 2, "received_cpus": 1.8}]
    assert speed["rates"][1] == {"cores": 2, "matrix_flops": 190e9, "copy_bytes_per_s": 21e9}
    assert (speed["spin_share"], speed["saturation_cores"], speed["note"]) == (0.9, 2, "a note")
    assert speed["ridge_rows"] == pytest.approx(4 * 190 / 42)


def test_what_was_not_measured_is_null_and_not_zero() -> None:
    assert machine_json(machine())["speed"] is None
    speed = machine_json(machine(), MachineSpeed(0.0, note="too slow"))["speed"]
    assert (speed["spin_share"], speed["ridge_rows"], speed["spins"], speed["rates"]) == (None, None, [], [])


def test_speed_as_text() -> None:
    text = machine_table(machine(), SPEED)
    assert "1.80 CPUs for 2 busy, 90% of what was asked" in text
    assert "100 with 1, 190 with 2" in text
    assert "20.0 with 1, 21.0 with 2; 2 cores gain less than 10 % over fewer" in " ".join(text.split())
    assert "with 2 cores" in text
    assert "a note" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_text_without_a_measurement_has_no_line_about_it() -> None:
    assert not {"cpu time", "arithmetic", "memory speed", "balance", "note"} & keys(machine_table(machine()))
    unmeasured = keys(machine_table(machine(), MachineSpeed(0.0, note="why")))
    assert {"cpu time", "arithmetic", "memory speed", "balance", "note"} & unmeasured == {"note"}


def keys(text: str) -> set[str]:
    return {line[:14].strip() for line in text.splitlines()}


def test_caches_in_words() -> None:
    text = machine_table(machine(L1, CODE, L2, CacheFacts(3, "unified", 32 * MIB, 1)))
    assert "L1 data 32 KiB x 4, L1 instruction 64 KiB x 4, L2 1 MiB x 4, L3 32 MiB" in text


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (GpuFacts(0, "G", 8 * GIB), "G with 8 GiB"),
        (
            GpuFacts(0, "G", 8 * GIB, driver="580.1", compute_capability="9.0", power_limit_w=700.0),
            "G with 8 GiB, compute capability 9.0, driver 580.1, 700 W",
        ),
        (GpuFacts(0, "G MIG 1g", GIB, mig=True, slices=1), "G MIG 1g with 1 GiB, MIG slice of size 1"),
        (GpuFacts(0, "G", 0), "G, memory unknown"),
        (GpuFacts(0, "UHD", GIB, "intel", integrated=True), "UHD with 1 GiB, shared with the host"),
        (GpuFacts(0, "AMD GPU card0", 0, "amd"), "AMD GPU card0, memory unknown, not used by any engine here"),
    ],
)
def test_gpus_in_words(gpu: GpuFacts, words: str) -> None:
    text = " ".join(machine_table(machine(gpus=(gpu,))).split())
    assert text.endswith(f"gpus {words}")


def test_why_there_is_no_gpu() -> None:
    assert "none: no GPU driver" in machine_table(machine(gpu_note="no GPU driver"))
    both = machine_table(machine(gpus=(GpuFacts(0, "G", GIB),), gpu_note="GPU 1 is left out"))
    assert "G with 1 GiB; GPU 1 is left out" in both
    assert machine_json(machine(gpu_note="no GPU driver"))["gpu_note"] == "no GPU driver"
