"""Open Inference Protocol over HTTP, outwards: `InferResponse` -> body and headers.

Owns the layout of an answer and of its stage times. Must never know a model or a socket. Written as bytes and not by
encoding dicts: the hot case of one small JSON output is mostly constant text, which is remembered per model and shape.
"""

import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import msgspec
import numpy as np

from hybrid.errors import OutputInvalid
from hybrid.messages import InferRequest, InferResponse, Tensor
from hybrid.protocol.tensors import Array, Shape, TensorFault, quote, show_shape, write_raw
from hybrid.protocol.tensors_json import write_json

Payload = bytes | memoryview
NonFinite = Literal["error", "null"]

CONTENT_JSON: Final = b"application/json"
CONTENT_BINARY: Final = b"application/octet-stream"

_TIMINGS: Final = b',"parameters":{"timings_us":{"parse":%.1f,"preprocess":%b,"queue":%.1f,%b,"serialise":%.1f},'
_ROWS: Final = b'"batch_rows":%d},"outputs":['
_DOWNGRADED: Final = b'"downgraded":%d,'
_SERVER_TIMING: Final = b"Server-Timing: parse;dur=%.3f, preprocess;dur=%b, queue;dur=%.3f, %b, serialise;dur=%.3f\r\n"
_ZEROS: Final = (b"0.0", b"0.000")
_FLOATS: Final = frozenset({"FP16", "FP32", "FP64"})


class Encoded(NamedTuple):
    """An answer ready to be sent. Views in `body` refer to the response's arrays, which must stay unchanged until then.

    `extra` holds whole header lines, each ended by CR LF.
    """

    body: bytes | tuple[Payload, ...]
    content_type: bytes
    extra: bytes


def encode_infer(response: InferResponse, request: InferRequest, nonfinite: NonFinite = "error") -> Encoded:
    """Encode the outputs that `request` asked for, in its order and forms; all in the model's order if it named none.

    Args:
        response: the finished inference; its id is echoed when not empty.
        request: what the client asked for.
        nonfinite: what becomes of NaN and infinities in JSON outputs.

    Raises:
        OutputInvalid: an output cannot be written in the form that was asked for; names it and the form that can.
    """
    start = time.perf_counter()
    check = not response.finite and nonfinite == "error"
    texts = []
    payloads: list[Payload] = []
    for tensor, binary in select_outputs(response.outputs, request):
        try:
            texts.append(_binary_text(tensor, payloads) if binary else _json_text(tensor, check))
        except TensorFault as fault:
            raise OutputInvalid(f"output {quote(tensor.name)}: {fault}; ask for this output as binary_data") from fault
    head = _response_head(response.model_name, response.model_version)
    if response.id:
        head += b',"id":' + msgspec.json.encode(response.id)
    tail = b",".join(texts) + b"]}"
    stages = response.timings
    serialise = stages.serialise + time.perf_counter() - start
    before_us, before_ms = _ZEROS if stages.preprocess == 0.0 else _both(stages.preprocess)
    batch_us, batch_ms = _batch_times(stages.copy, stages.compute, stages.post)
    text = (
        head
        + _TIMINGS % (1e6 * stages.parse, before_us, 1e6 * stages.queue, batch_us, 1e6 * serialise)
        + (_DOWNGRADED % response.downgraded if response.downgraded else b"")
        + _ROWS % response.batch_rows
        + tail
    )
    extra = _SERVER_TIMING % (1e3 * stages.parse, before_ms, 1e3 * stages.queue, batch_ms, 1e3 * serialise)
    if not payloads:
        return Encoded(text, CONTENT_JSON, extra)
    extra += b"Inference-Header-Content-Length: %d\r\n" % len(text)
    return Encoded((text, *payloads), CONTENT_BINARY, extra)


def select_outputs(outputs: Sequence[Tensor], request: InferRequest) -> Iterable[tuple[Tensor, bool]]:
    """Return the outputs that a request asked for, in its order, each with whether it is wanted as binary data.

    Raises:
        OutputInvalid: the model did not return one of them.
    """
    if request.outputs is None:
        return [(tensor, request.binary) for tensor in outputs]
    by_name = {tensor.name: tensor for tensor in outputs}
    missing = [wanted.name for wanted in request.outputs if wanted.name not in by_name]
    if missing:
        raise OutputInvalid(f"the model did not return output {', '.join(map(quote, missing))}")
    return [(by_name[wanted.name], wanted.binary) for wanted in request.outputs]


def _json_text(tensor: Tensor, check: bool) -> bytes:
    if check and tensor.datatype in _FLOATS:
        _refuse_nonfinite(tensor.array)
    data = write_json(tensor.datatype, tensor.array)
    return _tensor_head(tensor.name, tensor.datatype, tensor.array.shape) + b',"data":' + data + b"}"


def _binary_text(tensor: Tensor, payloads: list[Payload]) -> bytes:
    payload = write_raw(tensor.datatype, tensor.array)
    payloads.append(payload)
    head = _tensor_head(tensor.name, tensor.datatype, tensor.array.shape)
    return head + b',"parameters":{"binary_data_size":%d}}' % len(payload)


def _refuse_nonfinite(array: Array) -> None:
    bad = ~np.isfinite(array)
    if bad.any():
        first = np.unravel_index(int(np.argmax(bad)), array.shape)
        at = show_shape(tuple(map(int, first)))
        raise TensorFault(
            f"{int(bad.sum())} elements are not finite, such as {array[first]} at {at}, which JSON cannot hold"
        )


@lru_cache(maxsize=64)
def _batch_times(copy: float, compute: float, post: float) -> tuple[bytes, bytes]:
    """What all requests of a batch share; formatting floats is a third of what a small answer costs."""
    in_us = b'"copy":%.1f,"compute":%.1f,"post":%.1f' % (1e6 * copy, 1e6 * compute, 1e6 * post)
    in_ms = b"copy;dur=%.3f, compute;dur=%.3f, post;dur=%.3f" % (1e3 * copy, 1e3 * compute, 1e3 * post)
    return in_us, in_ms


def _both(seconds: float) -> tuple[bytes, bytes]:
    return b"%.1f" % (1e6 * seconds), b"%.3f" % (1e3 * seconds)


@lru_cache(maxsize=1024)
def _tensor_head(name: str, datatype: str, shape: Shape) -> bytes:
    fields = {"name": name, "datatype": datatype, "shape": shape}
    return msgspec.json.encode(fields).removesuffix(b"}")


@lru_cache(maxsize=256)
def _response_head(model_name: str, model_version: str) -> bytes:
    fields = {"model_name": model_name, "model_version": model_version}
    return msgspec.json.encode(fields).removesuffix(b"}")
