import logging

from hybrid.clock import ManualClock
from hybrid.telemetry.log_flood import FloodKey, FloodLimiter, FloodLimits, flood_key

KEY = FloodKey("hybrid", 20, "row %d")
OTHER = FloodKey("hybrid", 20, "other")


def passed(limiter, n, key=KEY):
    return sum(limiter.admit(key) is not None for _ in range(n))


def test_a_burst_passes_and_then_a_rate():
    clock = ManualClock()
    limiter = FloodLimiter(clock)
    assert passed(limiter, 1000) == 50
    clock.advance(1.0)
    assert passed(limiter, 1000) == 20
    clock.advance(3600.0)
    assert passed(limiter, 1000) == 50


def test_the_next_that_passes_says_how_many_did_not():
    clock = ManualClock()
    limiter = FloodLimiter(clock)
    passed(limiter, 60)
    clock.advance(0.1)
    assert limiter.admit(KEY) == 10
    assert limiter.admit(KEY) == 0
    assert limiter.suppressed_n == 10


def test_one_flood_does_not_hide_other_records():
    limiter = FloodLimiter(ManualClock())
    passed(limiter, 1000)
    assert limiter.admit(OTHER) == 0


def test_a_flood_of_different_texts_is_limited_too():
    clock = ManualClock()
    limiter = FloodLimiter(clock, FloodLimits(total_burst=100, total_per_s=10.0))
    keys = [FloodKey("hybrid", 20, f"text {i}") for i in range(300)]
    assert sum(passed(limiter, 1, key) for key in keys) == 100
    clock.advance(1.0)
    assert sum(passed(limiter, 1, key) for key in keys) == 10


def test_a_flood_that_has_ended_is_reported_once():
    clock = ManualClock()
    limiter = FloodLimiter(clock)
    passed(limiter, 60)
    assert limiter.pending
    assert limiter.take_quiet() == []
    clock.advance(1.0)
    assert limiter.take_quiet() == [(KEY, 10)]
    assert limiter.take_quiet() == []
    assert not limiter.pending


def test_at_the_end_everything_is_reported():
    limiter = FloodLimiter(ManualClock())
    passed(limiter, 51)
    passed(limiter, 52, OTHER)
    assert dict(limiter.take_quiet(everything=True)) == {KEY: 1, OTHER: 2}


def test_the_table_of_kinds_is_bounded_and_keeps_those_that_owe_a_report():
    clock = ManualClock()
    limiter = FloodLimiter(clock, FloodLimits(kinds=8, total_burst=10**6))
    passed(limiter, 60)
    for i in range(1000):
        assert limiter.admit(FloodKey("hybrid", 20, f"text {i}")) == 0
    assert len(limiter._kinds) <= 8
    assert limiter.take_quiet(everything=True) == [(KEY, 10)]


def test_numbers_do_not_make_a_text_another_kind():
    def key(message, *args):
        return flood_key(logging.makeLogRecord({"name": "hybrid", "levelno": 20, "msg": message, "args": args}))

    assert key("row 17 of 0x3") == key("row 9999 of 0x8")
    assert key("row %d", 1) == key("row %d", 2) == KEY
    assert key("row 1") != key("column 1")
