"""Claims about time, on machines whose CPUs others want as well."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

_TRIES = 3
#: What a try that failed half-way has left executing is over by then.
_PAUSE_S = 1.0


def in_a_quiet_moment(test: Callable[..., Any]) -> Callable[..., Any]:
    """Give a test that bounds a time three tries: a neighbour spoils one, what is really too slow fails all.

    Wider bounds instead would hide faults: most of what these tests are against adds less than a busy neighbour does.
    """

    @functools.wraps(test)
    async def tries_async(*args: Any, **kwargs: Any) -> None:
        for _ in range(_TRIES - 1):
            try:
                return await test(*args, **kwargs)
            except AssertionError:
                await asyncio.sleep(_PAUSE_S)
        return await test(*args, **kwargs)

    return tries_async
