"""The messages between whoever measures and its probe processes, over the sockets of `workers.wire`.

Pure values. One command has one answer; `Failed` answers any of them.
"""

from typing import Any

import msgspec
from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.engines.base import EngineSettings
from hybrid.planner.measures import Beside

# To a probe process


class StartProbe(Struct, frozen=True):
    """What to load, on standard input. `length` is that of variable dimensions where no example rows tell better."""

    model: ModelSettings
    engine: EngineSettings
    cores: tuple[int, ...]
    length: int


class Check(Struct, frozen=True, tag="check"):
    """Compare rows alone with rows together, show what comes out, and say what a request costs beside that."""


class Warm(Struct, frozen=True, tag="warm"):
    """Run two batches of so many rows, or one where it takes long."""

    rows: int


class Time(Struct, frozen=True, tag="time"):
    """Run batches of so many rows, which were warmed before, from one monotonic second to another."""

    rows: int
    begin_at: float
    end_at: float


class Peak(Struct, frozen=True, tag="peak"):
    """Run a batch of so many rows and note the most memory that was in use."""

    rows: int


class Leave(Struct, frozen=True, tag="leave"):
    """End the process."""


# From a probe process


class Loaded(Struct, frozen=True, tag="loaded"):
    """The model is there. `length` is 0 where nothing varies, `fixed_rows` the row count that the model is fixed to."""

    load_s: float
    variable: bool
    length: int
    fixed_rows: int | None = None


class Checked(Struct, frozen=True, tag="checked"):
    """Why rows must not share a batch, "" where they may; and the first numbers of each output of one row.

    `beside` is what rows and batches cost beside the model.
    """

    fault: str
    sample: dict[str, tuple[float, ...]] = {}
    beside: Beside = Beside()


class Warmed(Struct, frozen=True, tag="warmed"):
    """Seconds of the last batch: the first one pays for what is done once."""

    seconds: float


class Timed(Struct, frozen=True, tag="timed"):
    """Begin and end of each batch on the monotonic clock; of each `group` of batches where they are very short.

    `waited_s` is how long its threads together waited for a CPU meanwhile.
    """

    batches: tuple[tuple[float, float], ...]
    group: int = 1
    waited_s: float = 0.0


class Peaked(Struct, frozen=True, tag="peaked"):
    """The most memory that was in use since the command came, in bytes."""

    peak_bytes: int


class Failed(Struct, frozen=True, tag="failed"):
    """It could not be done, in the engine's own words; `memory` when memory did not suffice."""

    text: str
    memory: bool = False


Command = Check | Warm | Time | Peak | Leave
Answer = Loaded | Checked | Warmed | Timed | Peaked | Failed

encode = msgspec.msgpack.Encoder().encode
decode_start = msgspec.msgpack.Decoder(StartProbe).decode
decode_command: Any = msgspec.msgpack.Decoder(Command).decode
decode_answer: Any = msgspec.msgpack.Decoder(Answer).decode
