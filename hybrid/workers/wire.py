"""The messages between the server and its children, and the socket they travel on.

One SOCK_SEQPACKET pair per child: a message is one packet, so there are no partial reads to handle, and an empty read
means that the other end is gone. Messages are small descriptors; tensors lie in the arena. Commands are verbs (`Run`),
events are in the past tense (`Ran`). msgpack, never pickle.
"""

import socket
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hybrid.config import ModelSettings, PreprocessSettings
from hybrid.engines.base import EngineSettings, MemoryFacts
from hybrid.messages import Signature

MAX_PACKET = 190_000  # below the default socket buffer, so that one packet always fits


class Block(Struct, frozen=True, array_like=True):
    """One tensor inside a slab. `length` is its bytes; BYTES tensors are length-prefixed elements."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    offset: int
    length: int
    finite: bool = True


class Slabs(Struct, frozen=True, array_like=True):
    """The two descriptors of a slot: the server writes `inputs`, the child writes `outputs`."""

    inputs: int
    outputs: int


# Server -> worker


class StartWorker(Struct, frozen=True, tag="start"):
    """First message to a model worker."""

    model: ModelSettings
    engine: EngineSettings
    cores: tuple[int, ...]
    slots: tuple[Slabs, ...]
    max_batch: int
    warm_length: int
    static_rows: int = 0  # with static batching: run every batch with exactly this many rows
    starting_n: int = 1  # workers that warm up at the same time, and share the memory that is free


class StartPreprocess(Struct, frozen=True, tag="start_preprocess"):
    """First message to a preprocess process."""

    model: str
    settings: PreprocessSettings
    signature: Signature
    slots: tuple[Slabs, ...]


class Run(Struct, frozen=True, tag="run"):
    """Execute one batch. `mapped` is the size of the input slab's file."""

    batch_id: int
    slot: int
    rows: int
    mapped: int
    blocks: tuple[Block, ...]


class Transform(Struct, frozen=True, tag="transform"):
    """Preprocess some rows, each an encoded item at (offset, length) of the input slab, or small and `inline`.

    `cheap`: at less cost, with a coarser result.
    """

    job_id: int
    mapped: int
    items: tuple[tuple[int, int], ...]
    inline: tuple[bytes, ...] = ()
    cheap: bool = False


class Stop(Struct, frozen=True, tag="stop"):
    """Leave after the batch in hand."""


# Child -> server


class Ready(Struct, frozen=True, tag="ready"):
    """Loaded and warmed. `unbatchable` says why rows may not share a batch; `warm` are (rows, seconds)."""

    signature: Signature
    max_rows: int | None = None
    unbatchable: str | None = None
    warm: tuple[tuple[int, float], ...] = ()
    load_s: float = 0.0
    rss_bytes: int = 0


class StartFailed(Struct, frozen=True, tag="start_failed"):
    """The child cannot serve, in the engine's own words."""

    text: str


class Ran(Struct, frozen=True, tag="ran"):
    """A batch was executed."""

    batch_id: int
    mapped: int
    blocks: tuple[Block, ...]
    copy_s: float
    compute_s: float
    post_s: float


class RunFailed(Struct, frozen=True, tag="run_failed"):
    """A batch failed, the worker lives. `kind` is a `FailureKind` value."""

    batch_id: int
    kind: str
    text: str


class Row(Struct, frozen=True, array_like=True):
    """One preprocessed row: its compact arrays, or why there are none; `ours` says that the item is not to blame."""

    blocks: tuple[Block, ...] = ()
    error: str | None = None
    ours: bool = False


class Transformed(Struct, frozen=True, tag="transformed"):
    """The rows of a job, in order. Blocks lie in `data`, or in the output slab when `mapped` is above 0."""

    job_id: int
    mapped: int
    rows: tuple[Row, ...]
    seconds: float
    data: bytes = b""


class Beat(Struct, frozen=True, tag="beat"):
    """Sign of life, once a second, from a thread of its own."""

    rss_bytes: int
    cpu_s: float
    memory: MemoryFacts = MemoryFacts()


Command = StartWorker | StartPreprocess | Run | Transform | Stop
Event = Ready | StartFailed | Ran | RunFailed | Transformed | Beat

_T = TypeVar("_T")
_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode
decode_command: Any = msgspec.msgpack.Decoder(Command).decode
decode_event: Any = msgspec.msgpack.Decoder(Event).decode


class PeerGone(Exception):
    """The process at the other end of the socket is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    """Return (server end, child end). The server end does not block; the child's does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MAX_PACKET)
    return ours, theirs


def receive(sock: socket.socket) -> bytes:
    """Read one packet from a blocking socket.

    Raises:
        PeerGone: the other end was closed.
    """
    try:
        packet = sock.recv(MAX_PACKET + 1)
    except ConnectionError as error:
        raise PeerGone from error
    if not packet:
        raise PeerGone
    return packet


def send(sock: socket.socket, message: Command | Event) -> None:
    """Write one packet.

    Raises:
        PeerGone: the other end was closed.
        BlockingIOError: a non-blocking socket is full; the peer does not read.
    """
    try:
        sock.send(encode(message))
    except (BrokenPipeError, ConnectionError) as error:
        raise PeerGone from error
