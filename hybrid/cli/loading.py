"""Whether a model that is planned could be served at all: one worker is started for it as a server would, and ended.

Owns that worker. Must never know why somebody doubts: most models were loaded when they were measured.
"""

import asyncio
from typing import Final

from msgspec.structs import replace

from hybrid.clock import MonotonicClock
from hybrid.config import ModelSettings
from hybrid.planner.types import Plan
from hybrid.serving.model import ServedModel
from hybrid.telemetry.logs import LogHub, setup_logging

#: What has not failed by then is large, and no plan should have to wait for it.
PATIENCE_S: Final = 10.0


def refuse_unloadable(model: ModelSettings, plan: Plan, patience_s: float = PATIENCE_S) -> None:
    """Return when the model is warm or `patience_s` are over.

    Raises:
        StartupError: it cannot be loaded, in the words of a server that was to serve it.
    """
    hub = setup_logging("error", "text")
    try:
        alone = replace(plan, instances=1, cores=plan.cores[:1], preprocess_processes=min(1, plan.preprocess_processes))
        asyncio.run(_warmed(model, alone, hub, patience_s))
    finally:
        hub.close(1.0)


async def _warmed(settings: ModelSettings, plan: Plan, hub: LogHub, patience_s: float) -> None:
    model = ServedModel(settings, plan, hub, asyncio.get_running_loop(), MonotonicClock())
    model.start()
    try:
        async with asyncio.timeout(patience_s):
            await model.wait_ready()
    except TimeoutError:
        pass  # nothing is known against it
    finally:
        await model.stop(0.0)
