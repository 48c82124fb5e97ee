"""Open Inference Protocol over HTTP, inwards: the body of an infer request -> `InferRequest`.

Owns what makes a body well-formed on its own. Must never know a model: whether the tensors fit one is `check`. Pure,
and sized for the hot case of one small JSON tensor: one typed pass over the body and one over the tensor's data.
"""

import msgspec

from hybrid.errors import BadRequest
from hybrid.messages import InferRequest, WantedOutput
from hybrid.protocol.oip_explain import explain
from hybrid.protocol.oip_tensors import read_tensors, split_body
from hybrid.protocol.oip_wire import MAX_TENSORS, WireRequest, WireRequestParameters, WireWanted

_MICROSECONDS = 1e6
_NO_PARAMETERS = WireRequestParameters()
_DECODER = msgspec.json.Decoder(WireRequest)


def decode_infer(body: bytes | memoryview, header_length: int | None) -> InferRequest:
    """Decode the body of an infer request.

    Arrays are read-only; binary ones are views of `body`, which must not change while they live.

    Args:
        body: JSON, or JSON followed by the binary data of inputs in their order.
        header_length: bytes of JSON as given by the header Inference-Header-Content-Length; None without the header.

    Raises:
        BadRequest: naming the field, what was expected and what came.
    """
    text = split_body(body, header_length)
    try:
        wire = _DECODER.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise explain(text, error, header_length) from error
    if not 0 < len(wire.inputs) <= MAX_TENSORS:
        raise BadRequest(f"inputs: expected 1 to {MAX_TENSORS} tensors, got a list of {len(wire.inputs)}")
    parameters = wire.parameters or _NO_PARAMETERS
    return InferRequest(
        read_tensors("input", wire.inputs, body, header_length),
        wire.id or "",
        _wanted(wire.outputs, parameters.binary_data_output) if wire.outputs else None,
        parameters.binary_data_output,
        parameters.timeout / _MICROSECONDS or None,
        parameters.priority or None,
    )


def _wanted(items: tuple[WireWanted, ...], default: bool) -> tuple[WantedOutput, ...]:
    if len(items) > MAX_TENSORS:
        raise BadRequest(f"outputs: expected at most {MAX_TENSORS}, got a list of {len(items)}")
    wanted = []
    for item in items:
        binary = None if item.parameters is None else item.parameters.binary_data
        wanted.append(WantedOutput(item.name, default if binary is None else binary))
    return tuple(wanted)
