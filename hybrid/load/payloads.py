"""Requests to send, made up from what a model says it takes: texts, images, tensors.

Owns the bodies; they are made before a run, so that making them costs no time in it. Many different ones, because a
server may remember rows it has seen. Must never know when or over what they are sent.
"""

import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct

from hybrid.errors import ConfigError
from hybrid.messages import DTYPES, Tensor, TensorSpec
from hybrid.protocol.oip_client import encode_request

#: Short and frequent, so that nearly every tokenizer makes one token of each.
_WORDS: Final = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
)
_IMAGE_NAMES: Final = ("image", "picture", "photo", "img")
_SPECIAL_TOKENS: Final = 2  # a tokenizer adds as many at the ends, usually
_DEFAULT_LENGTHS: Final = (8, 16, 24, 32, 48)
#: All bodies of one set together: of large tensors a few must do, since all are held in memory, and once more while
#: they are sent.
MOST_BYTES: Final = 32 * 1024 * 1024


class Payload(Struct, frozen=True):
    """One body with its headers. `size` is what a trace's `size` is compared with: tokens, pixels or elements."""

    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    size: int = 0


class ModelMetadata(Struct, frozen=True):
    """The answer of `GET /v2/models/{model}`, as far as it is needed to ask the model something."""

    name: str
    inputs: tuple["MetadataTensor", ...]


class MetadataTensor(Struct, frozen=True):
    """An input of a model; -1 in `shape` is variable, and the first dimension is the row."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class PayloadSettings(Struct, frozen=True, kw_only=True):
    """How requests look. `lengths`: tokens of texts, one of them by chance for each request; `headers`: for each.

    Variable dimensions of tensors are all `tensor_length` long: where a model does not pad, rows of different length
    cannot share a batch, and that would be found instead of what batches do.
    """

    rows: int = 1
    count: int = 256
    lengths: tuple[int, ...] = _DEFAULT_LENGTHS
    tensor_length: int = 16
    image_width: int = 320
    image_height: int = 240
    image_inputs: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    seed: int = 0


def for_model(metadata: ModelMetadata, settings: PayloadSettings) -> tuple[Payload, ...]:
    """Return `settings.count` different requests for a model; fewer, but at least one, where they are large.

    An input of BYTES is an encoded image where `image_inputs` or its own name say so, else a text.

    Raises:
        ConfigError: the model takes a datatype that nothing can be made up for.
    """
    chance = random.Random(settings.seed)
    images = any(_is_image(spec, settings) for spec in metadata.inputs)
    count = min(settings.count, 32) if images else settings.count  # an image takes a millisecond to make
    made: list[Payload] = []
    total = largest = 0
    while len(made) < count and (not made or total + largest <= MOST_BYTES):
        made.append(_payload(metadata.inputs, settings, chance))
        total, largest = total + len(made[-1].body), max(largest, len(made[-1].body))
    return tuple(made)


def text_of(tokens: int, chance: random.Random) -> str:
    """Return a text that becomes about `tokens` tokens, those at both ends included."""
    return " ".join(chance.choices(_WORDS, k=max(1, tokens - _SPECIAL_TOKENS)))


def png(width: int, height: int, chance: random.Random) -> bytes:
    """Return an RGB picture of coloured blocks as PNG. Decoding it costs less than a photograph of the same size."""
    block = 8
    rows = [
        b"\0" + b"".join(bytes(chance.choices(range(256), k=3)) * block for _ in range(-(-width // block)))[: width * 3]
        for _ in range(-(-height // block))
    ]
    pixels = b"".join(row * block for row in rows)[: height * (width * 3 + 1)]
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels, 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def decode_metadata(body: bytes) -> ModelMetadata:
    """Read a model's metadata.

    Raises:
        ConfigError: it is something else.
    """
    try:
        return msgspec.json.decode(body, type=ModelMetadata)
    except msgspec.DecodeError as error:
        raise ConfigError(f"the model's metadata is not that of the Open Inference Protocol: {error}") from error


def _payload(inputs: Sequence[MetadataTensor], settings: PayloadSettings, chance: random.Random) -> Payload:
    length = chance.choice(settings.lengths)
    tensors = [_tensor(spec, length, settings, chance) for spec in inputs]
    plain = all(tensor.datatype == "BYTES" for tensor in tensors) and not any(
        _is_image(spec, settings) for spec in inputs
    )
    body, header_length = encode_request(tensors, binary=not plain)
    headers = [("Content-Type", "application/json" if plain else "application/octet-stream")]
    if header_length is not None:
        headers.append(("Inference-Header-Content-Length", str(header_length)))
    return Payload(body, (*headers, *settings.headers), _size(inputs, tensors, length, settings))


def _size(inputs: Sequence[MetadataTensor], tensors: Sequence[Tensor], length: int, settings: PayloadSettings) -> int:
    if any(_is_image(spec, settings) for spec in inputs):
        return settings.image_width * settings.image_height
    if any(tensor.datatype == "BYTES" for tensor in tensors):
        return length
    return max((int(tensor.array.size) // settings.rows for tensor in tensors), default=0)


def _tensor(spec: MetadataTensor, length: int, settings: PayloadSettings, chance: random.Random) -> Tensor:
    shape = (settings.rows, *(settings.tensor_length if side < 0 else side for side in spec.shape[1:]))
    if spec.datatype not in DTYPES:
        raise ConfigError(f"input {spec.name}: nothing can be made up for datatype {spec.datatype}")
    if spec.datatype == "BYTES":
        return Tensor(
            spec.name, "BYTES", _strings(shape, length, settings if _is_image(spec, settings) else None, chance)
        )
    return Tensor(spec.name, spec.datatype, _numbers(TensorSpec(spec.name, spec.datatype, spec.shape), shape, chance))


def _strings(
    shape: tuple[int, ...], length: int, picture: PayloadSettings | None, chance: random.Random
) -> np.ndarray[Any, Any]:
    array = np.empty(shape, object)
    for index in np.ndindex(*shape):
        if picture is not None:
            array[index] = png(picture.image_width, picture.image_height, chance)
        else:
            array[index] = text_of(length, chance).encode()
    return array


def _numbers(spec: TensorSpec, shape: tuple[int, ...], chance: random.Random) -> np.ndarray[Any, Any]:
    """Small numbers of the right type; masks are all ones and token types all zeros, as texts without padding have."""
    dtype = DTYPES[spec.datatype]
    name = spec.name.lower()
    if spec.datatype == "BOOL" or "mask" in name:
        return np.ones(shape, dtype)
    if "type" in name or spec.datatype == "BF16":  # the bits of BF16: small integers are no numbers to compute with
        return np.zeros(shape, dtype)
    source = np.random.default_rng(chance.getrandbits(32))
    if dtype.kind in "iu":
        return source.integers(1, 100, shape).astype(dtype)
    return source.random(shape, np.float32).astype(dtype)


def _is_image(spec: MetadataTensor, settings: PayloadSettings) -> bool:
    if spec.datatype != "BYTES":
        return False
    return spec.name in settings.image_inputs or any(word in spec.name.lower() for word in _IMAGE_NAMES)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
