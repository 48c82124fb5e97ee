"""Whether a decoded request fits a model's signature.

Owns the wording of every mismatch between the two. Must never know a wire format: HTTP and gRPC call it alike.
"""

from collections import Counter
from collections.abc import Sequence

from hybrid.errors import BadRequest
from hybrid.messages import InferRequest, Tensor, TensorSpec, WantedOutput
from hybrid.protocol.tensors import quote, show_shape

_SHOWN_SPECS = 20


def check_inputs(request: InferRequest, specs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
    """Check a request against the inputs and outputs of a model and return its number of rows.

    Dimension 0 counts rows and is never compared with the model's: a model of fixed batch size is fed by splitting and
    padding. Other dimensions of -1 take any size, 0 included.

    Raises:
        BadRequest: naming the field, expected and actual shape or names, and the likely mistake.
    """
    given = {tensor.name: tensor for tensor in request.inputs}
    if len(given) != len(specs) or len(request.inputs) != len(given):
        raise _names_fault(request.inputs, specs)
    rows = -1
    for spec in specs:
        tensor = given.get(spec.name)
        if tensor is None:
            raise _names_fault(request.inputs, specs)
        shape = tensor.array.shape
        if tensor.datatype != spec.datatype:
            raise BadRequest(
                f"input {quote(spec.name)}: expected datatype {spec.datatype}, got {quote(tensor.datatype)};"
                f" the model takes {_list_specs(specs)}"
            )
        if len(shape) != len(spec.shape) or not shape or (shape[1:] != spec.shape[1:] and not _fits(shape, spec.shape)):
            raise BadRequest(f"input {quote(spec.name)}: {_shape_fault(shape, spec.shape)}")
        if shape[0] != rows:
            if rows >= 0:
                raise _rows_fault(request.inputs)
            rows = shape[0]
    if rows <= 0:
        raise BadRequest(f"input {quote(specs[0].name)}: shape has no rows: dimension 0 is 0, expected at least 1")
    if request.outputs is not None:
        _check_outputs(request.outputs, outputs)
    return rows


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    # A loop and not `all(...)`: a generator per input costs more than the rest of the check.
    for axis in range(1, len(expected)):  # noqa: SIM110 - see above
        if expected[axis] not in (-1, shape[axis]):
            return False
    return True


def _shape_fault(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    message = f"expected shape {show_shape(expected)} (-1 takes any size), got {show_shape(shape)}"
    rest = expected[1:]
    if len(shape) == len(rest) and _fits((1, *shape), expected):
        return f"{message}; dimension 0 is the batch (rows): send one row as {show_shape((1, *shape))}"
    if len(shape) == len(expected) + 1:
        return f"{message}; one dimension too many: dimension 0 of the expected shape already is the batch (rows)"
    if len(shape) != len(expected):
        return f"{message}; {len(shape)} dimensions, expected {len(expected)} with dimension 0 as the batch (rows)"
    wrong = next(index for index in range(1, len(shape)) if expected[index] not in (-1, shape[index]))
    message += f"; dimension {wrong} must be {expected[wrong]}, dimension 0 is the batch (rows)"
    if shape[0] == 1 and len(shape) > 1 and _fits((shape[1], *shape[:1], *shape[2:]), expected):
        message += f": {shape[1]} rows are {show_shape((shape[1], 1, *shape[2:]))}"
    return message


def _names_fault(inputs: Sequence[Tensor], specs: Sequence[TensorSpec]) -> BadRequest:
    names = Counter(tensor.name for tensor in inputs)
    expected = {spec.name for spec in specs}
    twice = [name for name, times in names.items() if times > 1]
    missing = [spec.name for spec in specs if spec.name not in names]
    extra = [name for name in names if name not in expected]
    problems = []
    if twice:
        problems.append(f"input {quote(twice[0])} is given more than once")
    if missing:
        problems.append(f"missing input {', '.join(map(quote, missing[:_SHOWN_SPECS]))}")
    if extra:
        problems.append(f"unknown input {', '.join(map(quote, extra[:_SHOWN_SPECS]))}")
    return BadRequest(f"{'; '.join(problems)}; the model takes {_list_specs(specs)}")


def _rows_fault(inputs: Sequence[Tensor]) -> BadRequest:
    rows = ", ".join(f"{quote(tensor.name)} {show_shape(tensor.array.shape)}" for tensor in inputs)
    return BadRequest(f"inputs disagree on dimension 0, the number of rows: {rows}")


def _check_outputs(wanted: Sequence[WantedOutput], outputs: Sequence[TensorSpec]) -> None:
    names = [spec.name for spec in outputs]
    seen = set()
    for output in wanted:
        if output.name not in names:
            raise BadRequest(f"unknown output {quote(output.name)}; the model gives {_list_specs(outputs)}")
        if output.name in seen:
            raise BadRequest(f"output {quote(output.name)} is asked for more than once")
        seen.add(output.name)


def _list_specs(specs: Sequence[TensorSpec]) -> str:
    shown = ", ".join(f"{quote(spec.name)} {spec.datatype} {show_shape(spec.shape)}" for spec in specs[:_SHOWN_SPECS])
    return shown if len(specs) <= _SHOWN_SPECS else f"{shown}, ..."
