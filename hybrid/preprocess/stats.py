"""What a preprocess pool tells of itself, as frozen values, and the sums over several pools."""

from collections.abc import Iterable

from msgspec import Struct


class ProcessStats(Struct, frozen=True):
    """One process as of its last heartbeat."""

    pid: int
    ready: bool
    rss_bytes: int
    cpu_s: float


class Totals(Struct, frozen=True, kw_only=True):
    """What is counted since the start. Rows: `failed_n` includes `timeouts_n`; `cpu_s` that of ended processes.

    `downgraded_n` rows took too long and were made at less cost. `cache_hits_n` rows were known before; those that are
    not are `cache_misses_n`, none where no cache is kept.
    """

    items_n: int = 0
    failed_n: int = 0
    timeouts_n: int = 0
    downgraded_n: int = 0
    busy_s: float = 0.0
    cpu_s: float = 0.0
    cache_hits_n: int = 0
    cache_misses_n: int = 0


class PreprocessStats(Totals, frozen=True, kw_only=True):
    """The pool at one moment."""

    processes: int
    ready: int
    busy: int
    queued_items: int
    queued_bytes: int
    jobs_n: int
    restarts_n: int
    cache_entries: int
    cache_bytes: int
    members: tuple[ProcessStats, ...]


def total(parts: Iterable[Totals]) -> Totals:
    """Return the sums over several pools."""
    pools = list(parts)
    return Totals(**{name: sum(getattr(pool, name) for pool in pools) for name in Totals.__struct_fields__})
