"""When a worker counts as hung, silent, late or too large, without a process."""

from types import SimpleNamespace

import pytest

from hybrid.config import WorkerSettings
from hybrid.workers.judge import Fault, fault_of, takes_effect_at, too_large
from hybrid.workers.member import Member, MemberState, Taken

NOW = 1000.0
MIB = 1 << 20
SETTINGS = WorkerSettings(start_timeout_s=60.0, heartbeat_timeout_s=3.0, rss_limit_bytes=100 * MIB)


@pytest.fixture
def member():
    made = Member(1, 0, 2, NOW)
    made.state = MemberState.READY
    made.child = SimpleNamespace(heard_at=NOW, rss_bytes=0, suspended=False)
    yield made
    made.close()


@pytest.mark.parametrize(("gently", "limit_s"), [(False, 60.0), (True, 600.0)])
def test_a_start_at_a_low_priority_may_take_ten_times_as_long(member, gently, limit_s):
    member.state, member.gently = MemberState.STARTING, gently
    assert fault_of(member, SETTINGS, NOW + limit_s) is None
    assert fault_of(member, SETTINGS, NOW + limit_s + 0.1) == Fault(f"not ready after {limit_s:g} s")


def give(member, batch, *, expected_s=0.1, limit_s=5.0, at=NOW):
    member.take(batch, Taken(member.free[-1], 1, expected_s, limit_s), at)


def test_nothing_is_wrong_with_a_worker_that_idles_and_beats(member):
    assert fault_of(member, SETTINGS, NOW + 3.0) is None
    assert fault_of(member, SETTINGS, NOW + 3.1) == Fault("silent for 3.1 s")


def test_a_batch_over_its_limit_is_the_workers_own_fault_unless_somebody_stopped_it(member):
    give(member, 1)
    member.child.heard_at = NOW + 6.0
    assert fault_of(member, SETTINGS, NOW + 5.0) is None
    assert fault_of(member, SETTINGS, NOW + 5.5) == Fault("hung: its batch runs for 5.5 s", own=True)
    member.child.suspended = True
    assert fault_of(member, SETTINGS, NOW + 5.5) == Fault("hung: its batch runs for 5.5 s", own=False)


def test_only_the_first_batch_runs_and_the_next_starts_when_it_ends(member):
    give(member, 1, limit_s=5.0)
    give(member, 2, limit_s=1.0, at=NOW + 1.0)
    member.child.heard_at = NOW + 100.0
    assert fault_of(member, SETTINGS, NOW + 4.0) is None
    member.give_back(1, NOW + 4.0)
    assert fault_of(member, SETTINGS, NOW + 5.0) is None
    assert fault_of(member, SETTINGS, NOW + 5.1) == Fault("hung: its batch runs for 1.1 s", own=True)


def test_a_long_batch_may_be_silent_for_as_long_as_it_could_hold_the_interpreter(member):
    give(member, 1, expected_s=4.0, limit_s=40.0)
    assert fault_of(member, SETTINGS, NOW + 12.0) is None
    assert fault_of(member, SETTINGS, NOW + 12.5) == Fault("silent for 12.5 s")


def test_a_start_has_its_own_limit(member):
    member.state = MemberState.STARTING
    assert fault_of(member, SETTINGS, NOW + 60.0) is None
    assert fault_of(member, SETTINGS, NOW + 61.0) == Fault("not ready after 60 s")


def test_nobody_is_judged_who_is_leaving_or_was_never_there(member):
    member.state = MemberState.STOPPED
    assert fault_of(member, SETTINGS, NOW + 1e6) is None
    member.state, member.child = MemberState.READY, None
    assert fault_of(member, SETTINGS, NOW + 1e6) is None
    assert not too_large(member, SETTINGS)


def test_what_the_server_slept_through_is_forgiven(member):
    give(member, 1)
    member.forgive(30.0, NOW + 31.0)
    assert member.running_since == NOW + 30.0
    assert fault_of(member, SETTINGS, NOW + 33.9) is None
    assert fault_of(member, SETTINGS, NOW + 34.1) == Fault("silent for 3.1 s")
    member.forgive(30.0, NOW + 40.0)
    assert member.running_since == NOW + 40.0  # never in the future
    assert member.since == NOW  # only a start is timed from there
    member.state = MemberState.STARTING
    member.forgive(10.0, NOW + 40.0)
    assert member.since == NOW + 10.0


def test_the_limit_of_memory_leaves_a_fresh_worker_room(member):
    member.child.rss_bytes, member.fresh_rss_bytes = 101 * MIB, 40 * MIB
    assert too_large(member, SETTINGS)
    member.fresh_rss_bytes = 90 * MIB
    assert takes_effect_at(member, SETTINGS) == 112.5 * MIB
    assert not too_large(member, SETTINGS)
    member.child.rss_bytes = 113 * MIB
    assert too_large(member, SETTINGS)
    member.state = MemberState.RETIRING
    assert not too_large(member, SETTINGS)
    member.state = MemberState.READY
    assert not too_large(member, WorkerSettings())
