"""The limit on floods of log records: which ones pass, and how many similar ones did not.

Pure but for the clock that is handed in; not thread safe, the handler that asks holds its own lock. Two limits work
together: one for each kind of record, so that a loop that logs does not hide everything else, and one for the process,
because a flood whose texts all differ is none to the first.
"""

import logging
import re
from typing import Final, NamedTuple

from msgspec import Struct

from hybrid.clock import Clock
from hybrid.telemetry.log_line import safe_text

_DIGITS: Final = re.compile(r"[0-9]+")
_QUIET_S: Final = 1.0


class FloodKey(NamedTuple):
    """What makes two records similar: same logger and level, same text before its arguments are filled in."""

    logger: str
    level: int
    template: str


class FloodLimits(Struct, frozen=True):
    """Records that may come at once, and per second after that, for one kind and for the whole process."""

    burst: int = 50
    per_s: float = 20.0
    total_burst: int = 2000
    total_per_s: float = 1000.0
    kinds: int = 512


_LIMITS: Final = FloodLimits()


class FloodLimiter:
    """A token bucket per kind of record and one for all."""

    def __init__(self, clock: Clock, limits: FloodLimits = _LIMITS) -> None:
        self._clock = clock
        self._limits = limits
        self._kinds: dict[FloodKey, _Bucket] = {}
        self._total = _Bucket(limits.total_burst, limits.total_per_s, clock())
        self._owed: dict[FloodKey, int] = {}
        self.suppressed_n = 0

    def admit(self, key: FloodKey) -> int | None:
        """Return how many similar records were held back since the last that passed; None when this one is too."""
        now = self._clock()
        bucket = self._kinds.get(key)
        if bucket is None:
            if len(self._kinds) >= self._limits.kinds:
                self._make_room()
            bucket = self._kinds[key] = _Bucket(self._limits.burst, self._limits.per_s, now)
        if bucket.take(now) and self._total.take(now):
            return self._owed.pop(key, 0)
        self._owed[key] = self._owed.get(key, 0) + 1
        self.suppressed_n += 1
        return None

    @property
    def pending(self) -> bool:
        """Whether some held back records have not been reported yet."""
        return bool(self._owed)

    def take_quiet(self, everything: bool = False) -> list[tuple[FloodKey, int]]:
        """Return and forget the counts of floods that have ended (no record for a second), or of all."""
        now = self._clock()
        ended = [key for key in self._owed if everything or now - self._kinds[key].asked_s >= _QUIET_S]
        return [(key, self._owed.pop(key)) for key in ended]

    def _make_room(self) -> None:
        # Kinds that owe a report stay longest, else the oldest go first: a dict keeps the order of arrival.
        for key in sorted(self._kinds, key=self._owed.__contains__)[: max(1, self._limits.kinds // 2)]:
            del self._kinds[key]
            self._owed.pop(key, None)


class _Bucket:
    """Tokens that refill with time."""

    __slots__ = ("_burst", "_per_s", "_tokens", "asked_s")

    def __init__(self, burst: float, per_s: float, now: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._tokens = burst
        self.asked_s = now

    def take(self, now: float) -> bool:
        self._tokens = min(self._burst, self._tokens + (now - self.asked_s) * self._per_s)
        self.asked_s = now
        if self._tokens < 1.0:
            return False
        self._tokens -= 1.0
        return True


def flood_key(record: logging.LogRecord) -> FloodKey:
    """Return the kind of a record. Numbers in a text that came without arguments count as its arguments."""
    text = safe_text(record.msg)[:160]
    return FloodKey(record.name, record.levelno, text if record.args else _DIGITS.sub("#", text))
