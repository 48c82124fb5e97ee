"""Whether as many processes as somebody fixed can be held in memory at all. Pure.

Owns the least that a process takes. What they will take is for the guess and the measurements: this only keeps one
number that was typed wrong from taking the whole machine down.
"""

from typing import Final

from hybrid.errors import ConfigError
from hybrid.facts import MachineFacts
from hybrid.planner.measures import MemoryLine

_MIB: Final = 1 << 20
_GIB: Final = 1 << 30
#: A Python process with numpy and no engine, without what it shares with others of its kind.
PROCESS_BYTES: Final = 16 * _MIB
#: The same with an engine and its buffers. With 3 x its file of 23 MiB it makes 165 MiB of `minilm`, which takes 177,
#: and 115 MiB of `nsfw`, which takes 117. A larger file counts once only: engines map it instead of repacking it.
_ENGINE_BYTES: Final = 96 * _MIB
_REPACKED_BYTES: Final = 100 * _MIB
#: Part of a measured worker that others have in common: the pages of its libraries.
_SHARED_BYTES: Final = 64 * _MIB


def least_worker_bytes(file_bytes: int, measured: MemoryLine | None) -> int:
    """What a worker with an engine takes for itself at the least, by the size of its model or by what was measured."""
    known = measured.base_bytes - _SHARED_BYTES if measured is not None else 0
    return max(_ENGINE_BYTES + file_bytes + min(2 * file_bytes, _REPACKED_BYTES), known)


def refuse_beyond_memory(machine: MachineFacts, name: str, fixed: tuple[str, int, str], each_bytes: int) -> None:
    """Refuse a number of processes whose least does not fit into the memory.

    `fixed` is the key of the plan, the number, and who fixed it. One process is never refused: whether its model fits
    is seen when it is loaded.

    Raises:
        ConfigError: they do not fit.
    """
    key, count, source = fixed
    if count > 1 and count * each_bytes > machine.memory_limit_bytes:
        raise ConfigError(
            f"model `{name}`: `{key}` {count} ({source}) would take {count * each_bytes / _GIB:.1f} GiB or more, at "
            f"least {each_bytes / _MIB:.0f} MiB each; there are {machine.memory_limit_bytes / _GIB:.1f} GiB "
            f"({machine.memory_source})"
        )
