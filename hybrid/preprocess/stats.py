"""What a preprocess pool tells of itself, as frozen values."""

from msgspec import Struct

from hybrid.preprocess.cache import CacheStats


class ProcessStats(Struct, frozen=True):
    """One process as of its last heartbeat."""

    pid: int
    ready: bool
    rss_bytes: int
    cpu_s: float


class PreprocessStats(Struct, frozen=True):
    """The pool at one moment. `*_n` and `*_s` count since start; `failed_n` rows include `timeouts_n`.

    `cpu_s` is that of all processes, ended ones included. `cache` is None where no row is kept.
    """

    processes: int
    ready: int
    busy: int
    queued_items: int
    queued_bytes: int
    jobs_n: int
    items_n: int
    failed_n: int
    timeouts_n: int
    downgraded_n: int
    restarts_n: int
    busy_s: float
    cpu_s: float
    cache: CacheStats | None
    members: tuple[ProcessStats, ...]
