"""Being told to end: once, by whatever signal."""

import asyncio
import ctypes
import os
import signal
import socket
from types import SimpleNamespace

import pytest
import uvloop

from hybrid.cli.ending import ends_at_once, exit_code, polite_end

NUMBERS = (signal.SIGTERM, signal.SIGHUP)
HEARD = (*NUMBERS, signal.SIGINT)
SS_DISABLE = 2


class _Stack(ctypes.Structure):
    """The `stack_t` of sigaltstack(2)."""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@pytest.fixture(autouse=True)
def own_stack():
    """Let handlers run on the stack of the thread: OpenVINO may have left this process one for them that is gone.

    It is not put back: any later handler would write to memory that is gone. What that may cost the tests that follow
    is `faulthandler`'s traceback of an overflown stack, whose alternative stack is this one where nobody replaced it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.sigaltstack(ctypes.byref(_Stack(flags=SS_DISABLE)), None) == 0


@pytest.fixture(autouse=True)
def restored():
    before = {number: signal.getsignal(number) for number in HEARD}
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_the_first_signal_interrupts_and_the_next_ones_do_not(number):
    with polite_end():
        with pytest.raises(KeyboardInterrupt) as told:
            signal.raise_signal(number)
        assert exit_code(told.value) == 128 + number
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(number) is signal.SIG_IGN  # on the way out


def test_whoever_is_not_told_leaves_all_as_it_was():
    before = [signal.getsignal(number) for number in NUMBERS]
    with polite_end():
        assert [signal.getsignal(number) for number in NUMBERS] != before
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_a_handler_of_somebody_else_stays():
    with polite_end():
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler


def test_ctrl_c_has_the_code_that_shells_report():
    assert exit_code(KeyboardInterrupt()) == 130


def test_ctrl_c_is_one_wish_when_it_comes_twice_at_once_and_another_one_later(monkeypatch):
    now = [5.0]
    monkeypatch.setattr("hybrid.cli.ending.time", SimpleNamespace(monotonic=lambda: now[0]))
    with polite_end():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        now[0] += 0.05
        signal.raise_signal(signal.SIGINT)
        now[0] += 0.1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)  # on the way out


def test_process_1_hears_what_the_kernel_brings_to_handlers_only(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "getpid", lambda: 1)
    monkeypatch.setattr(os, "_exit", codes.append)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with ends_at_once():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGHUP)
    signal.raise_signal(signal.SIGTERM)
    assert codes == [130, 143, 129, 143]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_imports_end_by_the_signal_itself():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with ends_at_once():
        assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)] == [signal.SIG_DFL, signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_hangup_that_is_ignored_stays_so():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with polite_end():
        signal.raise_signal(signal.SIGHUP)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


class _Told(asyncio.Protocol):
    """Is told while it reads, as a handler comes between any two bytecodes."""

    def data_received(self, data):
        signal.raise_signal(signal.SIGTERM)


async def _read_one(cleaned):
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().create_connection(_Told, sock=ours)
        theirs.send(b"x")
        try:
            await asyncio.sleep(10)
        finally:
            cleaned.append(True)


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_an_event_loop_is_interrupted_wherever_it_is(loop_factory):
    cleaned = []
    with polite_end(), pytest.raises(KeyboardInterrupt), asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(_read_one(cleaned))
    assert cleaned
