"""gRPC calls in, messages out: the Open Inference Protocol over `serving`.

Owns what each method does. Knows no gRPC library: `frontend.grpc` calls the methods with bytes and sends what they
return. A method returns an error instead of raising it where the error was kept before, for raising it again would tie
it into a reference cycle with the frames that it passed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

from msgspec import Struct

from hybrid import __version__
from hybrid.errors import ClientGone, DeadlineExceeded, HybridError, NotReady, TooLarge
from hybrid.frontend.admission import Admission
from hybrid.frontend.decoding import HEAVY_BYTES, LargeBodies
from hybrid.frontend.models_api import refuse_overrides
from hybrid.messages import InferRequest, InferResponse
from hybrid.protocol import oip_grpc, oip_grpc_meta
from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb
from hybrid.serving.inference import Answer, Inference
from hybrid.serving.manager import Manager
from hybrid.serving.model import ServedModel
from hybrid.serving.repository import Repository

_T = TypeVar("_T")

_EXTENSIONS: Final = ("model_repository", "schedule_policy")
#: A call cancelled so shortly before its deadline was cancelled by its deadline.
_DEADLINE_SLACK_S: Final = 0.02
_LATE: Final = "the deadline of the call passed"


class Call(Struct, frozen=True, gc=False):
    """What is known of a call besides its message. Times are monotonic seconds; without a deadline it is inf.

    `peer` is the address of the client, with its port.
    """

    metadata: Mapping[bytes, bytes]
    received_at: float
    deadline: float
    peer: str = ""


Result = bytes | HybridError
Method = Callable[[bytes, Call], Awaitable[Result]]


class Service:
    """The methods of `inference.GRPCInferenceService`."""

    def __init__(self, repository: Repository, manager: Manager, admission: Admission, max_answer_bytes: int) -> None:
        self.leaving = False  # not ready any more, but whoever still comes is served
        self.draining = False  # new requests are refused
        self._repository = repository
        self._manager = manager
        self._admission = admission
        self._loop = loop = asyncio.get_running_loop()
        self._max_answer_bytes = max_answer_bytes
        self._large = LargeBodies(loop)

    def methods(self) -> dict[str, Method]:
        """Return every method by its name in the protocol."""
        return {
            "ServerLive": self._server_live,
            "ServerReady": self._server_ready,
            "ModelReady": self._model_ready,
            "ServerMetadata": self._server_metadata,
            "ModelMetadata": self._model_metadata,
            "ModelInfer": self._model_infer,
            "RepositoryIndex": self._repository_index,
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": self._unload,
        }

    def close(self) -> None:
        """Let go of what runs beside the loop."""
        self._large.close()

    # Inference -----------------------------------------------------------------------------------------------------

    async def _model_infer(self, data: bytes, call: Call) -> Result:
        self._admission.authorise(call.metadata)
        message = oip_grpc.parse_infer(data)
        model = self._repository.get(message.model_name, message.model_version or None)
        try:
            if self.draining:
                raise NotReady("the server is draining and takes no new requests")
            request = await self._decoded(model, message, len(data))
            if isinstance(request, HybridError):
                model.tally.failed(request)
                return request
            deadline = self._deadline(call, request)
        except HybridError as error:
            model.tally.failed(error)
            raise
        except asyncio.CancelledError:
            late = time.monotonic() >= call.deadline - _DEADLINE_SLACK_S
            model.tally.failed(DeadlineExceeded(_LATE) if late else ClientGone("the client left"))
            raise
        inference = Inference(model, request, call.received_at, time.monotonic() - call.received_at, len(data))
        answer = await self._answer(inference, model, deadline)
        return answer if isinstance(answer, HybridError) else self._encoded(model, request, answer, call.received_at)

    async def _decoded(
        self, model: ServedModel, message: pb.ModelInferRequest, nbytes: int
    ) -> InferRequest | HybridError:
        if nbytes <= HEAVY_BYTES:
            return oip_grpc.decode_infer(message)
        done: asyncio.Future[InferRequest | HybridError] = self._loop.create_future()
        self._large.run(lambda: _decode(message), lambda decoded: _settle(done, decoded))
        model.open_n += 1  # a reload meanwhile lets this model live until the request is done
        try:
            return await done
        finally:
            model.open_n -= 1

    def _deadline(self, call: Call, request: InferRequest) -> float:
        deadline = self._admission.deadline(call.received_at, request.timeout_s, call.metadata)
        if call.deadline <= time.monotonic():
            raise DeadlineExceeded("the deadline passed before the request was read")
        return min(deadline, call.deadline)

    async def _answer(self, inference: Inference, model: ServedModel, deadline: float) -> Answer:
        """Wait for the answer. Cancelled when the client leaves and, by the library, when the call's deadline passes.

        The second must count as late, not as left.
        """
        done: asyncio.Future[Answer] = self._loop.create_future()
        inference.start(deadline, lambda answer: _settle(done, answer))
        try:
            return await done
        except asyncio.CancelledError:
            if done.done() and not done.cancelled():  # the answer came in the same turn of the loop
                if not isinstance(done.result(), HybridError):
                    model.tally.failed(ClientGone("the client left"))
            elif time.monotonic() < deadline - _DEADLINE_SLACK_S:
                inference.cancel()
            else:  # not left to its own deadline: an answer before that would find nobody and be counted nowhere
                inference.cancel(counted=False)
                model.tally.failed(DeadlineExceeded(_LATE))
            raise

    def _encoded(self, model: ServedModel, request: InferRequest, answer: InferResponse, received_at: float) -> bytes:
        began, limit = time.monotonic(), self._max_answer_bytes
        try:
            data = oip_grpc.encode_infer(answer, request)
            if len(data) > limit:
                raise TooLarge(f"the answer has {len(data)} bytes, the limit is {limit} (server.http.max_body_bytes)")
        except HybridError as error:
            model.tally.failed(error)
            raise
        now = time.monotonic()
        model.tally.succeeded(answer.timings, now - began, now - received_at)
        return data

    # The rest ------------------------------------------------------------------------------------------------------

    async def _server_live(self, data: bytes, call: Call) -> Result:
        return oip_grpc_meta.live(True)

    async def _server_ready(self, data: bytes, call: Call) -> Result:
        return oip_grpc_meta.ready(self._repository.ready and not self.leaving)

    async def _model_ready(self, data: bytes, call: Call) -> Result:
        self._admission.authorise(call.metadata)
        ready = self._repository.serves(*oip_grpc_meta.read_model(data))
        return oip_grpc_meta.ready(ready and not self.leaving)

    async def _server_metadata(self, data: bytes, call: Call) -> Result:
        self._admission.authorise(call.metadata)
        return oip_grpc_meta.server_metadata("hybrid", __version__, _EXTENSIONS)

    async def _model_metadata(self, data: bytes, call: Call) -> Result:
        self._admission.authorise(call.metadata)
        name, version = oip_grpc_meta.read_model(data)
        model = self._repository.get(name, version)
        versions = self._repository.versions(name) if version is None else [version]
        return oip_grpc_meta.model_metadata(name, versions, model.public_signature())

    async def _repository_index(self, data: bytes, call: Call) -> Result:
        self._admission.authorise(call.metadata)
        ready_only = oip_grpc_meta.read_ready_only(data)
        entries = await self._manager.index()
        return oip_grpc_meta.index([entry for entry in entries if entry.state == "READY" or not ready_only])

    async def _load(self, data: bytes, call: Call) -> Result:
        self._admission.authorise_admin(call.metadata, call.peer)
        name, parameters = oip_grpc_meta.read_change(data)
        refuse_overrides(parameters)
        await self._manager.load(name)
        return oip_grpc_meta.loaded(name)

    async def _unload(self, data: bytes, call: Call) -> Result:
        self._admission.authorise_admin(call.metadata, call.peer)
        name, parameters = oip_grpc_meta.read_change(data)
        refuse_overrides(parameters)
        await self._manager.unload(name)
        return oip_grpc_meta.unloaded(name)


def _decode(message: pb.ModelInferRequest) -> InferRequest | HybridError:
    try:
        return oip_grpc.decode_infer(message)
    except HybridError as error:
        return error


def _settle(done: asyncio.Future[_T], result: _T) -> None:
    if not done.done():
        done.set_result(result)
