"""Rows to measure with, as close to what the server will feed as can be known before the first request.

A model with a preprocess step gets its example rows through that very step; others get made-up numbers. Knows no
engine.
"""

import base64
from collections.abc import Callable, Sequence
from typing import Final

from hybrid.config import ModelSettings
from hybrid.engines import warmup
from hybrid.engines.base import Arrays, EngineFailure
from hybrid.errors import HybridError
from hybrid.messages import Signature
from hybrid.preprocess.base import Preprocessor, Row
from hybrid.preprocess.build import build
from hybrid.preprocess.short import inline_limit_bytes

#: Length of variable dimensions that nothing else tells: a sentence or two.
USUAL_LENGTH: Final = 32
#: Integers may be ids, flags or zero only: tried from the most telling to the safest.
_INTEGER_LIMITS: Final = (100, 2, 1)


class Feed:
    """Makes inputs for one model. `length` is that of variable dimensions, 0 where there are none.

    `step` makes rows of `items`; None where the model or its examples have none. `in_loop`: the server itself would
    make the first of them, on its own. `has_images`: the items are encoded images, not texts.
    """

    def __init__(self, model: ModelSettings, signature: Signature, length: int) -> None:
        self._signature = signature
        self._limit = _INTEGER_LIMITS[0]
        self.step, self.items, self._examples = _examples(model, signature)
        self.has_images = model.preprocess.image is not None
        limit_bytes = inline_limit_bytes(model.preprocess)
        self.in_loop = self.step is not None and limit_bytes > 0 and len(self.items[0]) <= limit_bytes
        self.variable = any(-1 in spec.shape[1:] for spec in signature.inputs)
        text = model.preprocess.text is not None
        if self.step is not None and text:
            length = self.step.size(self._examples)
        self.length = length if self.variable else 0

    def rows(self, count: int) -> Arrays:
        """Return `count` rows."""
        if self.step is None:
            return warmup.distinct_inputs(self._signature, count, self.length, self._limit)
        rows = [self._examples[index % len(self._examples)] for index in range(count)]
        return {tensor.name: tensor.array for tensor in self.step.assemble(rows)}

    def settle(self, run: Callable[[Arrays, int], object], rows: int) -> None:
        """Find rows that the model takes, by running some.

        Raises:
            EngineFailure: it takes none of them.
        """
        for limit in _INTEGER_LIMITS:
            self._limit = limit
            try:
                run(self.rows(rows), rows)
            except EngineFailure:
                if self.step is None and limit != _INTEGER_LIMITS[-1]:
                    continue
                raise
            return


def _examples(model: ModelSettings, signature: Signature) -> tuple[Preprocessor | None, Sequence[bytes], Sequence[Row]]:
    """The preprocess step with the example items and the rows that it makes of them; no step where either is missing.

    Static batching gives rows a length of its own, which no example has.
    """
    static = model.batching.kind == "static" and bool(model.batching.pad_inputs)
    if not model.example_rows or static:
        return None, (), ()
    try:
        step = build(model.preprocess, signature)
        if step is None:
            return None, (), ()
        image = model.preprocess.image is not None
        items = [base64.b64decode(row) if image else _text(step, row) for row in model.example_rows]
        return step, items, [step.row(item) for item in items]
    except (HybridError, ValueError):  # of base64, too
        return None, (), ()  # whoever serves the model says what is wrong with the step; time is the same without it


def _text(step: Preprocessor, text: str) -> bytes:
    """Said again until it has the usual length: examples are shorter than what a server gets to read."""
    size = step.size([step.row(text.encode())])
    if not text.strip() or size >= USUAL_LENGTH:
        return text.encode()
    return " ".join([text] * -(-USUAL_LENGTH // size)).encode()
