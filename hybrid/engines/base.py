"""The one interface that every engine implements, and what it is told when it loads.

Engines live only in worker processes. An engine maps its own exceptions onto `EngineFailure`; nothing else may leave
`run`. It sets its thread counts explicitly from `EngineSettings` and never from what it sees of the host.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct

from hybrid.messages import FailureKind, Signature

Arrays = dict[str, np.ndarray[Any, Any]]


class EngineSettings(Struct, frozen=True):
    """How one instance runs on this machine; comes from the plan."""

    threads: int = 1
    device: str = "cpu"
    spinning: bool = False  # busy waiting between runs; only sane for an instance that owns its cores alone


class MemoryFacts(Struct, frozen=True):
    """What an engine knows of its own memory, in bytes; None where it cannot tell."""

    allocated: int | None = None
    reserved: int | None = None  # taken from the device, `allocated` included
    fragmented: int | None = None  # of what is reserved: unused, and stuck between blocks in use

    def known(self) -> list[tuple[str, int]]:
        """Return what is known, by name."""
        facts = (("allocated", self.allocated), ("reserved", self.reserved), ("fragmented", self.fragmented))
        return [(kind, size) for kind, size in facts if size is not None]


class EngineFailure(Exception):
    """The only exception that may leave an engine. `kind` decides what happens to the batch."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class Engine(Protocol):
    """A loaded model on one device, used by one thread at a time."""

    @property
    def signature(self) -> Signature:
        """Inputs and outputs as the engine reports them (row dimension included, -1 = variable)."""

    @property
    def max_rows(self) -> int | None:
        """The row count that the model is fixed to, or None when it takes any."""

    def run(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Arrays:
        """Execute one batch. Every array has `rows` as its first dimension.

        Raises:
            EngineFailure: with the kind that says whether the data, the engine or memory is at fault.
            SystemExit: this process can use its device no more; the server replaces it.
        """

    def memory(self) -> MemoryFacts:
        """Return what the engine knows of its own memory."""

    def close(self) -> None:
        """Release everything; the engine is not used afterwards."""


class Begun(Protocol):
    """A batch that computes while the worker does something else."""

    def done(self) -> bool:
        """Whether `wait` would return at once."""

    def wait(self) -> Arrays:
        """Return the outputs, as `Engine.run` does.

        Raises:
            EngineFailure, SystemExit: as `Engine.run`.
        """


@runtime_checkable
class OverlappingEngine(Engine, Protocol):
    """An engine whose next batch may begin before the last has ended, so that copies run beside computing."""

    @property
    def overlaps(self) -> bool:
        """Whether it does so on its device; where not, only `run` is called."""

    def begin(self, inputs: Mapping[str, np.ndarray[Any, Any]], rows: int) -> Begun:
        """Start one batch and return; `inputs` stay as they are until it has ended. Batches end in order.

        Raises:
            EngineFailure, SystemExit: as `run`.
        """
