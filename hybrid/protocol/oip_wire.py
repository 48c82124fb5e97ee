"""The shapes of Open Inference Protocol JSON, and the step from its tensors to arrays that both directions share.

Owns where a tensor's payload lies: in `data`, or in the binary part behind the JSON. Must never know a model. Names
missing from these structs are ignored in a body, as the protocol asks of parameters that a server does not know.
"""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from hybrid.errors import BadRequest
from hybrid.messages import Tensor
from hybrid.protocol.tensors import MAX_ELEMENTS, TensorFault, quote, read_raw
from hybrid.protocol.tensors_json import read_json

MAX_ID_CHARACTERS: Final = 10_240
MAX_TIMEOUT_US: Final = 86_400_000_000
MAX_PRIORITY: Final = 9
MAX_TENSORS: Final = 1024

Dimension = Annotated[int, Meta(ge=0, le=MAX_ELEMENTS)]
Text = Annotated[str, Meta(max_length=MAX_ID_CHARACTERS)]


class WireTensorParameters(Struct, frozen=True, gc=False):
    """Parameters of a tensor: the bytes it takes in the binary part."""

    binary_data_size: Annotated[int, Meta(ge=0)] | None = None


class WireTensor(Struct, frozen=True, gc=False):
    """An input of a request or an output of a response."""

    name: str
    shape: tuple[Dimension, ...]
    datatype: str
    data: Raw | UnsetType = UNSET
    parameters: WireTensorParameters | None = None


class WireWantedParameters(Struct, frozen=True, gc=False):
    """Parameters of a requested output; None is the request's default."""

    binary_data: bool | None = None


class WireWanted(Struct, frozen=True, gc=False):
    """A requested output."""

    name: str
    parameters: WireWantedParameters | None = None


class WireRequestParameters(Struct, frozen=True, gc=False):
    """Parameters of a request; 0 is unset."""

    timeout: Annotated[int, Meta(ge=0, le=MAX_TIMEOUT_US)] = 0
    priority: Annotated[int, Meta(ge=0, le=MAX_PRIORITY)] = 0
    binary_data_output: bool = False


class WireRequest(Struct, frozen=True, gc=False):
    """An inference request. Null stands for left out in the optional fields: several clients write it."""

    inputs: tuple[WireTensor, ...]
    id: Text | None = None
    outputs: tuple[WireWanted, ...] | None = None
    parameters: WireRequestParameters | None = None


class WireResponseParameters(Struct, frozen=True, gc=False):
    """What hybrid adds to a response."""

    timings_us: dict[str, float] = {}
    batch_rows: int = 0


class WireResponse(Struct, frozen=True, gc=False):
    """An inference response."""

    model_name: str
    outputs: tuple[WireTensor, ...]
    model_version: str = ""
    id: str | None = None
    parameters: WireResponseParameters | None = None


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
