"""The server that is measured: one that is started here for the purpose, or one that runs somewhere.

Owns its process, if it is ours, and the few questions that are asked beside the load. Must never know what is measured.
"""

import contextlib
import http.client
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import psutil

from hybrid.errors import ConfigError, StartupError
from hybrid.load.payloads import ModelMetadata, Payload, decode_metadata
from hybrid.load.spec import Address
from hybrid.messages import InferResponse
from hybrid.protocol.oip_client import decode_response
from hybrid.telemetry.snapshot import Snapshot, decode

_READY: Final = re.compile(r"ready on (https?://\S+)")
_ANSWER_S: Final = 10.0
_STOP_S: Final = 40.0
FOREIGN: Final = ("HYBRID_API_KEYS", "HYBRID_PORT", "HYBRID_GRPC_PORT")  # meant for the user's server, not for ours


class Refused(StartupError):
    """An answer that is an error. `answer_status` is its HTTP status, `words` what the server said."""

    def __init__(self, message: str, answer_status: int, words: str) -> None:
        super().__init__(message)
        self.answer_status = answer_status
        self.words = words


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The load follows none either, and another server is not to be told the key of this one."""

    def redirect_request(self, *_: object) -> None:
        """Leave the answer as it is: an error."""


class Target:
    """A server at `base` (http://HOST:PORT). `pid` is that of its own process where it runs here.

    `api_key` is for a server that asks for one; `headers` is what it means for each request.

    Raises:
        ConfigError: the URL is none of HTTP, or the key no header value.
    """

    def __init__(self, base: str, pid: int | None = None, *, api_key: str = "") -> None:
        Address(base)
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError("the API key has characters that no header may have; expected printable ASCII")
        self.base = base.rstrip("/")
        self.headers = (("X-API-Key", api_key),) if api_key else ()
        self._process = psutil.Process(pid) if pid is not None else None
        # Without proxies, as the load itself.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)

    def infer_url(self, model: str) -> str:
        """Return where requests for a model go."""
        return f"{self.base}/v2/models/{model}/infer"

    def metadata(self, model: str) -> ModelMetadata:
        """Ask what a model takes.

        Raises:
            ConfigError: the answer is not that of the protocol.
            StartupError: no answer, or a refusal.
        """
        return decode_metadata(self.call(f"/v2/models/{model}"))

    def infer(self, model: str, payload: Payload, timeout_s: float) -> InferResponse:
        """Return the answer to one request.

        Raises:
            BadRequest: the answer is not that of the protocol.
            StartupError: no answer, or a refusal.
        """
        path = f"/v2/models/{model}/infer"
        data, length = self._exchange(path, payload.body, dict(payload.headers), timeout_s)
        return decode_response(data, length)

    def snapshot(self) -> Snapshot | None:
        """Return the server's Snapshot; None where it has none."""
        try:
            return decode(self.call("/hybrid/v1/snapshot"))
        except (StartupError, ValueError):
            return None

    def front_cpu_s(self) -> float | None:
        """Return the CPU seconds of the server's own process, without its children; None where it runs elsewhere."""
        if self._process is None:
            return None
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def call(
        self,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = _ANSWER_S,
    ) -> bytes:
        """Return the answer to a GET, or with a body to a POST.

        Raises:
            Refused: the answer is an error, in the server's words.
            StartupError: there is none.
        """
        return self._exchange(path, body, dict(headers or {}), timeout_s)[0]

    def _exchange(
        self, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float
    ) -> tuple[bytes, int | None]:
        """Return the body of an answer, and the length of its JSON part where binary tensors follow."""
        request = urllib.request.Request(self.base + path, data=body, headers=headers | dict(self.headers))
        try:
            with self._opener.open(request, timeout=timeout_s) as answer:
                length = answer.headers.get("Inference-Header-Content-Length")
                return answer.read(), int(length) if length is not None else None
        except urllib.error.HTTPError as error:
            with error:
                text = error.read(2000).decode(errors="replace")
            raise Refused(f"{self.base}{path}: {error.code} {text[:300]}", error.code, _words(text)) from error
        except (OSError, http.client.HTTPException) as error:
            raise StartupError(f"{self.base}: {_why(error)}") from error


@contextlib.contextmanager
def local(model: str, options: Sequence[str] = ()) -> Iterator[Target]:
    """Serve a model on a free port of this machine until the context ends.

    Raises:
        StartupError: it ended before it was ready; in its own words.
    """
    command = [sys.executable, "-m", "hybrid.load.leashed", str(os.getpid()), "serve", model]
    command += ["--host", "127.0.0.1", "--port", "0", "--grpc-port", "-1", "--log-level", "warning", *options]
    env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
    if env.get("HYBRID_MEASURE") != "never":
        env["HYBRID_MEASURE"] = "cached"  # it is to be served as the user's server would be, but at once
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)
        try:
            yield Target(_await_ready(process, errors.fileno()), process.pid)
        finally:
            _end(process)


def _why(error: Exception) -> str:
    """Why there is no answer. `urllib` wraps what went wrong with the connection, and not what came over it."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, ConnectionRefusedError):
        return "no server answers there (connection refused); is `hybrid serve` running?"
    if isinstance(reason, http.client.HTTPException) and not isinstance(reason, OSError):
        return f"what answers there does not speak HTTP/1.1 ({type(reason).__name__})"
    return str(getattr(reason, "strerror", None) or reason)


def _words(text: str) -> str:
    """What an error's body says, of ours or of others."""
    try:
        found = msgspec.json.decode(text, type=dict[str, object]).get("error", text)
    except msgspec.DecodeError:
        found = text
    return str(found)[:300]


def _await_ready(process: subprocess.Popen[str], errors: int) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        found = _READY.search(line)
        if found:
            return found[1]
    process.wait()
    last = os.pread(errors, 65_536, 0).decode(errors="replace").strip().splitlines()[-1:]
    raise StartupError(last[0].removeprefix("hybrid: error: ") if last else "the server ended before it was ready")


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
