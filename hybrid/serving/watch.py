"""Looks for changed model files now and then, and has the manager act on them.

`Changes` decides, and is pure: a change counts once the files have stayed the same for one period, so that a model that
is still being copied is not loaded half.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping

from hybrid.errors import ConfigError, HybridError
from hybrid.serving.manager import Manager
from hybrid.serving.sources import ModelSources, Stamp

log = logging.getLogger("hybrid.serving")


class Changes:
    """Compares what lies on disk with what was last read."""

    def __init__(self) -> None:
        self._pending: dict[str, Stamp | None] = {}  # None: gone

    def look(
        self, found: Mapping[str, Stamp], read: Mapping[str, Stamp], asleep: Collection[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return the names to load and the names whose files are gone, as of this look.

        Args:
            found: The files of every model as they are now.
            read: The same as they were when a model was last loaded, or tried: what failed is not tried again as it is.
            asleep: Models that are not to be loaded.
        """
        now: dict[str, Stamp | None] = {name: None for name in read if name not in found}
        now |= {name: stamp for name, stamp in found.items() if stamp != read.get(name) and name not in asleep}
        settled = [name for name, stamp in now.items() if name in self._pending and self._pending[name] == stamp]
        self._pending = {name: stamp for name, stamp in now.items() if name not in settled}
        return [name for name in settled if name in found], [name for name in settled if name not in found]


async def watch(manager: Manager, sources: ModelSources, period_s: float) -> None:
    """Look every `period_s` seconds, until cancelled. What fails is logged once, and tried again when it changes."""
    changes = Changes()
    told = ""
    while True:
        await asyncio.sleep(period_s)
        try:
            found = await asyncio.to_thread(sources.stamps)
        except (ConfigError, OSError) as error:  # a folder that cannot be read is not an empty one: keep what is served
            if str(error) != told:
                log.error("no look for changed models: %s", error)
            told = str(error)
            continue
        told = ""
        changed, gone = changes.look(found, manager.read, manager.asleep)
        for name in changed:
            what = "its files have changed" if name in manager.read else "it is new"
            await _try(manager.load, name, what)
        for name in gone:
            await _try(manager.remove, name, "its files are gone")


async def _try(operation: Callable[[str], Awaitable[None]], name: str, what: str) -> None:
    log.info("%s: %s", name, what)
    try:
        await operation(name)
    except HybridError as error:
        log.debug("%s: %s", name, error)  # a failed load was reported by the manager, and stands in the index
