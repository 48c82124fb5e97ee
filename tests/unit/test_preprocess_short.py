"""Texts that are short enough to be tokenised in the event loop, and all that must not be."""

import logging

import numpy as np
import pytest

from hybrid.clock import ManualClock
from hybrid.config import ImageSettings, PreprocessSettings, TextSettings
from hybrid.errors import BadRequest
from hybrid.preprocess.cache import RowCache
from hybrid.preprocess.short import ShortTexts


class Panic(BaseException):
    """What a library in Rust raises when it panics."""


class Step:
    """Takes `cost_s` per row on the clock; `bad` is refused, `panic` breaks it."""

    def __init__(self, clock: ManualClock, cost_s: float = 0.0) -> None:
        self.clock, self.cost_s = clock, cost_s
        self.made: list[bytes] = []

    def row(self, item: bytes):
        self.clock.advance(self.cost_s)
        if item == b"bad":
            raise BadRequest("input `text`: the text has no tokens")
        if item == b"panic":
            raise Panic("index out of bounds")
        self.made.append(item)
        return (np.array([len(item)], np.int32),)


def texts(clock: ManualClock, cache: RowCache | None = None, **settings) -> ShortTexts:
    return ShortTexts(PreprocessSettings(**({"text": TextSettings()} | settings)), clock, cache)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_short_texts_are_made_at_once_and_counted(clock: ManualClock):
    short, step = texts(clock), Step(clock, 0.00002)
    made = short.make([b"one", b"three"], step)
    assert made is not None
    assert [row[0].tolist() for row in made.rows] == [[3], [5]]
    assert made.seconds == pytest.approx(0.00004)
    assert (short.jobs_n, short.items_n, short.failed_n) == (1, 2, 0)
    assert short.busy_s == pytest.approx(0.00004)


@pytest.mark.parametrize(
    ("items", "settings"),
    [
        ([], {}),
        ([b"x" * 193], {}),
        ([b"x" * 97] * 2, {}),
        ([b"x"] * 5, {}),
        ([b""], {"inline_bytes": 0}),
        ([b"x"], {"item_timeout_s": 0.01}),
        ([b"x"], {"text": None, "image": ImageSettings()}),
    ],
    ids=["no rows", "long", "long together", "many rows", "switched off", "short time limit", "image"],
)
def test_all_else_is_for_the_pool(clock: ManualClock, items: list[bytes], settings: dict):
    short, step = texts(clock, **settings), Step(clock)
    assert short.make(items, step) is None
    assert not step.made
    assert short.items_n == 0


def test_bounds_themselves_are_within(clock: ManualClock):
    short, step = texts(clock), Step(clock)
    assert short.make([b"x" * 48] * 4, step) is not None
    assert short.items_n == len(step.made) == 4


def test_the_loop_is_held_for_a_bounded_time_at_a_stretch(clock: ManualClock):
    short, step = texts(clock), Step(clock, 0.00006)
    made = 0
    while short.make([b"text"], step) is not None:
        made += 1
        assert made < 100
    assert made == 7  # each costs 60 us and earns 30 of them back; there were 200


def test_half_of_the_time_of_the_loop_at_most(clock: ManualClock):
    short, step = texts(clock), Step(clock, 0.00005)
    began = clock.now
    for _ in range(20_000):
        if short.make([b"text"], step) is None:
            clock.advance(0.00001)  # the loop does something else
    assert 0.49 <= short.busy_s / (clock.now - began) <= 0.51


def test_a_text_that_took_very_long_is_paid_off_before_the_next(clock: ManualClock):
    short = texts(clock)
    assert short.make([b"strange"], Step(clock, 0.1)) is not None
    clock.advance(0.09)
    assert short.make([b"text"], Step(clock)) is None
    clock.advance(0.02)
    assert short.make([b"text"], Step(clock)) is not None


def test_a_bad_row_is_named_as_the_pool_names_it(clock: ManualClock):
    short = texts(clock)
    with pytest.raises(BadRequest, match=r"^row 1 of input `text`: the text has no tokens$"):
        short.make([b"good", b"bad", b"good"], Step(clock))
    assert (short.items_n, short.failed_n) == (2, 1)


def test_what_breaks_the_step_goes_to_the_pool_and_so_does_all_after_it(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
):
    short, step = texts(clock), Step(clock)
    with caplog.at_level(logging.ERROR, "hybrid.preprocess"):
        assert short.make([b"panic"], step) is None
    assert "Panic: index out of bounds" in caplog.text
    assert short.make([b"text"], step) is None
    assert short.items_n == 0


def test_an_interrupt_is_none_of_the_texts(clock: ManualClock):
    step = Step(clock)
    step.row = lambda item: (_ for _ in ()).throw(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        texts(clock).make([b"text"], step)


def test_known_texts_come_from_the_cache(clock: ManualClock):
    cache = RowCache(10_000, b"salt")
    short, step = texts(clock, cache), Step(clock)
    first, second = short.make([b"text"], step), short.make([b"text"], step)
    assert first is not None
    assert second is not None
    assert step.made == [b"text"]
    assert second.rows[0][0].tolist() == first.rows[0][0].tolist() == [4]
    assert (cache.stats().hits_n, cache.stats().misses_n) == (1, 1)
