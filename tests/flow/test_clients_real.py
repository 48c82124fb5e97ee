"""What the two real models answer over plain HTTP, alone and in company."""

import asyncio
import base64
import json
import random
import urllib.request
from collections.abc import Iterator

import numpy as np
import pytest
from clients import Answer, Counters, each, post
from pictures import picture
from server import Server

pytestmark = pytest.mark.slow

GUITAR = ("A man is playing the guitar.", "Someone plays music on a guitar.")
UNRELATED = "The stock market fell sharply after the announcement."
TEXT_PATH, IMAGE_PATH = "/v2/models/minilm/infer", "/v2/models/nsfw/infer"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:  # the built-in models
        yield running


def texts(*rows: str) -> dict[str, object]:
    return {"inputs": [{"name": "text", "shape": [len(rows)], "datatype": "BYTES", "data": list(rows)}]}


async def embed(server: Server, *rows: str) -> np.ndarray:
    answer = await post(server.port, TEXT_PATH, texts(*rows))
    assert answer.status == 200, answer
    return np.array(answer.data, np.float32).reshape(answer.body["outputs"][0]["shape"])


def scores(answer: Answer) -> np.ndarray:
    assert answer.status == 200, answer
    return np.array(answer.data, np.float32).reshape(answer.body["outputs"][0]["shape"])


async def test_like_means_near_and_unlike_means_far(server: Server):
    one, other, unrelated = await embed(server, *GUITAR, UNRELATED)
    assert one @ other > 0.6
    assert abs(one @ unrelated) < 0.3
    assert abs(other @ unrelated) < 0.3


async def test_a_sentence_means_the_same_alone_and_in_a_crowd(server: Server):
    """MIX-08, SHP-02: mixed lengths, so every vector passes through padded batches."""
    draw = random.Random(3)
    words = ("quick", "brown", "fox", "jumps", "over", "lazy", "dog", "seven", "ships", "sail", "to", "old", "harbour")
    sentences = [" ".join(draw.choices(words, k=length)) for length in (1, 3, 5, 8, 11, 20, 60, 150)]
    alone = [(await embed(server, sentence))[0] for sentence in sentences]
    before = Counters(server, "minilm")
    for _ in range(4):
        together = await each(sentences, lambda sentence: embed(server, sentence))
        assert min(float(a @ b[0]) for a, b in zip(alone, together, strict=True)) > 0.9999
    as_rows = await embed(server, *sentences)  # one request, cut where the length changes
    assert min(float(a @ b) for a, b in zip(alone, as_rows, strict=True)) > 0.9999
    since = before.since()
    assert since["rows"] == 40
    assert since["batches"] < 40


def test_the_printed_curl_line_works(server: Server):
    line = next(line for line in server.out.splitlines() if line.strip().startswith("curl"))
    url, body = line.split()[2], line.split("-d '", 1)[1].removesuffix("'")
    with urllib.request.urlopen(urllib.request.Request(url, body.encode())) as answer:
        assert json.load(answer)["outputs"][0]["shape"] == [2, 384]


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
async def test_an_image_gives_two_probabilities(server: Server, kind: str):
    encoded = base64.b64encode(picture(kind)).decode()
    body = {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [encoded]}]}
    in_json = scores(await post(server.port, IMAGE_PATH, body))
    in_binary = scores(await binary_images(server, picture(kind)))
    assert in_json.shape == (1, 2)
    assert in_json.sum() == pytest.approx(1, abs=1e-5)
    assert in_json.min() >= 0
    np.testing.assert_allclose(in_json, in_binary, atol=1e-6)


async def binary_images(server: Server, *images: bytes) -> Answer:
    payload = b"".join(len(image).to_bytes(4, "little") + image for image in images)
    head = {"inputs": [{"name": "image", "shape": [len(images)], "datatype": "BYTES"}]}
    head["inputs"][0]["parameters"] = {"binary_data_size": len(payload)}
    text = json.dumps(head).encode()
    return await post(server.port, IMAGE_PATH, text + payload, {"Inference-Header-Content-Length": str(len(text))})


async def test_an_image_is_judged_the_same_alone_and_in_a_batch(server: Server):
    images = [picture(kind, seed) for seed in range(4) for kind in ("JPEG", "PNG")]
    alone = [scores(await binary_images(server, image))[0] for image in images]
    assert len({tuple(row.tolist()) for row in alone}) > 1, "the pictures are too much alike to tell anything"
    together = await each(images, lambda image: binary_images(server, image))
    for a, b in zip(alone, together, strict=True):
        np.testing.assert_allclose(a, scores(b)[0], atol=1e-5)
    np.testing.assert_allclose(alone, scores(await binary_images(server, *images)), atol=1e-5)


async def test_one_broken_image_fails_alone(server: Server):
    """BAD-03, BAD-04: 12 at once of which one is cut short, then 10 good ones."""
    images = [picture("PNG", k % 3) for k in range(12)]
    images[5] = images[5][: len(images[5]) // 2]
    answers = await each(images, lambda image: binary_images(server, image))
    assert [answer.status for answer in answers] == [200] * 5 + [400] + [200] * 6
    assert "image" in answers[5].body["error"]
    again = await asyncio.gather(*(binary_images(server, images[0]) for _ in range(10)))
    assert {answer.status for answer in again} == {200}


@pytest.mark.parametrize("text", ["", " ", "\x00", "a" * 20_000, "🙂" * 300, "\u202e\u0000\ufffd"])
async def test_odd_texts_are_embedded_or_refused(server: Server, text: str):
    answer = await post(server.port, TEXT_PATH, texts(text, "plain"))
    assert answer.status in (200, 400), answer
    if answer.status == 200:
        assert np.isfinite(answer.data).all()


async def test_raw_tensors_of_bad_lengths_are_the_clients_fault(server: Server):
    def ids(length: int, mask: int) -> dict[str, object]:
        lengths = {"input_ids": length, "attention_mask": mask, "token_type_ids": length}
        return {
            "inputs": [
                {"name": name, "shape": [1, size], "datatype": "INT64", "data": [int(name == "attention_mask")] * size}
                for name, size in lengths.items()
            ]
        }

    cases = [ids(5, 7), ids(600, 600), ids(12, 12), ids(7, 5)]
    answers = await each(cases, lambda body: post(server.port, TEXT_PATH, body))
    assert [answer.status for answer in answers] == [400, 400, 200, 400]
    assert "disagree on dimension 1" in answers[0].body["error"]
    outside = ids(4, 4)
    outside["inputs"][0]["data"] = [101, 999_999, -1, 102]
    good, bad = await each([ids(4, 4), outside], lambda body: post(server.port, TEXT_PATH, body))
    assert (good.status, bad.status) == (200, 400)
