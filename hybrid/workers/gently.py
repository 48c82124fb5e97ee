"""The program of a model worker that starts beside others which serve: until it is warm, it yields the CPUs to them.

Runs in the child (`python -m hybrid.workers.gently`), in place of `hybrid.workers.model_worker`. Importing, loading and
warming cost about as much CPU as a few hundred requests, and they are not urgent. Where the system lets a process take
its priority back, all of that happens at a low one. Where it does not, which is the default outside of root, a thread
of low priority imports what the worker needs and ends, and the rest costs what it costs: engines keep threads that were
made while they loaded, and those would stay slow for good.
"""

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Final

#: Under full load about a tenth of a CPU is left for the start, so that it comes to an end there too.
_STEPS: Final = 10
_JOB: Final = "hybrid.workers.model_worker"


def main() -> None:
    """Start gently, then be a model worker."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    low = min(19, usual + _STEPS)
    if _in_thread(lambda: _goes_back(usual, low)):
        _set_priority(low)
        importlib.import_module(_JOB).main(lambda: _set_priority_of_all(usual))
    else:
        _in_thread(lambda: _import(low))
        sys.modules[_JOB].main()


def _in_thread(work: Callable[[], bool]) -> bool:
    """Run in a thread of its own: on Linux a priority is one of a thread, and ends with it."""
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(work()), name="gently")
    thread.start()
    thread.join()
    return bool(results) and results[0]


def _goes_back(usual: int, low: int) -> bool:
    """Try whether this thread may raise its priority again."""
    try:
        _set_priority(low)
        _set_priority(usual)
    except OSError:
        return False
    return True


def _import(low: int) -> bool:
    _set_priority(low)
    importlib.import_module(_JOB)
    return True


def _set_priority(nice: int) -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)


def _set_priority_of_all(nice: int) -> None:
    """Set all threads of this process, those of the engine too; one that ends meanwhile has no say."""
    for task in os.listdir("/proc/self/task"):
        try:
            os.setpriority(os.PRIO_PROCESS, int(task), nice)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
