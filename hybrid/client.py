"""A small synchronous client: inference, metadata, and what a server says of itself, over one kept-alive connection.

Owns its connection. Knows no model and starts no thread. Errors of the server come back as the classes that it raised.
"""

import contextlib
import http.client
import ssl
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np
from msgspec import Struct

from hybrid.errors import BadRequest, DeadlineExceeded, HybridError, QueueFull, ServerUnreachable
from hybrid.messages import DTYPES, InferResponse, Signature, Tensor, TensorSpec, WantedOutput
from hybrid.protocol.oip_client import decode_response, encode_request
from hybrid.protocol.oip_meta import IndexEntry
from hybrid.telemetry import snapshot as snap

Values = np.ndarray[Any, Any] | Sequence[Any]

_LENGTH: Final = "Inference-Header-Content-Length"
#: What a connection shows whose other side has closed it: seen on sending or on reading, whichever comes first.
_CLOSED: Final = (http.client.RemoteDisconnected, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
_NAMES: Final = {dtype: name for name, dtype in DTYPES.items() if name != "BF16"}
_SHOWN_BYTES: Final = 200
_SHOWN_STATUS: Final = 20


class _Spec(Struct):
    name: str
    datatype: str
    shape: tuple[int, ...]


class _Metadata(Struct):
    inputs: tuple[_Spec, ...] = ()
    outputs: tuple[_Spec, ...] = ()
    platform: str = ""


class _Error(Struct):
    error: str
    code: str = ""


class _Answer(Struct, frozen=True):
    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """Talks to one server; not to be used by several threads at once. A context manager, which closes it.

    Every method raises `ServerUnreachable` when nothing answers there, `DeadlineExceeded` when no answer came within
    `timeout_s`, and else the error that the server sent.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        api_key: str = "",
        timeout_s: float = 60.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """Connect lazily, with the first call.

        Raises:
            BadRequest: the URL is none of http or https with a host.
        """
        self.url = url.rstrip("/")
        self._scheme, self._host, self._port, self._prefix = _split(self.url)
        self._headers = {"X-API-Key": api_key} if api_key else {}
        self._timeout_s = timeout_s
        self._tls = tls
        self._connection: http.client.HTTPConnection | None = None
        self._used = False  # whether the connection has carried an answer, so that the server may have closed it since

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. The next call opens another one."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._used = None, False

    # Inference -----------------------------------------------------------------------------------------------------

    def infer(
        self,
        model: str,
        inputs: Mapping[str, Values] | Sequence[Tensor],
        *,
        version: str = "",
        outputs: Sequence[str] | None = None,
        binary: bool = True,
        timeout_s: float | None = None,
    ) -> InferResponse:
        """Run one request. Inputs are tensors, or values by name: arrays, or lists of strings or bytes.

        Args:
            model: Name of the model.
            inputs: Values by the name of the input, the first dimension being rows.
            version: A version, or the latest one.
            outputs: Names of the outputs to return; None for all.
            binary: Whether tensors travel in their binary form, which every datatype has, or as JSON.
            timeout_s: Deadline for the server. The client itself waits a little longer for it to say so.
        """
        tensors = [_tensor(*item) for item in inputs.items()] if isinstance(inputs, Mapping) else inputs
        wanted = None if outputs is None else [WantedOutput(name, binary) for name in outputs]
        body, length = encode_request(tensors, binary=binary, outputs=wanted, timeout_s=timeout_s)
        headers = {"Content-Type": "application/json" if length is None else "application/octet-stream"}
        if length is not None:
            headers[_LENGTH] = str(length)
        answer = self._call("POST", f"{_path(model, version)}/infer", body, headers)
        found = answer.headers.get(_LENGTH.lower())
        return decode_response(answer.body, None if found is None else int(found))

    def metadata(self, model: str, version: str = "") -> Signature:
        """Return what a model takes and gives."""
        found = _decoded(self._call("GET", _path(model, version)), _Metadata)
        return Signature(_specs(found.inputs), _specs(found.outputs), found.platform)

    # The server ----------------------------------------------------------------------------------------------------

    def models(self) -> tuple[IndexEntry, ...]:
        """Return every model that the server knows, with its state."""
        found: tuple[IndexEntry, ...] = _decoded(self._call("POST", "/v2/repository/index"), tuple[IndexEntry, ...])
        return found

    def snapshot(self) -> snap.Snapshot:
        """Return everything that the server knows of itself at this moment."""
        return snap.decode(self._call("GET", "/hybrid/v1/snapshot").body)

    def stream(self) -> Iterator[snap.Snapshot]:
        """Yield a snapshot a second until the server ends the stream or the iterator is closed.

        It has a connection of its own, so that other calls may be made meanwhile.
        """
        connection = self._connect()
        try:
            connection.request("GET", self._prefix + "/hybrid/v1/stream", headers=self._headers)
            response = connection.getresponse()
            if response.status != 200:
                raise _error(_Answer(response.status, _lower(response), response.read()), self.url)
            for line in response:
                if line.startswith(b"data: "):
                    yield snap.decode(line[6:])
        except TimeoutError:
            raise DeadlineExceeded(f"no snapshot from {self.url} within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unreachable(error) from error
        finally:
            connection.close()

    # Connection ----------------------------------------------------------------------------------------------------

    def _call(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> _Answer:
        """Send one request. If the server has closed the idle connection meanwhile, send it once more on a new one.

        That is safe: nothing of an answer was received, and running an inference twice does no harm.
        """
        try:
            try:
                answer = self._exchange(method, path, body, headers or {})
            except _CLOSED:
                if not self._used:
                    raise
                self.close()
                answer = self._exchange(method, path, body, headers or {})
        except TimeoutError:
            self.close()
            raise DeadlineExceeded(f"no answer from {self.url} within {self._timeout_s:g} s") from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._unreachable(error) from error
        if answer.status != 200:
            raise _error(answer, self.url)
        return answer

    def _exchange(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> _Answer:
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        # Whoever refuses a body before all of it came answers and closes; the answer tells why sending failed.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connection.request(method, self._prefix + path, body, {**self._headers, **headers})
        response = connection.getresponse()
        self._used = False  # from here on a loss is no idle connection that was closed
        answer = _Answer(response.status, _lower(response), response.read())
        self._used = True
        if response.will_close:
            self.close()
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._scheme == "https":
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)

    def _unreachable(self, error: Exception) -> ServerUnreachable:
        if isinstance(error, ConnectionRefusedError):
            return ServerUnreachable(
                f"no server answers at {self.url} (connection refused); is `hybrid serve` running?"
            )
        if isinstance(error, ssl.SSLError):
            return ServerUnreachable(f"{self.url}: TLS failed: {error.reason or error}")
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, http.client.BadStatusLine):
            text = f"what answers there does not speak HTTP/1.1 ({text[:_SHOWN_STATUS]!r})"
        return ServerUnreachable(f"no answer from {self.url}: {text}")


def _split(url: str) -> tuple[str, str, int | None, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadRequest(f"url {url}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest(f"url {url}: expected http://HOST:PORT or https://HOST:PORT")
    return parts.scheme, parts.hostname, port, parts.path


def _path(model: str, version: str) -> str:
    path = f"/v2/models/{quote(model, safe=':')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def _lower(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}


def _tensor(name: str, values: Values) -> Tensor:
    array = np.asarray(values)
    if array.dtype.kind in "USO":
        array = np.asarray(values, np.object_)
        elements = [item.encode() if isinstance(item, str) else item for item in array.flat]
        wrong = [type(item).__name__ for item in elements if not isinstance(item, bytes)]
        if wrong:
            raise BadRequest(f"input {name!r}: expected numbers, strings or bytes, got {wrong[0]}")
        encoded = np.empty(len(elements), np.object_)
        encoded[:] = elements
        return Tensor(name, "BYTES", encoded.reshape(array.shape))
    datatype = _NAMES.get(array.dtype)
    if datatype is None:
        raise BadRequest(f"input {name!r}: numpy type {array.dtype} has no datatype in the protocol")
    return Tensor(name, datatype, array)


def _decoded(answer: _Answer, kind: Any) -> Any:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise HybridError(f"the server's answer is not what was expected: {error}") from error


def _specs(found: Sequence[_Spec]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(spec.name, spec.datatype, spec.shape) for spec in found)


def _error(answer: _Answer, url: str) -> HybridError:
    """Return the error that the server sent, as the class that its code names."""
    try:
        told = msgspec.json.decode(answer.body, type=_Error)
    except msgspec.DecodeError:
        text = answer.body[:_SHOWN_BYTES].decode(errors="replace")
        return HybridError(f"{url} answered with status {answer.status}: {text}")
    kind = _by_code().get(told.code, HybridError)
    if kind is QueueFull:
        after = answer.headers.get("retry-after", "")
        return QueueFull(told.error, float(after) if after.isdigit() else 1.0)
    return kind(told.error)


def _by_code(kind: type[HybridError] = HybridError) -> dict[str, type[HybridError]]:
    found = {kind("").code: kind}
    for sub in kind.__subclasses__():
        if sub.__module__ == HybridError.__module__:  # those of other modules never travel, and are made otherwise
            found |= _by_code(sub)
    return found
