"""Short texts, tokenised where they came in instead of in a process of the pool.

Preprocessing has processes of its own so that no text can hold up the others, and so that one that takes too long can
be ended. For a line of text the way there and back costs more than the work: two more processes to wake, each with cold
caches. So such texts are made here, in the event loop, as long as what the pool protects from cannot happen: the bytes
are so few that a time limit would never be reached, and the time spent here is metered, whatever the texts are like, so
that the loop is neither held long at a stretch nor kept from its other work. All else goes to the pool, as does a text
on which the step fails in a way that is not the text's fault.

Knows no process and no queue.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from hybrid.config import PreprocessSettings
from hybrid.errors import BadRequest
from hybrid.preprocess.base import Preprocessor, Row
from hybrid.preprocess.cache import RowCache
from hybrid.preprocess.job import Prepared, Refused, refusal

log = logging.getLogger("hybrid.preprocess")

#: Seconds of the loop that may be used up at once, and the part of all its time that may be used in the long run.
_AT_ONCE_S: Final = 0.0002
_SHARE: Final = 0.5
_MAX_ROWS: Final = 4
#: A time limit below this might be reached, and nothing here can be ended.
_LEAST_LIMIT_S: Final = 0.05


def inline_limit_bytes(settings: PreprocessSettings) -> int:
    """Return up to how many bytes the texts of a request are made in the loop; 0 where none are, however short."""
    return settings.inline_bytes if settings.text is not None and settings.item_timeout_s >= _LEAST_LIMIT_S else 0


class ShortTexts:
    """The texts of one model that are made in the loop, within bounds; counts what was done.

    Args:
        settings: `inline_bytes` 0, images or a very short time limit make it take nothing.
        clock: Monotonic seconds.
        cache: The pool's own, or None.
    """

    def __init__(self, settings: PreprocessSettings, clock: Callable[[], float], cache: RowCache | None) -> None:
        self._limit_bytes = inline_limit_bytes(settings)
        self._input = settings.text.input if settings.text is not None else ""
        self._clock = clock
        self._cache = cache
        self._credit_s = _AT_ONCE_S
        self._credit_at = 0.0
        self.jobs_n = 0
        self.items_n = 0
        self.failed_n = 0
        self.busy_s = 0.0

    def make(self, items: Sequence[bytes], step: Preprocessor) -> Prepared | None:
        """Return the rows of a request, or None when they are for the pool.

        Raises:
            BadRequest: a row is not what it should be.
        """
        if not self._limit_bytes or not 0 < len(items) <= _MAX_ROWS or sum(map(len, items)) > self._limit_bytes:
            return None
        began = self._clock()
        credit_s = min(_AT_ONCE_S, self._credit_s + (began - self._credit_at) * _SHARE)
        if credit_s <= 0.0:
            return None
        rows: list[Row] = []
        refused: Refused | None = None
        try:
            for item in items:
                rows.append(self._row(item, step))  # noqa: PERF401 - those before a bad one count
        except BadRequest as error:
            refused = Refused(str(error))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - a panic of the tokenizer's library is no Exception
            # In the pool it costs a process at most, and is reported there.
            self._limit_bytes = 0
            log.error("short texts are preprocessed by the pool from now on: %s: %s", type(error).__name__, error)
            return None
        seconds = self._clock() - began
        self._credit_s, self._credit_at = credit_s - seconds, began
        self.jobs_n += 1
        self.busy_s += seconds
        self.items_n += len(rows) + (refused is not None)
        if refused is not None:
            self.failed_n += 1
            raise refusal(self._input, len(rows), refused)
        return Prepared(tuple(rows), seconds)

    def _row(self, item: bytes, step: Preprocessor) -> Row:
        cache = self._cache
        if cache is None:
            return step.row(item)
        key = cache.key(item)
        row = cache.get(key)
        if row is None:
            row = step.row(item)
            cache.put(key, row)
        return row
