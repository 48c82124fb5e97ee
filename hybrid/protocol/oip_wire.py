"""The shapes of Open Inference Protocol JSON. Must never know a model.

Names missing from these structs are ignored in a body, as the protocol asks of parameters that a server does not know.
"""

from typing import Annotated, Final

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from hybrid.protocol.tensors import MAX_ELEMENTS

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
