"""Requests that are made up: they decode as what the model takes."""

import io
import json
import random

import numpy as np
import pytest
from PIL import Image

from hybrid.errors import ConfigError
from hybrid.load.payloads import (
    MOST_BYTES,
    MetadataTensor,
    ModelMetadata,
    PayloadSettings,
    decode_metadata,
    for_model,
    png,
    text_of,
)
from hybrid.load.spec import Address
from hybrid.protocol.oip import decode_infer


def made(*inputs, **settings):
    metadata = ModelMetadata("m", tuple(MetadataTensor(*one) for one in inputs))
    return for_model(metadata, PayloadSettings(**settings))


def decoded(payload):
    length = dict(payload.headers).get("Inference-Header-Content-Length")
    return decode_infer(payload.body, int(length) if length is not None else None)


def test_headers_for_all_requests_stand_beside_their_own():
    for kind in (("text", "BYTES", (-1,)), ("x", "FP32", (-1, 4))):
        plain, keyed = made(kind, count=3), made(kind, count=3, headers=(("X-API-Key", "k3y"),))
        assert [dict(one.headers) | {"X-API-Key": "k3y"} for one in plain] == [dict(one.headers) for one in keyed]


def test_texts_are_different_and_of_the_wanted_lengths():
    payloads = made(("text", "BYTES", (-1,)), rows=2, count=50, lengths=(10, 30))
    assert len({payload.body for payload in payloads}) == 50
    assert {payload.size for payload in payloads} == {10, 30}
    tensor = decoded(payloads[0]).inputs[0]
    assert tensor.array.shape == (2,)
    assert len(tensor.array[0].split()) + 2 == payloads[0].size


def test_tensors_have_the_shape_and_type_of_the_model():
    payload = made(
        ("input_ids", "INT64", (-1, -1)), ("attention_mask", "INT64", (-1, -1)), ("x", "FP32", (-1, 3, -1)), rows=4
    )[0]
    ids, mask, x = (tensor.array for tensor in decoded(payload).inputs)
    assert (ids.shape, x.shape) == ((4, 16), (4, 3, 16))
    assert ids.min() >= 1
    assert (mask == 1).all()
    assert np.isfinite(x).all()


def test_a_picture_is_one():
    picture = Image.open(io.BytesIO(png(101, 37, random.Random(1))))
    picture.load()
    assert (picture.size, picture.mode) == ((101, 37), "RGB")
    payload = made(("photo_in", "BYTES", (-1,)), image_width=40, image_height=30)[0]
    assert Image.open(io.BytesIO(decoded(payload).inputs[0].array[0])).size == (40, 30)
    named = made(("data", "BYTES", (-1,)), image_inputs=("data",))[0]
    assert Image.open(io.BytesIO(decoded(named).inputs[0].array[0])).size == (320, 240)


def test_the_same_seed_makes_the_same_requests():
    assert made(("x", "FP32", (-1, 4)), seed=3) == made(("x", "FP32", (-1, 4)), seed=3)
    assert made(("x", "FP32", (-1, 4)), seed=3) != made(("x", "FP32", (-1, 4)), seed=4)
    assert text_of(1, random.Random(0))


@pytest.mark.parametrize(("rows", "count"), [(1, 55), (8, 6), (256, 1)])
def test_large_requests_are_few(rows, count):
    payloads = made(("x", "FP32", (-1, 3, 224, 224)), rows=rows, count=1024)
    assert len(payloads) == count
    assert count == 1 or sum(len(payload.body) for payload in payloads) <= MOST_BYTES


def test_what_cannot_be_made_up_is_refused():
    with pytest.raises(ConfigError, match="FP8"):
        made(("x", "FP8", (-1,)))
    with pytest.raises(ConfigError, match="metadata"):
        decode_metadata(json.dumps({"hello": 1}).encode())


def test_a_request_is_whole():
    payload = made(("x", "FP32", (-1, 4)))[0]
    data = Address("http://user:secret@[::1]:81/v2/models/m/infer?a=1").request(payload)
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v2/models/m/infer?a=1 HTTP/1.1\r\nHost: [::1]:81\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert body == payload.body


@pytest.mark.parametrize("url", ["ftp://x/", "127.0.0.1:80", "http://", "http://h:port/"])
def test_a_url_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="url"):
        Address(url)
