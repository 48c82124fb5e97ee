"""What requests cost beside the model: taking in, making rows, batches, answering. Runs in a probe process.

The server and its preprocess processes share the CPUs with the workers. For a small model they need as much as the
workers do, and a plan that forgets them promises twice what is carried. Owns how that is measured. Knows no engine.
"""

import time
from collections.abc import Callable
from statistics import median
from typing import Final

import numpy as np

from hybrid.engines.base import Arrays
from hybrid.errors import HybridError
from hybrid.messages import InferResponse, Signature, Tensor
from hybrid.planner.measures import Beside
from hybrid.probing.feed import Feed
from hybrid.protocol.oip_client import encode_request
from hybrid.protocol.oip_decode import decode_infer
from hybrid.protocol.oip_encode import encode_infer

#: What no part of a model has to do with, for each request: HTTP and queue. `python -m bench null_overhead`: 32 to 49
#: us of 64 clients, where the loop is busy all the time, compiled, and 54 not. Not measured per machine: that would
#: take a whole server.
_REQUEST_S: Final = 50e-6
#: How much longer the same code takes where workers run in between: caches have forgotten it.
_COLD: Final = 2.0
#: The same for each batch: messages, memory, being woken, once in the server and once in the worker. Saturated servers
#: on two CPUs, batches of 1 to 16 rows: the process of the server takes 0.17 ms per row and 0.5 ms per batch beside two
#: workers (`minilm`), 0.05 and 0.4 ms with a CPU for itself (an MLP), whose worker waits for 0.35 to 0.6 ms meanwhile
#: and takes 0.2 to 0.3 ms more for a batch than in a loop of the model alone. Waking a sleeping CPU is 0.1 ms of it.
_TURN_S: Final = 700e-6
_WINDOW_S: Final = 0.01
_LONG_S: Final = 0.2
_FEWEST: Final = 3
_LARGE_BYTES: Final = 64 * 1024


def beside_of(feed: Feed, signature: Signature, outputs: Arrays) -> Beside:
    """Measure it for one row of `feed`, of which the model made `outputs`."""
    row_s, loop_s = _row_s(feed), _copy_s(feed, outputs) + _codec_s(feed, signature, outputs)
    all_s = loop_s + row_s
    loop_s += row_s if feed.in_loop else 0.0
    return Beside(cpu_s=_COLD * (_REQUEST_S + all_s), loop_s=_REQUEST_S + loop_s, turn_s=_TURN_S)


def _row_s(feed: Feed) -> float:
    step = feed.step
    if step is None:
        return 0.0
    item = feed.items[0]
    return _seconds(lambda: step.row(item))


def _copy_s(feed: Feed, outputs: Arrays) -> float:
    """Putting a row together, and two copies each: of it to where it waits and on to its worker, of the answer back."""
    arrays = [*feed.rows(1).values(), *outputs.values()]
    together_s = _seconds(lambda: feed.rows(1)) if feed.step is not None else 0.0
    return together_s + 2.0 * _seconds(lambda: [array.copy() for array in arrays])


def _codec_s(feed: Feed, signature: Signature, outputs: Arrays) -> float:
    """Reading the request and writing the answer, in the form in which a client would send it that minds its speed."""
    tensors, binary = _request(feed, signature, sum(array.nbytes for array in outputs.values()))
    answers = tuple(
        Tensor(spec.name, spec.datatype, outputs[spec.name]) for spec in signature.outputs if spec.name in outputs
    )
    try:
        body, header_length = encode_request(tensors, binary=binary)
        request = decode_infer(body, header_length)
        response = InferResponse("model", "1", answers)
        return _seconds(lambda: decode_infer(body, header_length)) + _seconds(lambda: encode_infer(response, request))
    except HybridError:  # an answer that has no form on the wire costs no more than its error
        return 0.0


def _request(feed: Feed, signature: Signature, answer_bytes: int) -> tuple[list[Tensor], bool]:
    """What a client sends, and whether it minds the speed so much that it asks for an answer in binary form."""
    if feed.step is None:
        rows = feed.rows(1)
        return [Tensor(spec.name, spec.datatype, rows[spec.name]) for spec in signature.inputs], True
    item = np.empty((1, 1), object)
    item[0, 0] = feed.items[0]
    return [Tensor(feed.step.input.name, "BYTES", item)], feed.has_images or answer_bytes > _LARGE_BYTES


def _seconds(work: Callable[[], object]) -> float:
    """Median time of some runs."""
    taken_s: list[float] = []
    total_s = 0.0
    while total_s < _WINDOW_S or (len(taken_s) < _FEWEST and total_s < _LONG_S):
        began = time.perf_counter()
        work()
        taken_s.append(time.perf_counter() - began)
        total_s += taken_s[-1]
    return median(taken_s)
