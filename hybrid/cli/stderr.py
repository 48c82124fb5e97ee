"""Words on stderr, but not for ever: a pipe that nobody reads must not keep a process from ending."""

import sys
import time
from typing import Final

from hybrid.telemetry.log_sink import open_sink

_PATIENCE_S: Final = 1.0


def write_error(text: str) -> None:
    """Write the text, or as much of it as is taken within a second."""
    ends_at = time.monotonic() + _PATIENCE_S
    sink = open_sink(sys.stderr)
    sink.write(text.encode("utf-8", "replace"), lambda: time.monotonic() > ends_at)
    sink.close()
