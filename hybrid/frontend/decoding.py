"""Decoding of large JSON bodies, and encoding of large JSON answers, beside the event loop.

One thread, so that large bodies take turns instead of all the CPU; the codec works in pieces and lets go of the
interpreter between them, so health probes and small requests are answered meanwhile. Small bodies never come here:
handing over costs more than decoding them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, TypeVar

from hybrid.errors import BadRequest, HybridError, OutOfMemory
from hybrid.messages import InferRequest, InferResponse
from hybrid.protocol.oip_decode import decode_infer
from hybrid.protocol.oip_encode import Encoded, encode_infer

HEAVY_BYTES: Final = 1 << 20
#: Of tensors in an answer. Each element costs as much as in a body that is read, and takes more characters than bytes.
HEAVY_ANSWER_BYTES: Final = 1 << 19

Decoded = InferRequest | HybridError

_T = TypeVar("_T")


class LargeBodies:
    """Handles bodies with a large JSON part; owns the thread, which starts with the first of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor: ThreadPoolExecutor | None = None

    def decode(self, body: bytes | memoryview, header_length: int | None, on_done: Callable[[Decoded], None]) -> None:
        """Decode; `on_done` is called from the loop, later, with the request or the reason why it is none."""
        self.run(lambda: _decode(body, header_length), on_done)

    def encode(
        self, answer: InferResponse, request: InferRequest, on_done: Callable[[Encoded | HybridError], None]
    ) -> None:
        """Encode; `on_done` is called from the loop, later, with the body or the reason why there is none."""
        self.run(lambda: _encode(answer, request), on_done)

    def run(self, work: Callable[[], _T], on_done: Callable[[_T], None]) -> None:
        """Do work that raises nothing; `on_done` is called from the loop, later, with what it returned."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "bodies")
        self._executor.submit(work).add_done_callback(lambda done: self._deliver(done, on_done))

    def close(self) -> None:
        """Forget what waits and let the thread end."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, future: Future[_T], on_done: Callable[[_T], None]) -> None:
        if not future.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(on_done, future.result())


def _decode(body: bytes | memoryview, header_length: int | None) -> Decoded:
    try:
        return decode_infer(body, header_length)
    except HybridError as error:
        return error
    except MemoryError:
        return BadRequest("the body is too large to decode in the memory that is left")


def _encode(answer: InferResponse, request: InferRequest) -> Encoded | HybridError:
    try:
        return encode_infer(answer, request)
    except HybridError as error:
        return error
    except MemoryError:
        return OutOfMemory("the answer is too large to encode in the memory that is left")
