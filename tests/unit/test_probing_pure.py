"""What is made of measurements: times of co-running processes, memory lines and the climb, agreement of engines."""

import math
from itertools import pairwise

import pytest
from msgspec.structs import replace

from hybrid.config import SimulatedSettings
from hybrid.planner.measures import MemoryPoint, Probe
from hybrid.probing.agreement import disagreement
from hybrid.probing.budget import Budget
from hybrid.probing.climbing import is_roomy, line_of, next_rows, rows_within, without
from hybrid.probing.crowding import waited_s
from hybrid.probing.messages import Timed
from hybrid.probing.simulated import SimulatedMeasurer, engine_profile
from hybrid.probing.timing import summarise

MIB = 1 << 20


def batches(*ends, group=1):
    """Batches that follow each other without a gap."""
    return Timed(tuple(pairwise(ends)), group)


# Times ---------------------------------------------------------------------------------------------------------------


def test_only_batches_while_all_ran_count():
    early = batches(0.0, 1.0, 2.0, 4.0, 6.0, 7.0)  # 1 s each while alone, 2 s in company
    late = batches(2.0, 4.0, 6.0)
    found = summarise([early, late])
    assert (found.seconds, found.runs) == (2.0, 4)


def test_without_a_common_part_all_batches_count():
    assert summarise([batches(0.0, 10.0), batches(9.0, 21.0)]).seconds == pytest.approx(11.0)


def test_short_batches_are_timed_in_groups():
    assert summarise([batches(0.0, 0.5, 1.0, group=5)]).seconds == pytest.approx(0.1)


def test_spread_is_relative_to_the_median():
    even, uneven = summarise([batches(*range(11))]), summarise([batches(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 13)])
    assert even.spread == 0.0
    assert uneven.spread > 0.0


def test_a_process_that_ran_nothing_is_an_error():
    with pytest.raises(ValueError, match="no batch"):
        summarise([batches(0.0, 1.0), Timed(())])


def test_the_share_of_waiting_is_that_of_all_threads_of_all_processes():
    members = [replace(batches(0.0, 1.0, 2.0), waited_s=waited_s) for waited_s in (0.5, 1.5)]
    assert summarise(members).waited == pytest.approx(0.5)
    assert summarise(members, threads=2).waited == pytest.approx(0.25)


def test_waiting_is_what_the_kernel_counts_for_each_thread(tmp_path):
    for thread, text in (("1", "100 2000000000 5\n"), ("2", "100 500000000 5\n"), ("3", "ended")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert waited_s(tmp_path) == pytest.approx(2.5)
    assert waited_s(tmp_path / "no such folder") == 0.0


# Memory --------------------------------------------------------------------------------------------------------------


def points(base, per_row, *rows, noise=0):
    return [MemoryPoint(r, base + per_row * r + (noise if r % 4 == 0 else 0)) for r in rows]


def test_the_line_goes_through_exact_points():
    line = line_of(points(100 * MIB, 3 * MIB, 1, 2, 4))
    assert line.base_bytes == pytest.approx(100 * MIB, abs=10)
    assert line.per_row_bytes == pytest.approx(3 * MIB, abs=10)


def test_no_point_of_the_larger_half_lies_above_the_line():
    for noise in (-MIB, 0, 5 * MIB):
        found = points(100 * MIB, MIB, 1, 2, 4, 16, 32, noise=noise)
        line = line_of(found)
        assert all(
            point.peak_bytes <= line.base_bytes + line.per_row_bytes * point.rows for point in found if point.rows >= 16
        )


def test_dear_first_rows_do_not_lift_the_line():
    dear = [MemoryPoint(1, 120 * MIB), MemoryPoint(2, 140 * MIB), *points(150 * MIB, 2 * MIB, 4, 8, 16, 32)]
    assert line_of(dear).base_bytes == pytest.approx(150 * MIB, rel=0.01)


def test_a_line_that_gets_steeper_is_followed():
    bent = [*points(100 * MIB, MIB, 1, 2, 4, 8), MemoryPoint(16, 148 * MIB)]
    assert line_of(bent).per_row_bytes == pytest.approx(5 * MIB, rel=0.01)


def test_memory_that_does_not_grow_still_divides():
    line = line_of(points(100 * MIB, 0, 1, 2, 4))
    assert line.per_row_bytes == 1
    assert rows_within(line, 200 * MIB, 64) == 64


def test_one_point_and_none():
    assert line_of([MemoryPoint(1, 5 * MIB)]).base_bytes == pytest.approx(5 * MIB, abs=2)
    with pytest.raises(ValueError, match="no points"):
        line_of([])


def climb(base, per_row, usable, most, fails_above=math.inf):
    """The batches that are tried on a device with exactly this line, and the line at the end."""
    found, tried = points(base, per_row, 1, 2, 4), []
    while (rows := next_rows(found, usable, most)) is not None:
        tried.append(rows)
        if rows > fails_above:
            return tried, without(line_of(found), usable, rows)
        found += points(base, per_row, rows)
    return tried, line_of(found)


@pytest.mark.parametrize("per_row", [MIB, 7 * MIB, 40 * MIB])
@pytest.mark.parametrize("usable", [400 * MIB, 3000 * MIB])
def test_the_climb_ends_where_memory_does_and_never_above(per_row, usable):
    base = 100 * MIB
    true = (usable - base) // per_row
    tried, line = climb(base, per_row, usable, 10_000)
    assert tried == sorted(set(tried))
    assert true - 1 <= max(tried) <= true  # the line is rounded up to whole bytes
    assert true - 1 <= rows_within(line, usable, 10_000) <= true


def test_the_climb_goes_to_half_first_and_no_further_than_four_times():
    tried, _ = climb(100 * MIB, MIB, 1124 * MIB, 10_000)
    assert tried[:3] == [16, 64, 256]
    assert tried[3] in (511, 512)  # half, the line being rounded up to whole bytes


def test_the_climb_stops_at_the_largest_batch_of_interest():
    assert max(climb(100 * MIB, MIB, 10_000 * MIB, 64)[0]) == 64


def test_no_room_for_more_ends_the_climb_at_once():
    assert climb(100 * MIB, 10 * MIB, 120 * MIB, 64)[0] == []


def test_a_batch_that_did_not_fit_bounds_the_line():
    tried, line = climb(100 * MIB, MIB, 1000 * MIB, 64, fails_above=40)
    confirmed = max(rows for rows in tried if rows <= 40)
    assert confirmed <= rows_within(line, 1000 * MIB, 64) < 64
    nothing = without(line_of([MemoryPoint(1, MIB)]), 10 * MIB, 1)
    assert rows_within(nothing, 10 * MIB, 64) == 0


def test_roomy_is_far_from_the_limit():
    line = line_of(points(100 * MIB, MIB, 1, 2, 4))
    assert is_roomy(line, 1000 * MIB, 64)
    assert not is_roomy(line, 300 * MIB, 64)


# Agreement -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ({"y": (1.0, 2.0, 3.0)}, ""),
        ({"y": (1.01, 1.99, 3.02)}, ""),
        ({"y": (3.0, 2.0, 1.0)}, "differs by 0.76 of its length"),
        ({"y": (1.0, 2.0)}, "another size"),
        ({"y": (1.0, 2.0, math.nan)}, "finite in other places"),
        ({"z": (1.0, 2.0, 3.0)}, "has the outputs z, not y"),
        ({}, "has the outputs none, not y"),
    ],
)
def test_engines_agree_up_to_rounding(other, text):
    found = disagreement({"y": (1.0, 2.0, 3.0)}, other)
    assert text in found
    assert bool(found) == bool(text)


def test_zeros_agree_with_zeros_only():
    assert not disagreement({"y": (0.0, 0.0)}, {"y": (0.0, 0.0)})
    assert disagreement({"y": (0.0, 0.0)}, {"y": (0.0, 0.1)})


# Simulated devices ---------------------------------------------------------------------------------------------------


def simulated_s(device, *, instances=1, rows=1, cpus=4, length=32):
    probe = Probe("simulated", instances, 1, rows, "simulated")
    (timing,) = SimulatedMeasurer(device, cpus, length).time((probe,))
    assert timing.probe == probe
    return timing.seconds


def test_a_simulated_device_takes_what_it_declares():
    device = SimulatedSettings(fixed_ms=6.0, per_row_ms=0.5, per_token_ms=0.01)
    assert simulated_s(device, rows=4) == pytest.approx(0.006 + 0.002 + 4 * 32 * 1e-5)
    assert simulated_s(SimulatedSettings(), rows=4) > 0.0


def test_instances_share_the_one_device_and_busy_ones_the_cpus():
    sleeping, busy = SimulatedSettings(fixed_ms=10.0), SimulatedSettings(fixed_ms=10.0, busy=True)
    assert simulated_s(sleeping, instances=2) == pytest.approx(0.02)
    assert simulated_s(busy, instances=4, cpus=4) == pytest.approx(0.01)
    assert simulated_s(busy, instances=8, cpus=4) == pytest.approx(0.02)


def test_what_the_simulated_memory_does_not_hold_fails():
    device = SimulatedSettings(fixed_ms=1.0, memory_total_bytes=100, memory_weights_bytes=20, memory_per_row_bytes=10)
    assert simulated_s(device, rows=8) == pytest.approx(0.001)
    assert simulated_s(device, rows=9) == math.inf
    profile = engine_profile(device)
    assert profile.memory is not None
    assert (profile.memory.base_bytes, profile.memory.per_row_bytes) == (20, 10)
    assert engine_profile(SimulatedSettings()).memory is None


def test_the_budget_counts_down_to_nothing():
    now = [100.0]
    budget = Budget(20.0, lambda: now[0])
    now[0] = 115.0
    assert (budget.spent_s, budget.left_s) == (15.0, 5.0)
    now[0] = 130.0
    assert budget.left_s == 0.0
