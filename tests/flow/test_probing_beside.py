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


def found(model, signature, width=8):
    feed = Feed(model, signature, 32)
    return feed, beside.beside_of(feed, signature, {signature.outputs[0].name: np.zeros((1, width), np.float32)})


def test_short_texts_are_made_by_the_server_itself():
    feed, text = found(resolve("minilm"), TEXT, 384)
    assert feed.in_loop
    plain = found(replace(resolve("minilm"), example_rows=()), PLAIN)[1]
    assert text.loop_s - plain.loop_s == pytest.approx((text.cpu_s - plain.cpu_s) / 2, abs=1e-9)
    assert text.loop_s > plain.loop_s + 10e-6


def test_long_texts_are_made_elsewhere():
    model = resolve("minilm")
    feed, text = found(replace(model, example_rows=("word " * model.preprocess.inline_bytes,)), TEXT, 384)
    assert not feed.in_loop
    assert text.cpu_s > 4 * text.loop_s


def test_pictures_are_made_elsewhere_and_large_ones_take_longer():
    model = resolve("nsfw")
    chance = random.Random(1)
    small, large = (
        found(replace(model, example_rows=(base64.b64encode(png(side, side, chance)).decode(),)), PICTURE, 2)[1]
        for side in (64, 640)
    )
    assert large.cpu_s - small.cpu_s > 5 * abs(large.loop_s - small.loop_s)
    assert large.cpu_s > 2 * small.cpu_s


def test_an_answer_that_cannot_be_written_costs_nothing_but_the_rest():
    model = replace(resolve("minilm"), example_rows=())
    signature = replace(PLAIN, outputs=(TensorSpec("y", "FP32", (-1, 8)),))
    feed = Feed(model, signature, 32)
    nan = {"y": np.full((1, 8), np.nan, np.float32)}
    assert 0.0 < beside.beside_of(feed, signature, nan).cpu_s < 0.01


def test_the_median_of_some_runs_counts(monkeypatch):
    seconds = iter([0.0, 0.004, 0.004, 0.005, 0.005, 0.105])  # 4 ms, 1 ms, 100 ms
    monkeypatch.setattr(beside.time, "perf_counter", lambda: next(seconds))
    runs = count()
    assert beside._seconds(lambda: next(runs)) == pytest.approx(0.004)
    assert next(runs) == 3
