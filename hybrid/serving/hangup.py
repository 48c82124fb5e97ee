"""What SIGHUP means: read the settings again and plan anew; or leave, when the terminal was closed.

Owns the difference between the two. Must never know how settings are read: that is handed in.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Callable

from msgspec import Struct

from hybrid.errors import HybridError
from hybrid.serving.manager import Manager
from hybrid.serving.replan import Wish
from hybrid.serving.signals import Signals

log = logging.getLogger("hybrid.serving")


class Reread(Struct, frozen=True):
    """Settings as they are now: the profile, and the keys of those that only the next start takes up."""

    profile: str
    later: tuple[str, ...] = ()


class Hangup:
    """Listens for SIGHUP, unless it was told to ignore it, as `nohup` does. `leave` is called for a closed terminal."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        manager: Manager,
        read: Callable[[], Reread] | None,
        leave: Callable[[], None],
    ) -> None:
        self._loop, self._manager, self._read, self._leave = loop, manager, read, leave
        self._had_terminal = _has_terminal()
        self._tasks: set[asyncio.Task[None]] = set()

    def listen(self, signals: Signals) -> None:
        """Hear the signal from now on."""
        signals.hear(signal.SIGHUP, self._heard)

    def _heard(self) -> None:
        if self._read is None or (self._had_terminal and not _has_terminal()):
            self._leave()
            return
        task = self._loop.create_task(plan_again(self._manager, self._read))
        self._tasks.add(task)  # the loop itself would let go of it
        task.add_done_callback(self._tasks.discard)


async def plan_again(manager: Manager, read: Callable[[], Reread]) -> None:
    """Read the settings and the profile again, and go by them. What is wrong is logged, and nothing changes then."""
    try:
        found = await asyncio.to_thread(read)
        done = await manager.replan(Wish(profile=found.profile, why="SIGHUP"))
    except HybridError as error:
        log.error("SIGHUP: nothing changed: %s", error)
        return
    for key in found.later:
        log.warning("SIGHUP: `%s` has changed; it takes effect at the next start", key)
    if not any(one.changed for one in done):
        log.info("SIGHUP: profile %s; every plan stays as it is", found.profile)


def _has_terminal() -> bool:
    """Whether this process belongs to a terminal. One that it belonged to is gone after it was closed."""
    try:
        os.close(os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY))
    except OSError:
        return False
    return True
