"""The one error tree. Each class carries the statuses that the edges need.

    HybridError                      500  INTERNAL             exit 1
    ├── BadRequest                   400  INVALID_ARGUMENT
    │   ├── Unauthorized             401  UNAUTHENTICATED
    │   ├── NotFound                 404  NOT_FOUND
    │   ├── MethodNotAllowed         405  UNIMPLEMENTED
    │   ├── SlowClient               408  DEADLINE_EXCEEDED
    │   ├── LengthRequired           411  INVALID_ARGUMENT
    │   ├── TooLarge                 413  RESOURCE_EXHAUSTED
    │   ├── UnsupportedEncoding      415  UNIMPLEMENTED
    │   ├── ExpectationFailed        417  INVALID_ARGUMENT
    │   ├── HeadersTooLarge          431  RESOURCE_EXHAUSTED
    │   └── PoisonRefused            400  INVALID_ARGUMENT
    ├── QueueFull                    429  RESOURCE_EXHAUSTED   (carries retry_after_s)
    ├── ClientGone                   499  CANCELLED            (only counted, nobody reads it)
    ├── InferenceFailed              500  INTERNAL             (the guilty request only)
    │   ├── OutOfMemory              500  RESOURCE_EXHAUSTED
    │   ├── WorkerLost               500  UNAVAILABLE          (its batch died more than once)
    │   └── OutputInvalid            500  INTERNAL             (row counts, non-finite JSON)
    ├── LoadFailed                   500  INTERNAL             (what was served before still is)
    ├── NotReady                     503  UNAVAILABLE          (starting, draining, no worker)
    ├── ServerUnreachable            503  UNAVAILABLE          (raised by our client, never sent)
    ├── DeadlineExceeded             504  DEADLINE_EXCEEDED
    └── StartupError                 500  INTERNAL             exit 1
        ├── ConfigError              500  INTERNAL             exit 2
        ├── load.target.Refused      500  INTERNAL             exit 1 (a server's answer to a question was an error)
        ├── app.ForcedExit           500  INTERNAL             exit 1 (a drain that left requests over)
        └── offline.report.JobFailed 500  INTERNAL             exit 1 (`hybrid batch` ended before its input)

A message names the field, what was expected and what came. Exceptions of engines and other libraries are mapped onto
this tree at the place that calls them, never further out.
"""

from typing import ClassVar


class HybridError(Exception):
    """Base of every error that hybrid raises on purpose."""

    status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    exit_code: ClassVar[int] = 1

    @property
    def code(self) -> str:
        """The stable name that clients may switch on: the class name in snake case."""
        return _snake(type(self).__name__)

    @property
    def headers(self) -> dict[str, str]:
        """Extra response headers this error asks for."""
        return {}


class BadRequest(HybridError):
    """The request is malformed or does not fit the model."""

    status = 400
    grpc_code = "INVALID_ARGUMENT"


class Unauthorized(BadRequest):
    """No key, or a wrong one."""

    status = 401
    grpc_code = "UNAUTHENTICATED"

    @property
    def headers(self) -> dict[str, str]:
        """Say which scheme is spoken."""
        return {"WWW-Authenticate": "Bearer"}


class NotFound(BadRequest):
    """No such path, model or version."""

    status = 404
    grpc_code = "NOT_FOUND"


class MethodNotAllowed(BadRequest):
    """The path exists, the method does not."""

    status = 405
    grpc_code = "UNIMPLEMENTED"

    def __init__(self, message: str, allow: str = "GET") -> None:
        super().__init__(message)
        self.allow = allow

    @property
    def headers(self) -> dict[str, str]:
        """Name the methods that would work."""
        return {"Allow": self.allow}


class SlowClient(BadRequest):
    """Header or body did not arrive within its time limit."""

    status = 408
    grpc_code = "DEADLINE_EXCEEDED"


class LengthRequired(BadRequest):
    """A body without a length where one is needed."""

    status = 411


class TooLarge(BadRequest):
    """The body (also after decompression) is over the limit."""

    status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnsupportedEncoding(BadRequest):
    """A Content-Encoding that the server does not speak."""

    status = 415
    grpc_code = "UNIMPLEMENTED"


class ExpectationFailed(BadRequest):
    """An `Expect` header that asks for something else than 100-continue."""

    status = 417


class HeadersTooLarge(BadRequest):
    """Too many header bytes or fields."""

    status = 431
    grpc_code = "RESOURCE_EXHAUSTED"


class PoisonRefused(BadRequest):
    """This very content has broken its batch before and is refused for a while."""


class QueueFull(HybridError):
    """The bounded queue is full; the client should come back after `retry_after_s` seconds."""

    status = 429
    grpc_code = "RESOURCE_EXHAUSTED"

    def __init__(self, message: str, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """Say when to come back, in whole seconds."""
        return {"Retry-After": str(max(1, round(self.retry_after_s)))}


class ClientGone(HybridError):
    """The client left before its answer; counted, never sent."""

    status = 499
    grpc_code = "CANCELLED"


class InferenceFailed(HybridError):
    """The engine failed on this request."""


class OutOfMemory(InferenceFailed):
    """The engine ran out of memory on this request alone."""

    grpc_code = "RESOURCE_EXHAUSTED"


class WorkerLost(InferenceFailed):
    """The worker died or hung with this request, also when it ran alone."""

    grpc_code = "UNAVAILABLE"


class OutputInvalid(InferenceFailed):
    """The engine returned something that cannot be handed out (row count, non-finite numbers in JSON)."""


class LoadFailed(HybridError):
    """A model could not be loaded or loaded again; what was served before still is."""


class NotReady(HybridError):
    """Starting, draining, or no warmed worker."""

    status = 503
    grpc_code = "UNAVAILABLE"

    @property
    def headers(self) -> dict[str, str]:
        """Say when to come back."""
        return {"Retry-After": "1"}


class ServerUnreachable(HybridError):
    """Nothing answers where a client looks for a server, or what answers is none."""

    status = 503
    grpc_code = "UNAVAILABLE"


class DeadlineExceeded(HybridError):
    """The deadline passed while the request waited, was batched or executed."""

    status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class StartupError(HybridError):
    """The server cannot start: port in use, broken model, missing engine."""


class ConfigError(StartupError):
    """Bad usage or configuration; the message names file, key and what was expected."""

    exit_code = 2


def _snake(name: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() and i else c.lower() for i, c in enumerate(name))
