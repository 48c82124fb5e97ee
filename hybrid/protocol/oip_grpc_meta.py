"""Open Inference Protocol over gRPC: the messages that carry no tensors (health, metadata, repository).

Owns their fields. Must never know where the facts come from.
"""

from collections.abc import Sequence

from google.protobuf.message import DecodeError, Message

from hybrid.errors import BadRequest
from hybrid.messages import Signature, TensorSpec
from hybrid.protocol.grpc import grpc_predict_v2_pb2 as pb
from hybrid.protocol.oip_meta import IndexEntry


def read_model(data: bytes) -> tuple[str, str | None]:
    """Read a `ModelReadyRequest` or `ModelMetadataRequest`: name, and version if one is asked for.

    Raises:
        BadRequest: the bytes are no such message.
    """
    try:
        message = pb.ModelReadyRequest.FromString(data)  # both have the same fields
    except DecodeError as error:
        raise BadRequest(f"body: {len(data)} bytes do not name a model") from error
    return message.name, message.version or None


def read_ready_only(data: bytes) -> bool:
    """Read a `RepositoryIndexRequest`: whether only ready models are asked for.

    Raises:
        BadRequest: the bytes are no such message.
    """
    try:
        return bool(pb.RepositoryIndexRequest.FromString(data).ready)
    except DecodeError as error:
        raise BadRequest(f"body: {len(data)} bytes are not a RepositoryIndexRequest") from error


def read_change(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Read a `RepositoryModelLoadRequest` or `RepositoryModelUnloadRequest`: name, and names of the parameters.

    Raises:
        BadRequest: the bytes are no such message.
    """
    try:
        message = pb.RepositoryModelLoadRequest.FromString(data)  # both have the same fields
    except DecodeError as error:
        raise BadRequest(f"body: {len(data)} bytes do not name a model to load or unload") from error
    return message.model_name or message.repository_name, tuple(sorted(message.parameters))


def live(value: bool) -> bytes:
    """Encode a `ServerLiveResponse`."""
    return _bytes(pb.ServerLiveResponse(live=value))


def ready(value: bool) -> bytes:
    """Encode a `ServerReadyResponse` or a `ModelReadyResponse`, which are the same."""
    return _bytes(pb.ServerReadyResponse(ready=value))


def server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """Encode a `ServerMetadataResponse`."""
    return _bytes(pb.ServerMetadataResponse(name=name, version=version, extensions=extensions))


def model_metadata(name: str, versions: Sequence[str], signature: Signature) -> bytes:
    """Encode a `ModelMetadataResponse`."""
    return _bytes(
        pb.ModelMetadataResponse(
            name=name,
            versions=versions,
            platform=signature.platform,
            inputs=[_spec(spec) for spec in signature.inputs],
            outputs=[_spec(spec) for spec in signature.outputs],
        )
    )


def index(entries: Sequence[IndexEntry]) -> bytes:
    """Encode a `RepositoryIndexResponse`."""
    entry = pb.RepositoryIndexResponse.ModelIndex
    return _bytes(
        pb.RepositoryIndexResponse(
            models=[entry(name=e.name, version=e.version, state=e.state, reason=e.reason) for e in entries]
        )
    )


def loaded(name: str) -> bytes:
    """Encode a `RepositoryModelLoadResponse`, which is sent when it is done."""
    return _bytes(pb.RepositoryModelLoadResponse(model_name=name, isLoaded=True))


def unloaded(name: str) -> bytes:
    """Encode a `RepositoryModelUnloadResponse`, which is sent when it is done."""
    return _bytes(pb.RepositoryModelUnloadResponse(model_name=name, isUnloaded=True))


def _spec(spec: TensorSpec) -> pb.ModelMetadataResponse.TensorMetadata:
    return pb.ModelMetadataResponse.TensorMetadata(name=spec.name, datatype=spec.datatype, shape=spec.shape)


def _bytes(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    return data
