"""Memory of this process and of the machine, as the kernel counts it. Runs in children; Linux only, like them."""

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def forget_peak() -> None:
    """Have the kernel count the peak of resident memory anew; where it refuses, the old one stays, which is safe."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def peak_bytes() -> int:
    """Return the most that was resident since the start or the last `forget_peak`; 0 where the kernel does not say.

    Not getrusage(): its maximum is that of the process that started this one, where that is larger.
    """
    return _kilobytes(_STATUS, "VmHWM:") * 1024


def free_bytes() -> int:
    """Return what the machine could still give without swapping. What a container may take is not looked at."""
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:") * 1024 or sys.maxsize


def _kilobytes(file: Path, name: str) -> int:
    try:
        for line in file.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1])
    except OSError:
        pass
    return 0
