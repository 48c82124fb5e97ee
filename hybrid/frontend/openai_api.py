"""`/v1/embeddings` and `/v1/models`, as OpenAI's clients speak them, over `serving`.

Owns these paths and how a long list of inputs is worked off: in parts, a few of them at a time, so that it neither
overflows the queue nor stands in everybody's way. Callbacks and no task, as everywhere in front of the queue.
"""

import time
from collections.abc import Sequence
from typing import Final, cast

import numpy as np

from hybrid.errors import BadRequest, ClientGone, HybridError, NotFound, NotReady, OutputInvalid
from hybrid.frontend import reply
from hybrid.frontend.admission import Admission
from hybrid.frontend.exchange import Exchange
from hybrid.messages import InferRequest, InferResponse, Tensor, TensorSpec, Timings, WantedOutput
from hybrid.preprocess.base import Row, TextStep
from hybrid.protocol import openai
from hybrid.serving.inference import Answer, Inference
from hybrid.serving.model import ServedModel
from hybrid.serving.repository import Repository

#: Rows of a part: enough for full batches, few enough that encoding their vectors stops nobody for long.
_PART_ROWS: Final = 128
#: Parts in work at once: one is computed while the next waits, so that workers never run dry.
_PARTS_OPEN: Final = 2
_FLOATS: Final = ("FP32", "FP16", "FP64")


class OpenAiApi:
    """Answers everything below `/v1`, errors included, in the form of OpenAI."""

    def __init__(self, repository: Repository, admission: Admission) -> None:
        self.draining = False  # new requests are refused
        self._repository = repository
        self._admission = admission
        self._created = int(time.time())

    def handle(self, exchange: Exchange, segments: Sequence[str]) -> None:
        """Take an exchange; it is answered exactly once, now or later."""
        try:
            self._admission.authorise(exchange.headers)
            if segments[1:] == ["embeddings"]:
                exchange.expect("POST")
                self._embed(exchange)
            elif segments[1:] == ["models"]:
                exchange.expect("GET")
                names = dict.fromkeys(model.name for model in self._repository if _is_embedding(model))
                exchange.reply(200, openai.encode_models(list(names), self._created))
            elif segments[1:2] == ["models"]:
                exchange.expect("GET")
                name = self._model("/".join(segments[2:])).name
                exchange.reply(200, openai.encode_model(name, self._created))
            else:
                raise NotFound(f"no such path: {exchange.path[:200]}")
        except HybridError as error:
            _fail(exchange, error)

    def _model(self, name: str) -> ServedModel:
        try:
            model = self._repository.get(name)
        except NotFound as error:
            raise NotFound(f"model: {error}") from None
        if not _is_embedding(model):
            raise NotFound(f"model: {name} makes no embeddings")
        return model

    def _embed(self, exchange: Exchange) -> None:
        request = openai.decode_embeddings(exchange.body)
        model = self._model(request.model)
        try:
            if self.draining:
                raise NotReady("the server is draining and takes no new requests")
            deadline = self._admission.deadline(exchange.received_at, None, exchange.headers)
            embedding = Embedding(exchange, model, request, deadline)
        except HybridError as error:
            model.tally.failed(error)
            raise
        embedding.start()


class Embedding:
    """One request on its way through a model, as several inferences which are counted as one."""

    def __init__(
        self, exchange: Exchange, model: ServedModel, request: openai.EmbeddingRequest, deadline: float
    ) -> None:
        """Check the request.

        Raises:
            HybridError: it does not fit the model, or the model is not ready.
        """
        self._exchange = exchange
        self._model = model
        self._request = request
        self._deadline = deadline
        if model.signature is None:
            raise NotReady(f"model {model.name} is not ready: {model.why_not_ready}")
        output = _vector_output(model.signature.outputs)
        if output.shape[1] >= 0:
            self._check_dimensions(output.shape[1])
        if model.settings.preprocess.text is None or model.preprocessor is None:
            raise BadRequest(f"model: {model.name} takes no text; use /v2/models/{model.name}/infer")
        self._input = model.preprocessor.input.name
        self._outputs = (WantedOutput(output.name, binary=True),)
        self._rows = _rows_of_ids(cast(TextStep, model.preprocessor), request.ids)
        self._count = len(request.texts) or len(self._rows)
        self._part_rows = max(1, min(_PART_ROWS, model.plan.queue_rows // _PARTS_OPEN))
        self._parts: list[bytes] = [b""] * -(-self._count // self._part_rows)
        self._begun = self._done = self._tokens = 0
        self._open: dict[int, Inference] = {}
        self._times: list[Timings] = []
        self._encode_s = 0.0
        self._over = False
        self._parse_s = time.monotonic() - exchange.received_at

    def start(self) -> None:
        """Send the first parts on their way; each that is done is followed by another."""
        self._exchange.on_disconnect = self._leave
        for _ in range(min(_PARTS_OPEN, len(self._parts))):
            self._begin_next()

    def _begin_next(self) -> None:
        if self._over or self._begun == len(self._parts):
            return
        number = self._begun
        self._begun += 1
        first = number * self._part_rows
        texts = self._request.texts[first : first + self._part_rows]
        rows = self._rows[first : first + self._part_rows]
        tensors = (Tensor(self._input, "BYTES", np.array(texts, np.object_)),) if texts else ()
        request = InferRequest(inputs=tensors, outputs=self._outputs, binary=True)
        held_bytes = len(self._exchange.body) if number == 0 else 0
        inference = Inference(self._model, request, self._exchange.received_at, self._parse_s, held_bytes)
        self._open[number] = inference
        try:
            inference.start(self._deadline, lambda answer: self._on_answer(number, answer), rows or None)
        except HybridError as error:
            self._fail(number, error)

    def _on_answer(self, number: int, answer: Answer) -> None:
        if self._over:
            return
        if isinstance(answer, HybridError):
            self._fail(number, answer)
            return
        began = time.monotonic()
        try:
            self._parts[number] = self._encoded(number, answer)
        except HybridError as error:
            self._model.tally.failed(error)
            self._fail(number, error)
            return
        self._encode_s += time.monotonic() - began
        del self._open[number]
        self._tokens += answer.tokens
        self._times.append(answer.timings)
        self._done += 1
        self._begin_next()
        if self._done == len(self._parts) and not self._over:
            self._finish()

    def _encoded(self, number: int, answer: InferResponse) -> bytes:
        output = next(tensor for tensor in answer.outputs if tensor.name == self._outputs[0].name)
        if not answer.finite and not self._request.base64:
            raise OutputInvalid("a vector holds numbers that are not finite; ask for encoding_format base64")
        self._check_dimensions(output.array.shape[1])
        return openai.encode_vectors(output.array, number * self._part_rows, self._request.base64)

    def _check_dimensions(self, size: int) -> None:
        if self._request.dimensions not in (None, size):
            raise BadRequest(
                f"dimensions: the vectors of {self._model.name} have {size}, got {self._request.dimensions}"
            )

    def _finish(self) -> None:
        self._over = True
        self._exchange.reply(200, openai.encode_embeddings(self._model.name, self._parts, self._tokens))
        # Parts overlap, so that their sum would be longer than the request took.
        longest = Timings(*map(max, zip(*[_values(times) for times in self._times], strict=True)))
        self._model.tally.succeeded(longest, self._encode_s, time.monotonic() - self._exchange.received_at)

    def _fail(self, number: int, error: HybridError) -> None:
        """Answer with the error of one part, which has counted itself, and drop the others."""
        if not self._over:
            self._open.pop(number, None)
            self._drop()
            _fail(self._exchange, error)

    def _leave(self) -> None:
        if not self._over:
            self._drop()
            self._model.tally.failed(ClientGone("the client left"))

    def _drop(self) -> None:
        self._over = True
        for inference in self._open.values():
            inference.cancel(counted=False)
        self._open.clear()


def _rows_of_ids(step: TextStep, ids: Sequence[Sequence[int]]) -> list[Row]:
    rows = []
    for index, row in enumerate(ids):
        try:
            rows.append(step.row_of_ids(row))
        except BadRequest as error:
            raise BadRequest(f"input[{index}]: {error}") from None
    return rows


def _vector_output(outputs: Sequence[TensorSpec]) -> TensorSpec:
    for spec in outputs:
        if len(spec.shape) == 2 and spec.datatype in _FLOATS:
            return spec
    raise BadRequest("model: it gives no vector per row")


def _is_embedding(model: ServedModel) -> bool:
    return model.settings.task == "embed"


def _values(times: Timings) -> tuple[float, ...]:
    return tuple([getattr(times, stage) for stage in times.__struct_fields__])


def _fail(exchange: Exchange, error: HybridError) -> None:
    exchange.reply(error.status, openai.encode_error(error), extra=reply.error_headers(error))
