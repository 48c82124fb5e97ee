"""Open Inference Protocol bodies that carry no tensors: errors, metadata, repository index, health.

Owns their JSON fields. Must never know where the facts come from.
"""

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hybrid.errors import HybridError
from hybrid.messages import Signature, TensorSpec


class IndexEntry(Struct, frozen=True):
    """One version of a model in the repository index. `state` is READY, UNAVAILABLE, LOADING or UNLOADING."""

    name: str
    version: str
    state: str
    reason: str = ""


def encode_error(err: HybridError) -> bytes:
    """Encode the one error shape: the text for people, and a stable code for programs."""
    return msgspec.json.encode({"error": _encodable(str(err) or err.code), "code": err.code})


def encode_metadata(name: str, versions: Sequence[str], signature: Signature) -> bytes:
    """Encode the metadata of a model, for `GET /v2/models/{name}`."""
    return msgspec.json.encode(
        {
            "name": name,
            "versions": list(versions),
            "platform": signature.platform,
            "inputs": [_spec(spec) for spec in signature.inputs],
            "outputs": [_spec(spec) for spec in signature.outputs],
        }
    )


def encode_server_metadata(name: str, version: str, extensions: Sequence[str]) -> bytes:
    """Encode the metadata of the server, for `GET /v2`."""
    return msgspec.json.encode({"name": name, "version": version, "extensions": list(extensions)})


def encode_index(entries: Sequence[IndexEntry]) -> bytes:
    """Encode the repository index, for `POST /v2/repository/index`."""
    return msgspec.json.encode(list(entries))


def encode_live(live: bool) -> bytes:
    """Encode the answer of `GET /v2/health/live`; the status code says the same."""
    return msgspec.json.encode({"live": live})


def encode_ready(ready: bool) -> bytes:
    """Encode the answer of `GET /v2/health/ready`; the status code says the same."""
    return msgspec.json.encode({"ready": ready})


def encode_model_ready(name: str, ready: bool) -> bytes:
    """Encode the answer of `GET /v2/models/{name}/ready`; the status code says the same."""
    return msgspec.json.encode({"name": name, "ready": ready})


def _spec(spec: TensorSpec) -> dict[str, object]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}


def _encodable(text: str) -> str:
    """Escape what UTF-8 cannot carry, such as a file name that was not UTF-8: an error must always reach the client."""
    return text.encode(errors="backslashreplace").decode()
