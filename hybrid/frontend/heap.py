"""Memory of large bodies stays with the process when they are freed. Knows the C library; must never know HTTP."""

import contextlib
import ctypes
from typing import Final

#: Parameters of glibc's mallopt().
_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
#: The largest that glibc takes for _MMAP_THRESHOLD, and where its own adjustment of it ends.
KEPT_BYTES: Final = 32 * 1024 * 1024


def keep_freed_memory() -> None:
    """Have malloc keep up to `KEPT_BYTES` of what is freed instead of handing it back to the system.

    Left alone, glibc keeps twice the largest block that was ever freed: with bodies of 600 kB the end of each batch
    gave back what the next one faulted in again, a fault for every fourth page and half of a request's system time.
    C libraries without mallopt() stay as they are.
    """
    with contextlib.suppress(OSError, AttributeError):
        tune = ctypes.CDLL(None).mallopt
        tune(_MMAP_THRESHOLD, KEPT_BYTES)  # to set either ends the adjustment of both
        tune(_TRIM_THRESHOLD, KEPT_BYTES)
