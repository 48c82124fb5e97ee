"""What is counted of models. It outlives the served model, so that no reload and no unload sets a count back."""

from collections.abc import Collection, Iterator
from typing import Final

from hybrid.batching.queue import LaneCounters
from hybrid.preprocess.stats import PreprocessStats, Totals, total
from hybrid.serving.tally import Tally
from hybrid.workers.seat import PoolCounts

_KEPT_VERSIONS: Final = 32


class Counters:
    """Counts of one version. Handed from one served model to the next of its name and version; all add to the same."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.classes: dict[str, LaneCounters] = {}  # by size class
        self.pool = PoolCounts()


class Ledger:
    """The counts of every model that was ever served, by name and version; and of preprocess pools that have ended."""

    def __init__(self) -> None:
        self.preprocess = Totals()
        self._counters: dict[tuple[str, str], Counters] = {}

    def __iter__(self) -> Iterator[Counters]:
        return iter(self._counters.values())

    def of(self, name: str, version: str) -> Counters:
        """Return the counts of a version, new ones for one that was never served."""
        return self._counters.setdefault((name, version), Counters())

    def others(self, served: Collection[tuple[str, str]]) -> Iterator[tuple[str, str, Counters]]:
        """Return name, version and counts of those that have counted something and are not served now."""
        for (name, version), counters in self._counters.items():
            if counters.classes and (name, version) not in served:
                yield name, version, counters

    def inherit(self, name: str, versions: Collection[str], heir: str) -> None:
        """Let one of the versions that are served count on for the workers of those that are not.

        A worker slot has no version, so its counts must not fall when another version moves in. Of versions that are
        gone only the last few are kept: a new one every day must not fill memory, at the price of one step down.
        """
        gone = [key for key in self._counters if key[0] == name and key[1] not in versions]
        for key in gone:
            self.of(name, heir).pool.take_over(self._counters[key].pool)
        for key in gone[:-_KEPT_VERSIONS]:
            del self._counters[key]

    def pool_ended(self, stats: PreprocessStats) -> None:
        """Take in what a preprocess pool had counted when it ended."""
        self.preprocess = total((self.preprocess, stats))
