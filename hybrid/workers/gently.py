"""The program of a model worker that starts beside others which serve: until it is warm, it yields the CPUs to them.

Runs in the child (`python -m hybrid.workers.gently`), in place of `hybrid.workers.model_worker`. Importing, loading and
warming cost about as much CPU as a hundred requests, and they are not urgent, so they happen at a low priority where
the system lets a process take its own one back. Where it does not, which is usual outside of root, they do not: engines
keep threads that were made while they loaded, and numpy some of its import, and those would stay slow for good.
"""

import importlib
import os
import threading
from typing import Final

#: Under full load about a tenth of a CPU is left for the start, so that it comes to an end there too.
_STEPS: Final = 10


def main() -> None:
    """Start gently, then be a model worker."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    low = min(19, usual + _STEPS)
    gentle = _may_go_back(usual, low)
    if gentle:
        os.setpriority(os.PRIO_PROCESS, 0, low)
    worker = importlib.import_module("hybrid.workers.model_worker")  # the first thing that is not urgent
    worker.main(lambda: _set_all(usual) if gentle else None)


def _may_go_back(usual: int, low: int) -> bool:
    """Try it in a thread of its own: on Linux each thread has a priority, and this one takes it along when it ends."""
    tried: list[bool] = []

    def there_and_back() -> None:
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, low)
        try:
            os.setpriority(os.PRIO_PROCESS, thread, usual)
        except OSError:
            return
        tried.append(True)

    trying = threading.Thread(target=there_and_back, name="gently")
    trying.start()
    trying.join()
    return bool(tried)


def _set_all(nice: int) -> None:
    """Set all threads of this process, those of the engine too; one that ends meanwhile has no say."""
    for task in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(task), nice)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
