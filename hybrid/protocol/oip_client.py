"""The client's half of the Open Inference Protocol over HTTP: tensors -> request body, response body -> tensors.

Used by the client library, the command line, the bench and the tests. Must never know a socket.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Raw

from hybrid.errors import BadRequest
from hybrid.messages import InferResponse, Tensor, Timings, WantedOutput
from hybrid.protocol.json_path import split_error
from hybrid.protocol.oip_tensors import read_tensors, split_body
from hybrid.protocol.oip_wire import WireResponse, WireResponseParameters
from hybrid.protocol.tensors import TensorFault, quote, write_raw
from hybrid.protocol.tensors_json import write_json

_MICROSECONDS: Final = 1e6
_DECODER = msgspec.json.Decoder(WireResponse)


def encode_request(
    inputs: Sequence[Tensor],
    *,
    id: str = "",
    binary: bool,
    outputs: Sequence[WantedOutput] | None = None,
    timeout_s: float | None = None,
    priority: int | None = None,
) -> tuple[bytes, int | None]:
    """Encode an infer request; return the body and the value of Inference-Header-Content-Length, None for pure JSON.

    `binary` is the form of the inputs, and of all outputs unless `outputs` says otherwise one by one.

    Raises:
        BadRequest: an input has no JSON form, such as BF16 or NaN.
    """
    parts: list[bytes | memoryview] = []
    body: dict[str, Any] = {"id": id} if id else {}
    parameters: dict[str, Any] = {"binary_data_output": True} if binary else {}
    if timeout_s is not None:
        parameters["timeout"] = max(1, round(timeout_s * _MICROSECONDS))
    if priority is not None:
        parameters["priority"] = priority
    if parameters:
        body["parameters"] = parameters
    body["inputs"] = [_input(tensor, parts if binary else None) for tensor in inputs]
    if outputs is not None:
        body["outputs"] = [{"name": out.name, "parameters": {"binary_data": out.binary}} for out in outputs]
    text = msgspec.json.encode(body)
    return (b"".join([text, *parts]), len(text)) if binary else (text, None)


def decode_response(body: bytes, header_length: int | None) -> InferResponse:
    """Decode the body of a successful infer response; `header_length` as for requests.

    Arrays are read-only, binary ones are views of `body`.

    Raises:
        BadRequest: the body is not such a response; names the field, what was expected and what came.
    """
    text = split_body(body, header_length)
    try:
        wire = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"response: {' at '.join(filter(None, split_error(error)))}") from error
    outputs = read_tensors("output", wire.outputs, body, header_length)
    parameters = wire.parameters or WireResponseParameters()
    known = {
        stage: us / _MICROSECONDS for stage, us in parameters.timings_us.items() if stage in Timings.__struct_fields__
    }
    return InferResponse(
        wire.model_name, wire.model_version, outputs, wire.id or "", Timings(**known), parameters.batch_rows
    )


def _input(tensor: Tensor, parts: list[bytes | memoryview] | None) -> dict[str, Any]:
    item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.array.shape}
    if parts is not None:
        parts.append(write_raw(tensor.datatype, tensor.array))
        return {**item, "parameters": {"binary_data_size": len(parts[-1])}}
    if tensor.array.dtype.kind == "f" and not np.isfinite(tensor.array).all():
        raise BadRequest(f"input {quote(tensor.name)}: NaN and infinities have no JSON form, only the binary one")
    try:
        return {**item, "data": Raw(write_json(tensor.datatype, tensor.array))}
    except TensorFault as fault:
        raise BadRequest(f"input {quote(tensor.name)}: {fault}") from fault
