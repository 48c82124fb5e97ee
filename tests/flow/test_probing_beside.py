"""What a request costs outside of the workers, measured on the real steps."""

import base64
import random
from itertools import count

import numpy as np
import pytest
from msgspec.structs import replace

from hybrid.load.payloads import png
from hybrid.messages import Signature, TensorSpec
from hybrid.models.catalog import resolve
from hybrid.probing import beside
from hybrid.probing.feed import Feed

TEXT = Signature(
    inputs=tuple(TensorSpec(name, "INT64", (-1, -1)) for name in ("input_ids", "attention_mask", "token_type_ids")),
    outputs=(TensorSpec("embedding", "FP32", (-1, 384)),),
)
PICTURE = Signature(
    (TensorSpec("input:0", "FP32", (-1, 224, 224, 3)),), (TensorSpec("probabilities", "FP32", (-1, 2)),)
)
PLAIN = Signature((TensorSpec("x", "FP32", (-1, 8)),), (TensorSpec("y", "FP32", (-1, 8)),))


#: Seconds that each kind of work takes, each in a digit of its own.
ROW_S, TOGETHER_S, COPY_S, READ_S, WRITE_S = 1.0, 0.1, 0.01, 0.001, 0.0001
SHARED_S = 2 * COPY_S + READ_S + WRITE_S


def answers(signature, width):
    return {signature.outputs[0].name: np.zeros((1, width), np.float32)}


@pytest.fixture
def known(monkeypatch):
    """Return a function that measures a model of which each kind of work takes the seconds above."""
    done = []

    def spy(place, name, seconds):
        real = getattr(place, name)
        monkeypatch.setattr(place, name, lambda *given: done.append(seconds) or real(*given))

    def seconds_of(work):
        done.clear()
        work()
        return sum(done) or COPY_S  # all others are spied on

    def measure(model, signature, width=8):
        feed = Feed(model, signature, 32)
        spy(feed, "rows", TOGETHER_S)
        if feed.step is not None:
            spy(feed.step, "row", ROW_S)
        spy(beside, "decode_infer", READ_S)
        spy(beside, "encode_infer", WRITE_S)
        monkeypatch.setattr(beside, "_seconds", seconds_of)
        cost = beside.beside_of(feed, signature, answers(signature, width))
        assert cost.turn_s == beside._TURN_S
        return cost.loop_s - beside._REQUEST_S, cost.cpu_s / beside._COLD - beside._REQUEST_S

    return measure


def test_the_row_of_a_short_text_is_made_in_the_loop(known):
    all_s = ROW_S + TOGETHER_S + SHARED_S
    assert known(resolve("minilm"), TEXT, 384) == pytest.approx((all_s, all_s))


def test_the_row_of_a_long_text_is_made_elsewhere(known):
    model = resolve("minilm")
    long = replace(model, example_rows=("word " * model.preprocess.inline_bytes,))
    loop_s = TOGETHER_S + SHARED_S
    assert known(long, TEXT, 384) == pytest.approx((loop_s, ROW_S + loop_s))


def test_the_row_of_a_picture_is_made_elsewhere(known):
    picture = base64.b64encode(png(64, 64, random.Random(1))).decode()
    loop_s = TOGETHER_S + SHARED_S
    model = replace(resolve("nsfw"), example_rows=(picture,))
    assert known(model, PICTURE, 2) == pytest.approx((loop_s, ROW_S + loop_s))


def test_without_a_step_no_row_is_made(known):
    assert known(replace(resolve("minilm"), example_rows=()), PLAIN) == pytest.approx((SHARED_S, SHARED_S))


@pytest.mark.slow
def test_real_work_takes_time():
    feed = Feed(resolve("minilm"), TEXT, 32)
    cost = beside.beside_of(feed, TEXT, answers(TEXT, 384))
    assert 0.0 < cost.loop_s < cost.cpu_s


@pytest.mark.parametrize(
    ("changed", "in_loop"),
    [
        ({}, True),
        ({"inline_bytes": 0}, False),
        ({"inline_bytes": 8}, False),
        ({"item_timeout_s": 0.01}, False),  # might be reached, and the loop cannot be ended
    ],
)
def test_which_texts_are_made_in_the_loop(changed, in_loop):
    model = resolve("minilm")
    assert Feed(replace(model, preprocess=replace(model.preprocess, **changed)), TEXT, 32).in_loop is in_loop


def test_the_text_that_is_timed_decides_and_none_is_in_no_loop():
    model = resolve("minilm")
    long = "word " * model.preprocess.inline_bytes
    assert Feed(replace(model, example_rows=("short", long)), TEXT, 32).in_loop
    assert not Feed(replace(model, example_rows=(long, "short")), TEXT, 32).in_loop
    assert not Feed(replace(model, example_rows=()), TEXT, 32).in_loop


def test_an_answer_that_cannot_be_written_costs_nothing():
    feed = Feed(resolve("minilm"), TEXT, 32)
    assert feed.in_loop  # so it is asked for as JSON
    signature = replace(TEXT, outputs=(TensorSpec("embedding", "BF16", (-1, 384)),))
    outputs = {"embedding": np.zeros((1, 384), np.uint16)}
    assert beside._codec_s(feed, signature, outputs) == 0.0


def test_the_median_of_some_runs_counts(monkeypatch):
    seconds = iter([0.0, 0.004, 0.004, 0.005, 0.005, 0.105])  # 4 ms, 1 ms, 100 ms
    monkeypatch.setattr(beside.time, "perf_counter", lambda: next(seconds))
    runs = count()
    assert beside._seconds(lambda: next(runs)) == pytest.approx(0.004)
    assert next(runs) == 3


def test_texts_have_small_answers_as_text_and_all_else_is_binary():
    model = resolve("minilm")
    pooled = replace(model, preprocess=replace(model.preprocess, inline_bytes=0))
    for text in (model, pooled):
        assert not beside._request(Feed(text, TEXT, 32), TEXT, 1536)[1]
    assert beside._request(Feed(resolve("nsfw"), PICTURE, 32), PICTURE, 8)[1]
    assert beside._request(Feed(model, TEXT, 32), TEXT, 4_000_000)[1]  # nor would anybody have this as text
