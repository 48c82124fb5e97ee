"""HTTP requests in, HTTP answers out: the Open Inference Protocol over `serving`.

Owns routing. Inference has a table of exact paths, so that the hot path does no parsing; all else is split by segments.
"""

import asyncio
import time
from typing import Final
from urllib.parse import unquote

from hybrid import __version__
from hybrid.errors import BadRequest, ClientGone, HybridError, NotFound, NotReady
from hybrid.frontend.admission import Admission
from hybrid.frontend.decoding import HEAVY_ANSWER_BYTES, HEAVY_BYTES, LargeBodies
from hybrid.frontend.exchange import Exchange
from hybrid.frontend.models_api import ModelsApi
from hybrid.frontend.openai_api import OpenAiApi
from hybrid.frontend.ops import Operations
from hybrid.messages import InferRequest, InferResponse
from hybrid.protocol.oip_decode import decode_infer
from hybrid.protocol.oip_encode import Encoded, encode_infer
from hybrid.protocol.oip_meta import (
    encode_live,
    encode_metadata,
    encode_model_ready,
    encode_ready,
    encode_server_metadata,
)
from hybrid.serving.inference import Inference
from hybrid.serving.model import ServedModel
from hybrid.serving.repository import Repository
from hybrid.serving.stats import model_stats

_EXTENSIONS: Final = ("binary_tensor_data", "model_repository", "statistics", "schedule_policy")


class Handler:
    """Answers every exchange, at once or when its inference ends."""

    def __init__(
        self,
        repository: Repository,
        admission: Admission,
        models_api: ModelsApi,
        operations: Operations,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.leaving = False  # not ready any more, but whoever still comes is served
        self.draining = False  # new requests are refused
        self._repository = repository
        self._admission = admission
        self._models_api = models_api
        self._openai = OpenAiApi(repository, admission)
        self._operations = operations
        self._infer_paths = repository.infer_paths
        self._large = LargeBodies(loop)

    def __call__(self, exchange: Exchange) -> None:
        """Take an exchange; it is answered exactly once, now or later."""
        try:
            model = self._infer_paths.get(exchange.path)
            if model is not None and exchange.method == "POST":
                self._admission.authorise(exchange.headers)
                self._take(exchange, model)
            else:
                self._route(exchange)
        except HybridError as error:
            exchange.fail(error)

    def close(self) -> None:
        """Let go of what runs beside the loop."""
        self._large.close()

    # Inference -----------------------------------------------------------------------------------------------------

    def _take(self, exchange: Exchange, model: ServedModel) -> None:
        began = time.monotonic()
        length: int | None = None
        try:
            if self.draining:
                raise NotReady("the server is draining and takes no new requests")
            value = exchange.headers.get(b"inference-header-content-length")
            length = None if value is None else _header_length(value)
            json_bytes = len(exchange.body) if length is None else length
            decoded = decode_infer(exchange.body, length) if json_bytes <= HEAVY_BYTES else None
        except HybridError as error:
            model.tally.failed(error)
            raise
        if decoded is not None:
            self._infer(exchange, model, decoded, time.monotonic() - began)
        else:
            model.open_n += 1  # a reload meanwhile lets this model live until the request is done
            self._large.decode(
                exchange.body, length, lambda late: self._take_late(exchange, model, late, time.monotonic() - began)
            )

    def _take_late(
        self, exchange: Exchange, model: ServedModel, decoded: InferRequest | HybridError, parse_s: float
    ) -> None:
        model.open_n -= 1
        if exchange.disconnected:
            model.tally.failed(ClientGone("the client left"))
        elif isinstance(decoded, HybridError):
            model.tally.failed(decoded)
            exchange.fail(decoded)
        else:
            try:
                self._infer(exchange, model, decoded, parse_s)
            except HybridError as error:
                exchange.fail(error)

    def _infer(self, exchange: Exchange, model: ServedModel, request: InferRequest, parse_s: float) -> None:
        try:
            deadline = self._admission.deadline(exchange.received_at, request.timeout_s, exchange.headers)
        except HybridError as error:
            model.tally.failed(error)
            raise
        inference = Inference(model, request, exchange.received_at, parse_s, len(exchange.body))
        inference.start(deadline, lambda answer: self._answer(exchange, model, request, answer))
        exchange.on_disconnect = inference.cancel

    def _answer(
        self, exchange: Exchange, model: ServedModel, request: InferRequest, answer: InferResponse | HybridError
    ) -> None:
        if isinstance(answer, HybridError):
            exchange.fail(answer)
            return
        began = time.monotonic()
        if _is_large_json(answer, request):
            self._large.encode(answer, request, lambda late: _reply(exchange, model, answer, late, began))
            return
        encoded: Encoded | HybridError
        try:
            encoded = encode_infer(answer, request)
        except HybridError as error:
            encoded = error
        _reply(exchange, model, answer, encoded, began)

    # The rest ------------------------------------------------------------------------------------------------------

    def _route(self, exchange: Exchange) -> None:
        segments = [unquote(segment) for segment in exchange.path.strip("/").split("/")]
        if segments[0] == "v1":
            self._openai.draining = self.draining
            self._openai.handle(exchange, segments)
            return
        if segments[:2] == ["v2", "health"]:
            self._health(exchange, segments[2:])
            return
        if self._models_api.handle(exchange, segments):
            return
        self._admission.authorise(exchange.headers)
        if segments == ["v2"]:
            exchange.expect("GET")
            exchange.reply(200, encode_server_metadata("hybrid", __version__, _EXTENSIONS))
        elif segments[:2] == ["v2", "models"] and len(segments) > 2:
            self._model(exchange, segments[2], segments[3:])
        elif not self._operations.handle(exchange, segments):
            raise NotFound(f"no such path: {exchange.path[:200]}")

    def _health(self, exchange: Exchange, rest: list[str]) -> None:
        exchange.expect("GET")
        if rest == ["live"]:
            exchange.reply(200, encode_live(True))
        elif rest == ["ready"]:
            ready = self._repository.ready and not self.leaving
            exchange.reply(200 if ready else 503, encode_ready(ready))
        else:
            raise NotFound(f"no such path: {exchange.path[:200]}")

    def _model(self, exchange: Exchange, name: str, rest: list[str]) -> None:
        version: str | None = None
        if rest[:1] == ["versions"] and len(rest) > 1:
            version, rest = rest[1], rest[2:]
        if rest == ["ready"]:
            exchange.expect("GET")
            ready = self._repository.serves(name, version) and not self.leaving
            exchange.reply(200 if ready else 503, encode_model_ready(name, ready))
            return
        model = self._repository.get(name, version)
        if rest == ["infer"]:  # a percent-encoded spelling of a known path, or the wrong method
            exchange.expect("POST")
            self._take(exchange, model)
        elif not rest:
            exchange.expect("GET")
            versions = self._repository.versions(name) if version is None else [version]
            exchange.reply(200, encode_metadata(name, versions, model.public_signature()))
        elif rest == ["stats"]:
            exchange.expect("GET")
            exchange.reply(200, model_stats(model))
        else:
            raise NotFound(f"no such path: {exchange.path[:200]}")


def _reply(
    exchange: Exchange, model: ServedModel, answer: InferResponse, encoded: Encoded | HybridError, began: float
) -> None:
    if exchange.disconnected:  # while a large answer was being encoded
        encoded = ClientGone("the client left")
    if isinstance(encoded, HybridError):
        model.tally.failed(encoded)
        exchange.fail(encoded)
        return
    exchange.reply(200, encoded.body, encoded.content_type, encoded.extra)
    now = time.monotonic()
    model.tally.succeeded(answer.timings, now - began, now - exchange.received_at)


def _is_large_json(answer: InferResponse, request: InferRequest) -> bool:
    all_binary = request.binary and request.outputs is None
    return not all_binary and sum([tensor.nbytes for tensor in answer.outputs]) > HEAVY_ANSWER_BYTES


def _header_length(value: bytes) -> int:
    if not value.isdigit() or len(value) > 12:
        shown = value.decode("latin-1")[:40]
        raise BadRequest(f"header Inference-Header-Content-Length: expected a number of bytes, got {shown!r}")
    return int(value)
