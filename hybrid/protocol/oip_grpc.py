"""Open Inference Protocol over gRPC: `ModelInferRequest` -> `InferRequest`, `InferResponse` -> `ModelInferResponse`.

Owns where a tensor's payload lies in these messages: in its typed contents, or in the raw contents of the message. What
a payload must look like is in `tensors`, as for HTTP. Must never know a model, nor the library that serves gRPC.
"""

import time
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError

from hybrid.errors import BadRequest
from hybrid.messages import InferRequest, InferResponse, Tensor, WantedOutput
from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb
from hybrid.protocol.oip_encode import select_outputs
from hybrid.protocol.oip_wire import MAX_ID_CHARACTERS, MAX_PRIORITY, MAX_TENSORS, MAX_TIMEOUT_US
from hybrid.protocol.tensors import (
    Array,
    TensorFault,
    check_strings,
    element_count,
    known_datatype,
    quote,
    read_raw,
    show_shape,
    write_raw,
)

#: Datatype -> the field of `InferTensorContents` that carries its elements.
CONTENTS: Final = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}
_MICROSECONDS: Final = 1e6
_SHARED_MEMORY: Final = "shared_memory_region"
#: Elements are converted in pieces, so that a thread that does it lets go of the interpreter between them.
_PIECE: Final = 1 << 15


def parse_infer(data: bytes) -> pb.ModelInferRequest:
    """Return the message; its tensors have not been looked at.

    Raises:
        BadRequest: the bytes are no such message.
    """
    try:
        message: pb.ModelInferRequest = pb.ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise BadRequest(f"body: {len(data)} bytes are not a ModelInferRequest") from error
    return message


def decode_infer(message: pb.ModelInferRequest) -> InferRequest:
    """Decode an infer request. Parameters that the protocol does not define are ignored.

    Raises:
        BadRequest: naming the field, what was expected and what came.
    """
    if not 0 < len(message.inputs) <= MAX_TENSORS:
        raise BadRequest(f"inputs: expected 1 to {MAX_TENSORS} tensors, got a list of {len(message.inputs)}")
    if len(message.outputs) > MAX_TENSORS:
        raise BadRequest(f"outputs: expected at most {MAX_TENSORS}, got a list of {len(message.outputs)}")
    if len(message.id) > MAX_ID_CHARACTERS:
        raise BadRequest(f"id: expected at most {MAX_ID_CHARACTERS} characters, got {len(message.id)}")
    parameters = message.parameters
    timeout_us = _number(parameters, "timeout", MAX_TIMEOUT_US, "microseconds")
    for output in message.outputs:
        if _SHARED_MEMORY in output.parameters:
            raise BadRequest(f"output {quote(output.name)}: shared memory is not supported")
    return InferRequest(
        _inputs(message),
        message.id,
        tuple([WantedOutput(output.name, binary=True) for output in message.outputs]) or None,
        True,
        timeout_us / _MICROSECONDS or None,
        _number(parameters, "priority", MAX_PRIORITY, "1 (most urgent) to 9") or None,
    )


def encode_infer(response: InferResponse, request: InferRequest) -> bytes:
    """Encode the outputs that `request` asked for as a `ModelInferResponse` with raw contents.

    Stage times are parameters `timings_us.STAGE`: whole microseconds, for the clients of KServe know no other numbers.

    Raises:
        OutputInvalid: the model did not return an output that was asked for.
    """
    start = time.perf_counter()
    message = pb.ModelInferResponse(
        model_name=response.model_name, model_version=response.model_version, id=response.id
    )
    for tensor, _ in select_outputs(response.outputs, request):
        message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.array.shape)
        message.raw_output_contents.append(bytes(write_raw(tensor.datatype, tensor.array)))
    stages = response.timings
    parameters = message.parameters
    for stage in stages.__struct_fields__[:-1]:
        parameters["timings_us." + stage].int64_param = round(_MICROSECONDS * getattr(stages, stage))
    parameters["batch_rows"].int64_param = response.batch_rows
    if response.downgraded:
        parameters["downgraded"].int64_param = response.downgraded
    serialise = stages.serialise + time.perf_counter() - start
    parameters["timings_us.serialise"].int64_param = round(_MICROSECONDS * serialise)
    data: bytes = message.SerializeToString()
    return data


def _number(parameters: Any, name: str, most: int, unit: str) -> int:
    """Return a whole number of the request's parameters, 0 where it is missing."""
    if name not in parameters:  # looking it up would make it
        return 0
    given = parameters[name]
    kind = given.WhichOneof("parameter_choice")
    value: Any = getattr(given, kind) if kind else None
    if kind not in ("int64_param", "uint64_param") or not 0 <= value <= most:
        shown = "nothing" if kind is None else f"{kind} {quote(str(value))}"
        raise BadRequest(f"parameters.{name}: expected int64_param from 0 (unset) to {most}: {unit}, got {shown}")
    return int(value)


def _inputs(message: pb.ModelInferRequest) -> tuple[Tensor, ...]:
    raw = message.raw_input_contents
    tensors = []
    for item in message.inputs:
        if _SHARED_MEMORY in item.parameters:
            raise BadRequest(f"input {quote(item.name)}: shared memory is not supported")
    if raw and len(raw) != len(message.inputs):
        raise BadRequest(
            f"raw_input_contents: expected one entry for each of {len(message.inputs)} inputs, got {len(raw)}"
        )
    for index, item in enumerate(message.inputs):
        try:
            array = _raw(item, raw[index]) if raw else _typed(item)
        except TensorFault as fault:
            raise BadRequest(f"input {quote(item.name)}: {fault}") from fault
        tensors.append(Tensor(item.name, item.datatype, array))
    return tuple(tensors)


def _raw(item: pb.ModelInferRequest.InferInputTensor, data: bytes) -> Array:
    if item.contents.ListFields():
        raise TensorFault("both contents and raw_input_contents are given, expected one of them")
    return read_raw(item.datatype, tuple(item.shape), data, 0, len(data))


def _typed(item: pb.ModelInferRequest.InferInputTensor) -> Array:
    dtype = known_datatype(item.datatype)
    shape = tuple(item.shape)
    count = element_count(shape)
    name = CONTENTS.get(item.datatype)
    if name is None:
        raise TensorFault(f"{item.datatype} has no typed contents; send it in raw_input_contents")
    wrong = [field.name for field, _ in item.contents.ListFields() if field.name != name]
    if wrong:
        raise TensorFault(f"{item.datatype} belongs into contents.{name}, got contents.{wrong[0]}")
    values = getattr(item.contents, name)
    if len(values) != count:
        raise TensorFault(f"contents.{name} has {len(values)} elements, shape {show_shape(shape)} holds {count}")
    if item.datatype == "BYTES":
        check_strings(count)
        return np.array(list(values), np.object_).reshape(shape)
    # The type is given, or numpy would take a list of small and very large integers for floats.
    wide = np.dtype(np.int64) if dtype.kind in "iu" and dtype.itemsize < 8 else dtype
    array = np.empty(count, dtype)
    for start in range(0, count, _PIECE):
        piece = np.array(values[start : start + _PIECE], wide)
        if wide is not dtype:
            _check_range(item.datatype, dtype, piece, start)
        array[start : start + _PIECE] = piece
    return array.reshape(shape)


def _check_range(datatype: str, dtype: np.dtype[Any], piece: Array, first: int) -> None:
    """Refuse what the 32 bits of the field hold and the datatype does not."""
    limits = np.iinfo(dtype)
    bad = (piece < limits.min) | (piece > limits.max)
    if bad.any():
        index = int(np.argmax(bad))
        raise TensorFault(f"element {first + index} is {piece[index]}, {datatype} holds {limits.min} to {limits.max}")
