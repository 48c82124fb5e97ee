"""The embeddings API in the form of OpenAI: bodies -> inputs, vectors -> bodies, and its one shape of errors.

Owns what these bodies look like. Must never know a model or a socket. Answers are made in parts, so that a long one is
encoded bit by bit while the rest is still computed.
"""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta, Raw, Struct

from hybrid.errors import BadRequest, HybridError, NotFound, QueueFull, Unauthorized
from hybrid.protocol.json_path import misfit, show_value, split_error, value_at
from hybrid.protocol.tensors import quote

MAX_INPUTS: Final = 2048

Id = Annotated[int, Meta(ge=0, lt=1 << 31)]
_FIELDS: Final = frozenset({"model", "input", "encoding_format", "dimensions"})


class EmbeddingRequest(Struct, frozen=True):
    """What is to be embedded: `texts` as UTF-8, or rows of token `ids`; one of the two is empty."""

    model: str
    texts: tuple[bytes, ...]
    ids: tuple[list[int], ...]
    base64: bool
    dimensions: int | None


class _Wire(Struct, frozen=True, gc=False):
    """Other fields, such as `user`, change nothing here and are ignored."""

    model: str
    input: Raw
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Meta(ge=1)] | None = None


_BODY = msgspec.json.Decoder(_Wire)
_TEXT = msgspec.json.Decoder(str)
_TEXTS = msgspec.json.Decoder(list[str])
_IDS = msgspec.json.Decoder(list[Id])
_ROWS_OF_IDS = msgspec.json.Decoder(list[list[Id]])


def decode_embeddings(body: bytes | memoryview) -> EmbeddingRequest:
    """Decode the body of `POST /v1/embeddings`.

    Raises:
        BadRequest: naming the field, what was expected and what came.
    """
    try:
        wire = _BODY.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _misfit(body, error) from error
    texts, ids = _inputs(wire.input)
    count = len(texts) + len(ids)
    if not 0 < count <= MAX_INPUTS:
        raise BadRequest(f"input: expected 1 to {MAX_INPUTS} inputs, got {count}")
    return EmbeddingRequest(wire.model, texts, ids, wire.encoding_format == "base64", wire.dimensions)


def encode_vectors(vectors: np.ndarray[Any, Any], first: int, as_base64: bool) -> bytes:
    """Encode the rows of `vectors`, numbers of the answer's list from `first` on, parted by commas.

    Base64 is that of little-endian float32, which is what clients ask for unless their users say otherwise.
    """
    rows = vectors.astype("<f4", copy=False)
    if as_base64:
        texts = [b'"' + base64.b64encode(row.tobytes()) + b'"' for row in rows]
    else:
        texts = [msgspec.json.encode(row) for row in rows.tolist()]
    form = b'{"object":"embedding","index":%d,"embedding":%b}'
    return b",".join([form % (first + number, text) for number, text in enumerate(texts)])


def encode_embeddings(model: str, parts: Sequence[bytes], tokens: int) -> tuple[bytes, ...]:
    """Encode the answer around its parts, which come from `encode_vectors`."""
    tail = b'],"model":%b,"usage":{"prompt_tokens":%d,"total_tokens":%d}}' % (
        msgspec.json.encode(model),
        tokens,
        tokens,
    )
    between = [piece for part in parts for piece in (b",", part)]
    return (b'{"object":"list","data":[', *between[1:], tail)


def encode_model(name: str, created: int) -> bytes:
    """Encode one model, for `GET /v1/models/{model}`. `created` is Unix time in seconds."""
    return msgspec.json.encode(_model(name, created))


def encode_models(names: Sequence[str], created: int) -> bytes:
    """Encode the list of models, for `GET /v1/models`."""
    return msgspec.json.encode({"object": "list", "data": [_model(name, created) for name in names]})


def encode_error(error: HybridError) -> bytes:
    """Encode an error. `param` is the field that its text begins with, if it begins with one."""
    text = (str(error) or error.code).encode(errors="backslashreplace").decode()
    field = text.partition(":")[0].partition("[")[0]
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    code = error.code
    if isinstance(error, QueueFull):
        kind = "rate_limit_error"
    elif isinstance(error, Unauthorized):
        code = "invalid_api_key"
    elif isinstance(error, NotFound) and field == "model":
        code = "model_not_found"
    param = field if field in _FIELDS else None
    return msgspec.json.encode({"error": {"message": text, "type": kind, "param": param, "code": code}})


def _inputs(raw: Raw) -> tuple[tuple[bytes, ...], tuple[list[int], ...]]:
    """Tell the four forms apart by how they begin, for a decoder takes only one of several kinds of list."""
    text = bytes(raw)
    inner = text[1:].lstrip()[:1] if text[:1] == b"[" else b""
    try:
        if text[:1] == b'"':
            return (_TEXT.decode(text).encode(),), ()
        if inner == b'"':
            return tuple([item.encode() for item in _TEXTS.decode(text)]), ()
        if inner == b"[":
            return (), tuple(_ROWS_OF_IDS.decode(text))
        if inner == b"]":
            return (), ()
        if inner in b"-0123456789" and inner:
            return (), (_IDS.decode(text),)
    except msgspec.DecodeError as error:
        raise _misfit(text, error, "input") from error
    raise BadRequest(
        f"input: expected a string, a list of strings, a list of token ids, or a list of such lists,"
        f" got {quote(show_value(text))}"
    )


def _misfit(text: bytes | memoryview, error: Exception, field: str = "") -> BadRequest:
    """Name the field within `field`, what was expected there and what came."""
    problem, path = split_error(error)
    value = value_at(text, path) if path else None
    where = f"{field}{path}".lstrip(".") or "body"
    if where == "encoding_format":
        problem = "expected float or base64"
    return BadRequest(f"{where}: {misfit(problem, value)}")


def _model(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "hybrid"}
