"""The lives of served models: made, warmed, retired and ended. The one owner of which models have processes.

Knows neither why a model comes or goes nor what requests are bound by: `manager` decides, `repository` binds.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from msgspec import Struct

from hybrid.config import ModelSettings
from hybrid.planner.types import Plan
from hybrid.serving.counters import Counters, Ledger
from hybrid.serving.model import ServedModel
from hybrid.serving.replan import Standing
from hybrid.serving.repository import Repository

log = logging.getLogger("hybrid.serving")

STOP_PROCESSES_S: Final = 3.0
_POLL_S: Final = 0.01


class Tools(Struct, frozen=True):
    """What a manager needs to be given. `settled` is called after models have come or gone.

    `drain_timeout_s` is for what is served no more; `max_timeout_s` is the longest deadline that a request has.
    """

    plan: Callable[[Sequence[ModelSettings], Standing], tuple[Plan, ...]]
    make: Callable[[ModelSettings, Plan, Counters], ServedModel]
    clock: Callable[[], float]
    settled: Callable[[], None]
    drain_timeout_s: float
    max_timeout_s: float


class Birth(Struct, frozen=True):
    """A model to start: why it has this plan, and the one of the same settings that it replaces, if it does."""

    settings: ModelSettings
    plan: Plan
    why: str
    heir_of: ServedModel | None = None


class Lives:
    """Every model that has processes, with its part: "" served, "next" starting, "last" going."""

    def __init__(self, repository: Repository, tools: Tools) -> None:
        self.ledger = Ledger()
        self.parts: dict[ServedModel, str] = {}
        self._repository = repository
        self._tools = tools

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(list(self.parts))

    def make(self, birth: Birth, part: str) -> ServedModel:
        """Make a model; it has no processes before it is started."""
        settings = birth.settings
        model = self._tools.make(settings, birth.plan, self.ledger.of(settings.name, settings.version))
        model.why = birth.why
        if birth.heir_of is not None:
            model.inherit(birth.heir_of)
        self.parts[model] = part
        return model

    async def warm(self, births: Sequence[Birth]) -> list[ServedModel]:
        """Start models beside those that serve, one after the other. All are warm, or none is left.

        Raises:
            StartupError: one cannot start.
        """
        fresh: list[ServedModel] = []
        warm = False
        try:
            for birth in births:
                fresh.append(self.make(birth, "next"))
                fresh[-1].start(gently=any(model.ready for model in self._repository))
                await fresh[-1].wait_ready()
            warm = True
        finally:
            if not warm:
                await self.end(fresh, 0.0)
        return fresh

    def served(self, name: str, models: Sequence[ServedModel]) -> None:
        """Note that models that were warmed are now those of this name that are served."""
        self.parts.update(dict.fromkeys(models, ""))
        self._inherit_counts(name)

    async def retire(self, old: Sequence[ServedModel], within_s: float) -> None:
        """Let models that get no new requests answer those that they have, for at most `within_s`, then end them.

        Whoever is cancelled here is not: what these models gave way to is in force. They stay for the server to end.
        """
        if not old:
            return
        for model in old:
            self.parts[model] = "last"
            model.drain()
        ends_at = self._tools.clock() + within_s
        try:
            # Polled, because an event would have to be set on the hot path.
            while any(model.open_n for model in old) and self._tools.clock() < ends_at:  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
            await self.end(old, STOP_PROCESSES_S)
        except asyncio.CancelledError:  # raised further it would say that the operation was given up
            names = ", ".join(dict.fromkeys(model.name for model in old))
            log.info("%s: the change is in force; the server stops, so nobody waits for the old processes", names)

    async def end(self, models: Sequence[ServedModel], timeout_s: float) -> None:
        """End the processes of models, within `timeout_s` by their own doing."""
        await asyncio.gather(*(model.stop(timeout_s) for model in models))
        for model in models:
            del self.parts[model]
            if model.preprocess is not None and model.owns_preprocess:
                self.ledger.pool_ended(model.preprocess.stats())
            self._inherit_counts(model.name)
        if models:
            self._tools.settled()

    def _inherit_counts(self, name: str) -> None:
        versions = [model.version for model in self._repository if model.name == name]
        if versions:
            self.ledger.inherit(name, versions, self._repository.get(name).version)
