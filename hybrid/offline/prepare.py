"""Rows as they were read -> rows that can be run: checked, and through the model's preprocess step where they need it.

Knows the model's signature and its preprocess pool; no file and no batch.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from hybrid.batching.queue import INFINITY
from hybrid.errors import BadRequest, HybridError, NotReady, TooLarge
from hybrid.messages import InferRequest, Tensor
from hybrid.offline.rows import Array, Fault, InputRow, Outcome, Picture, ReadyRow, Tensors, Text
from hybrid.preprocess.job import Prepared
from hybrid.protocol.check import check_inputs
from hybrid.serving.model import ServedModel

_TOGETHER: Final = 64


class Preparation:
    """Takes rows in; `on_ready` and `on_fault` tell of each, in any order; `on_failure` that it cannot go on."""

    def __init__(
        self,
        model: ServedModel,
        on_ready: Callable[[Sequence[ReadyRow]], None],
        on_fault: Callable[[Outcome], None],
        on_failure: Callable[[HybridError], None],
    ) -> None:
        self._model = model
        self._on_ready = on_ready
        self._on_fault = on_fault
        self._on_failure = on_failure
        self._waiting: deque[list[InputRow]] = deque()
        self._inside_n = 0
        self._inside_bytes = 0

    @property
    def idle(self) -> bool:
        """Whether no row is on its way through preprocessing."""
        return not self._inside_n and not self._waiting

    def take(self, rows: Sequence[InputRow]) -> None:
        """Take rows in; those that need no preprocessing are ready, or at fault, before this returns."""
        encoded: list[InputRow] = []
        ready: list[ReadyRow] = []
        for row in rows:
            try:
                self._sort(row, encoded, ready)
            except BadRequest as error:
                self._on_fault(_fault(row, error))
        if ready:
            self._on_ready(ready)
        self._waiting += [encoded[start : start + _TOGETHER] for start in range(0, len(encoded), _TOGETHER)]
        self._submit()

    def _sort(self, row: InputRow, encoded: list[InputRow], ready: list[ReadyRow]) -> None:
        content = row.content
        if isinstance(content, Fault):
            self._on_fault(Outcome(row.index, row.id, content))
        elif isinstance(content, Tensors):
            element = self._encoded_element(content.tensors)
            if element is None:
                ready.append(self._ready_tensors(row, content.tensors))
            else:
                encoded.append(InputRow(row.index, Text(element), row.id, len(element)))
        else:
            self._refuse_other(content)
            encoded.append(row)

    # Tensors -------------------------------------------------------------------------------------------------------

    def _ready_tensors(self, row: InputRow, tensors: tuple[Tensor, ...]) -> ReadyRow:
        signature = self._model.signature
        assert signature is not None
        rows = check_inputs(InferRequest(inputs=tensors), signature.inputs, signature.outputs)
        if rows != 1:
            raise BadRequest(f"inputs: expected one row per line (dimension 0 is 1), got {rows} rows")
        by_name = {tensor.name: tensor for tensor in tensors}
        ordered = tuple(by_name[spec.name] for spec in signature.inputs)
        form, size = _measure(ordered, self._model.settings.batching.pad_inputs)
        return ReadyRow(row.index, row.id, tensors=ordered, form=form, size=size)

    def _encoded_element(self, tensors: tuple[Tensor, ...]) -> bytes | None:
        """What a client of the server would send for a row with preprocessing: the text or image as a BYTES tensor."""
        step = self._model.preprocessor
        if step is None or len(tensors) != 1 or tensors[0].name != step.input.name:
            return None
        element = tensors[0].array
        if tensors[0].datatype != "BYTES" or element.size != 1:
            raise BadRequest(f"input `{step.input.name}`: expected BYTES [1], one row per line")
        return bytes(element.flat[0])

    # Preprocessing -------------------------------------------------------------------------------------------------

    def _refuse_other(self, content: Text | Picture) -> None:
        settings = self._model.settings.preprocess
        if settings.text is None and isinstance(content, Text):
            raise BadRequest(f"model {self._model.name} takes no text; {_takes(self._model)}")
        if settings.image is None and isinstance(content, Picture):
            raise BadRequest(f"model {self._model.name} takes no image; {_takes(self._model)}")

    def _submit(self) -> None:
        pool = self._model.preprocess
        while self._waiting and pool is not None and self._fits(self._waiting[0]):
            rows = self._waiting.popleft()
            items = [_content(row) for row in rows]
            try:
                pool.submit(items, INFINITY, partial(self._on_prepared, rows))
            except TooLarge as error:
                self._refused(rows, error)
            except HybridError as error:
                self._on_failure(error)
                return
            else:
                self._inside_n += len(rows)
                self._inside_bytes += sum(map(len, items))

    def _ready_arrays(self, row: InputRow, arrays: tuple[Array, ...]) -> ReadyRow:
        # Only texts differ in length; sorting images, which are all of one size, would hold them back for nothing.
        step = self._model.preprocessor if self._model.settings.preprocess.text is not None else None
        return ReadyRow(row.index, row.id, arrays=arrays, size=step.size([arrays]) if step is not None else 0)

    def _fits(self, rows: Sequence[InputRow]) -> bool:
        """Whether the pool's queue has room; it would refuse rows, and a job that is refused cannot come back later."""
        limits = self._model.settings.preprocess
        nbytes = sum(row.nbytes for row in rows)
        return not self._inside_n or (
            self._inside_n + len(rows) <= limits.queue_items and self._inside_bytes + nbytes <= limits.queue_bytes
        )

    def _on_prepared(self, rows: Sequence[InputRow], result: Prepared | HybridError) -> None:
        self._inside_n -= len(rows)
        self._inside_bytes -= sum(len(_content(row)) for row in rows)
        if isinstance(result, NotReady):
            self._on_failure(result)
            return
        if isinstance(result, HybridError):
            self._refused(rows, result)
        else:
            self._on_ready([self._ready_arrays(row, arrays) for row, arrays in zip(rows, result.rows, strict=True)])
        self._submit()

    def _refused(self, rows: Sequence[InputRow], error: HybridError) -> None:
        """A row of several is at fault, and which one is found by asking for each alone. `_submit` comes next."""
        if len(rows) == 1:
            self._on_fault(_fault(rows[0], error))
        else:
            self._waiting.extendleft([row] for row in reversed(rows))


def _content(row: InputRow) -> bytes:
    assert isinstance(row.content, Text | Picture)
    return row.content.content


def _fault(row: InputRow, error: HybridError) -> Outcome:
    return Outcome(row.index, row.id, Fault(str(error).removeprefix("row 0 of "), error.code))


def _takes(model: ServedModel) -> str:
    return "it takes " + ", ".join(f"`{s.name}` {s.datatype} {list(s.shape)}" for s in model.inputs())


def _measure(tensors: Sequence[Tensor], pad: dict[str, int]) -> tuple[object, int]:
    """What rows of one batch must agree in, and the length of this one along the dimension that may be padded."""
    form = []
    lengths: set[int] = set()
    for tensor in tensors:
        shape = tensor.array.shape[1:]
        if tensor.name in pad and shape:
            lengths.add(shape[0])
            shape = shape[1:]
        form.append((tensor.datatype, shape))
    if len(lengths) > 1:
        raise BadRequest(f"inputs disagree on dimension 1, the length of a row: {sorted(lengths)}")
    return tuple(form), max(lengths, default=0)
