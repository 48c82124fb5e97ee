"""`python -m hybrid.load.leashed PARENT ARGUMENT...`: becomes `hybrid ARGUMENT...`, which ends when PARENT does.

The request to the kernel outlives exec. A `preexec_fn` would do the same between fork and exec, in a copy of a process
that may have threads.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask for SIGTERM at the parent's death, then become the command."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
    safe = ["-P"] if sys.flags.safe_path else []  # what lies in the working directory stays out, too
    os.execv(sys.executable, [sys.executable, *safe, "-m", "hybrid", *sys.argv[2:]])


if __name__ == "__main__":
    main()
