"""Messages between a run and its generator processes: four bytes of length, then msgpack.

Owns the shapes. Not those of `workers.wire`: generators know nothing of workers, and talk over pipes.
"""

import struct
from typing import Final

import msgspec
from msgspec import Struct

from hybrid.load.report import LoadResult
from hybrid.load.spec import LoadSpec

LENGTH: Final = struct.Struct(">I")


class Job(Struct, frozen=True, tag="job"):
    """To a generator, first: its part of the load."""

    spec: LoadSpec
    part: int
    parts: int


class Start(Struct, frozen=True, tag="start"):
    """To a generator that is ready: when to start, by the monotonic clock, which all processes of a machine share."""

    at_s: float


class Ready(Struct, frozen=True, tag="ready"):
    """From a generator: its connections are open."""


class Done(Struct, frozen=True, tag="done"):
    """From a generator: its part of the result."""

    result: LoadResult


class Failed(Struct, frozen=True, tag="failed"):
    """From a generator: it could not run, and why."""

    why: str


Frame = Job | Start | Ready | Done | Failed
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def encode(frame: Frame) -> bytes:
    """Return a frame with its length in front."""
    data = msgspec.msgpack.encode(frame)
    return LENGTH.pack(len(data)) + data


def decode(data: bytes) -> Frame:
    """Read a frame without its length.

    Raises:
        msgspec.DecodeError: it is none.
    """
    return _decoder.decode(data)
