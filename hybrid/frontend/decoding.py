"""Decoding of large JSON bodies beside the event loop.

One thread, so that large bodies take turns instead of all the CPU; the decoder works in pieces and lets go of the
interpreter between them, so health probes and small requests are answered meanwhile. Small bodies never come here:
handing over costs more than decoding them.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from hybrid.errors import BadRequest, HybridError
from hybrid.messages import InferRequest
from hybrid.protocol.oip_decode import decode_infer

HEAVY_BYTES: Final = 1 << 20

Decoded = InferRequest | HybridError


class LargeBodies:
    """Decodes bodies with a large JSON part; owns the thread, which starts with the first of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor: ThreadPoolExecutor | None = None

    def decode(self, body: bytes, header_length: int | None, on_done: Callable[[Decoded], None]) -> None:
        """Decode; `on_done` is called from the loop, later, with the request or the reason why it is none."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, "decode")
        future = self._executor.submit(_decode, body, header_length)
        future.add_done_callback(lambda done: self._deliver(done, on_done))

    def close(self) -> None:
        """Forget what waits and let the thread end."""
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    def _deliver(self, future: Future[Decoded], on_done: Callable[[Decoded], None]) -> None:
        if not future.cancelled() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(on_done, future.result())


def _decode(body: bytes, header_length: int | None) -> Decoded:
    try:
        return decode_infer(body, header_length)
    except HybridError as error:
        return error
    except MemoryError:
        return BadRequest("the body is too large to decode in the memory that is left")
