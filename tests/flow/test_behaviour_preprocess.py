"""Images through a real server: slow ones are downgraded, known ones come from the cache, broken ones fail alone."""

import base64
import io
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx_models  # noqa: F401  # makes the graphs of the unit tests known
import pytest
from clients import Answer, folder, post, post_all
from onnx_graphs import identity
from pictures import picture
from PIL import Image
from server import Server

pytestmark = pytest.mark.slow

SIDE = 16
SETTINGS = f"""threads = 1
[preprocess]
on_timeout = "downgrade"
item_timeout_s = 0.2
cache_bytes = 200_000
processes = 1
[preprocess.image]
width = {SIDE}
height = {SIDE}
max_pixels = 89_000_000
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("models")
    path = folder(root, "pixels", batching="max_batch = 4", extra=SETTINGS)
    identity(root / "pixels" / "model.onnx", shape=("n", 3, SIDE, SIDE))
    with Server(path) as running:
        yield running


def body_of(*images: bytes) -> dict[str, Any]:
    data = [base64.b64encode(image).decode() for image in images]
    return {"inputs": [{"name": "image", "datatype": "BYTES", "shape": [len(data)], "data": data}]}


async def ask(server: Server, *images: bytes) -> Answer:
    return await post(server.port, "/v2/models/pixels/infer", body_of(*images))


def metric(server: Server, name: str) -> float:
    found = re.search(rf"^hybrid_preprocess_{name} (\S+)$", server.get("/metrics")[1], re.MULTILINE)
    assert found, name
    return float(found[1])


def noise(seed: int) -> bytes:
    """A small image like no other."""
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (8, 8, 3), np.uint8)).save(file, "PNG")
    return file.getvalue()


def slow_jpeg() -> bytes:
    """88 million pixels: half a second to decode whole, a twentieth of that at an eighth of the size."""
    y, x = np.mgrid[0:60, 0:100]
    small = np.stack([x * 2, y * 4, 255 - x * 2], 2).astype(np.uint8)
    file = io.BytesIO()
    Image.fromarray(small).resize((13_000, 6800), Image.Resampling.BILINEAR).save(file, "JPEG", quality=60)
    return file.getvalue()


async def test_images_that_come_again_are_not_decoded_again(server: Server):
    images = [picture("PNG", seed) for seed in range(4)]
    names = ("items_total", "cache_hits_total", "cache_misses_total")
    before = [metric(server, name) for name in names]
    first = await ask(server, *images)
    again = await ask(server, *reversed(images))
    assert first.status == again.status == 200
    half = len(first.data) // 4
    rows = [first.data[k * half : (k + 1) * half] for k in range(4)]
    assert again.data == [value for row in reversed(rows) for value in row]
    assert rows[0] != rows[1]
    assert [metric(server, name) - n for name, n in zip(names, before, strict=True)] == [4, 4, 4]
    assert 0 < metric(server, "cache_bytes") <= 200_000
    front = server.snapshot()["front"]
    assert (front["pre_cache_hits_n"], front["pre_cache_misses_n"]) == tuple(metric(server, n) for n in names[1:])


async def test_the_cache_stays_within_its_bytes(server: Server):
    for seed in range(0, 300, 30):
        bodies = [body_of(noise(seed + k)) for k in range(30)]
        answers = await post_all(server.port, "/v2/models/pixels/infer", bodies)
        assert {answer.status for answer in answers} == {200}
        assert metric(server, "cache_bytes") <= 200_000
    assert metric(server, "cache_bytes") > 150_000


async def test_a_broken_image_is_refused_again_and_again(server: Server):
    before = metric(server, "rejected_total")
    for _ in range(2):
        answer = await ask(server, picture("PNG"), picture("PNG")[:100])
        assert (answer.status, answer.body["code"]) == (400, "bad_request")
        assert "row 1 of input `image`" in answer.body["error"]
    assert metric(server, "rejected_total") - before == 2


async def test_a_slow_image_is_downgraded_and_the_answer_says_so(server: Server):
    slow = slow_jpeg()
    answer = await ask(server, picture("PNG"), slow)
    assert answer.status == 200
    assert answer.body["parameters"]["downgraded"] == 1
    whole = Image.open(io.BytesIO(slow)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    row = np.array(answer.data[len(answer.data) // 2 :]).reshape(3, SIDE, SIDE)
    assert np.abs(row - np.asarray(whole).transpose(2, 0, 1)).mean() < 4
    assert metric(server, "downgraded_total") == 1
    assert metric(server, "late_total") == 0
    quick = await ask(server, picture("PNG"))
    assert "downgraded" not in quick.body["parameters"]
    assert "Traceback" not in server.err
