"""Being told to end: once, by whatever signal."""

import contextlib
import signal

import pytest

from hybrid.cli.ending import polite_end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_the_next_ones_do_not(number):
    before = signal.getsignal(number)
    with polite_end():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(number) == before


def test_a_hangup_that_is_ignored_stays_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with contextlib.ExitStack() as stack:
        stack.callback(signal.signal, signal.SIGHUP, before)
        with polite_end():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
