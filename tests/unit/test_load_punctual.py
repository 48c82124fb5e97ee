"""A load generator goes before ordinary work where it may, and nobody else does because of it."""

import os
import subprocess
import sys

import pytest

from hybrid.load.punctual import first_in_line

SAY = "import os; print(os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0))"


def allowed():
    """Whether this process may ask for a real-time priority at all."""
    before = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, *before)
    return True


def real_time():
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK == os.SCHED_RR


def test_it_goes_first_while_it_lasts_and_is_ordinary_again_after_a_fault():
    before = os.sched_getscheduler(0)
    with pytest.raises(ZeroDivisionError, match=f"real time: {allowed()}"), first_in_line():
        raise ZeroDivisionError(f"real time: {real_time()}")
    assert os.sched_getscheduler(0) == before


def test_what_is_started_meanwhile_is_ordinary():
    def child():
        return subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True).stdout

    ordinary = child()
    with first_in_line():
        assert child() == ordinary


def test_where_it_is_forbidden_the_work_is_done_all_the_same(monkeypatch):
    def forbidden(*_):
        raise PermissionError(1, "Operation not permitted")

    before = os.sched_getscheduler(0)
    monkeypatch.setattr(os, "sched_setscheduler", forbidden)
    with first_in_line():
        done = os.sched_getscheduler(0)
    assert done == before == os.sched_getscheduler(0)


def test_who_may_not_take_it_back_for_children_is_ordinary_again_himself(monkeypatch):
    """As the kernel has it for a process with RLIMIT_RTPRIO and without CAP_SYS_NICE."""
    now = [os.SCHED_OTHER]

    def setscheduler(_, policy, param):
        if now[0] & os.SCHED_RESET_ON_FORK and not policy & os.SCHED_RESET_ON_FORK:
            raise PermissionError(1, "Operation not permitted")
        now[0] = policy

    monkeypatch.setattr(os, "sched_getscheduler", lambda _: now[0])
    monkeypatch.setattr(os, "sched_setscheduler", setscheduler)
    with first_in_line():
        assert now == [os.SCHED_RR | os.SCHED_RESET_ON_FORK]
    assert now == [os.SCHED_OTHER | os.SCHED_RESET_ON_FORK]


def test_a_priority_of_its_own_is_kept(monkeypatch):
    monkeypatch.setattr(os, "sched_getscheduler", lambda _: os.SCHED_FIFO)
    monkeypatch.setattr(os, "sched_setscheduler", lambda *_: pytest.fail("nothing is to be set"))
    with first_in_line():
        assert os.sched_getscheduler(0) == os.SCHED_FIFO
