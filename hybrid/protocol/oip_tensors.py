"""From the tensors of Open Inference Protocol JSON to arrays: the step that both directions share.

Owns where a tensor's payload lies: in `data`, or in the binary part behind the JSON. Must never know a model.
"""

from msgspec import UNSET, Raw

from hybrid.errors import BadRequest
from hybrid.messages import Tensor
from hybrid.protocol.oip_wire import WireTensor
from hybrid.protocol.tensors import TensorFault, quote, read_raw
from hybrid.protocol.tensors_json import read_json


def split_body(body: bytes | memoryview, header_length: int | None) -> bytes | memoryview:
    """Return the JSON part of a body.

    Raises:
        BadRequest: the header length is negative or beyond the body.
    """
    if header_length is None or header_length == len(body):
        return body
    if not 0 <= header_length < len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {header_length}, the body has {len(body)} bytes;"
            " the header gives the bytes of JSON at the start of the body"
        )
    return memoryview(body)[:header_length]


def read_tensors(
    kind: str, items: tuple[WireTensor, ...], body: bytes | memoryview, header_length: int | None
) -> tuple[Tensor, ...]:
    """Read the payloads of `items`; `kind` is `input` or `output` for messages. Binary payloads are views of `body`.

    Raises:
        BadRequest: naming the tensor, what was expected and what came.
    """
    offset = len(body) if header_length is None else header_length
    tensors = []
    for item in items:
        parameters = item.parameters
        size = None if parameters is None else parameters.binary_data_size
        try:
            if size is None:
                array = read_json(item.datatype, item.shape, _data(item))
            else:
                _check_binary(item, size, len(body) - offset, header_length)
                array = read_raw(item.datatype, item.shape, body, offset, size)
                offset += size
        except TensorFault as fault:
            raise BadRequest(f"{kind} {quote(item.name)}: {fault}") from fault
        tensors.append(Tensor(item.name, item.datatype, array))
    if header_length is not None and offset != len(body):
        sum_bytes, left = offset - header_length, len(body) - header_length
        raise BadRequest(
            f"the binary_data_size of all {kind}s add up to {sum_bytes} bytes, but {left} bytes are left in the body"
            f" behind {header_length} bytes of JSON (Inference-Header-Content-Length)"
        )
    return tuple(tensors)


def _data(item: WireTensor) -> Raw:
    if item.data is UNSET:
        raise TensorFault("neither data nor parameters.binary_data_size is given (shared memory is not supported)")
    return item.data


def _check_binary(item: WireTensor, size: int, left: int, header_length: int | None) -> None:
    if item.data is not UNSET:
        raise TensorFault("both data and parameters.binary_data_size are given, expected one of them")
    if header_length is None:
        raise TensorFault(
            f"binary_data_size is {size}, but the request has no Inference-Header-Content-Length header;"
            " it must give the bytes of JSON in front of the binary data"
        )
    if size > left:
        raise TensorFault(f"binary_data_size is {size}, but only {left} bytes of binary data are left in the body")
