"""One switch from the plans in force to others: all of it or nothing, and in one step for requests.

Owns nothing longer than it lasts. First everything that may fail: the plans are made, new workers are started and
warmed beside the old ones. Then the change, which waits for nothing. Then what was replaced answers what it has.
"""

import asyncio
import logging
from collections.abc import Sequence

from hybrid.errors import BadRequest, ConfigError, LoadFailed, NotFound, StartupError
from hybrid.planner.types import Plan
from hybrid.serving.beside import beside
from hybrid.serving.lives import Birth, Lives, Tools
from hybrid.serving.model import ServedModel
from hybrid.serving.replan import Replanned, Standing, Step, Wish, step_of
from hybrid.serving.repository import Repository

log = logging.getLogger("hybrid.serving")


class Switch:
    """Prepare, then carry out; once each. Whoever has its turn at changing models makes one."""

    def __init__(self, repository: Repository, lives: Lives, tools: Tools) -> None:
        self._repository = repository
        self._lives = lives
        self._tools = tools
        self._steps: list[Step] = []
        self._heirs: dict[ServedModel, ServedModel] = {}

    async def prepare(self, wish: Wish, standing: Standing) -> None:
        """Plan anew and warm the workers that it takes. If it fails nothing is left of it.

        Raises:
            NotFound: no such model is served.
            BadRequest: there is no such plan.
            LoadFailed: new workers cannot be started.
        """
        served = list(self._repository)
        meant = [model for model in served if wish.model in (None, model.name)]
        if wish.model is not None and not meant:
            names = ", ".join(sorted({model.name for model in served})) or "none"
            raise NotFound(f"no model named {wish.model!r} is served; served here: {names}")
        try:
            plans = await asyncio.to_thread(self._anew, meant, served, standing)
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        self._steps = [step_of(model, plan) for model, plan in zip(meant, plans, strict=True)]
        replaced = [step for step in self._steps if step.needs_workers]
        births = [Birth(step.model.settings, step.plan, wish.text, step.model) for step in replaced]
        try:
            fresh = await self._lives.warm(births)
        except (StartupError, OSError) as error:
            raise LoadFailed(f"{error}; the plan before stays in force") from error
        self._heirs = {step.model: heir for step, heir in zip(replaced, fresh, strict=True)}

    async def carry_out(self, why: str) -> tuple[Replanned, ...]:
        """Change everything in one step of the loop, and return what came of it when what was replaced is gone.

        Once that step is done the plans are in force, also if the server stops before that.
        """
        heirs = self._heirs
        for step in self._steps:
            if not step.needs_workers:
                step.model.adopt(step.plan, why)
        for name in dict.fromkeys(model.name for model in heirs):
            versions = [heirs.get(model, model) for model in self._repository if model.name == name]
            self._repository.publish(name, versions)
            self._lives.served(name, versions)
        for old, heir in heirs.items():
            heir.take_over(old)
        self._say(why)
        # Until the last of their requests is answered or late by its own deadline: none is cut short by a new plan.
        await self._lives.retire(list(heirs), self._tools.max_timeout_s)
        return tuple(Replanned(heirs.get(s.model, s.model).plan, s.changed, s.needs_workers) for s in self._steps)

    def _anew(self, meant: Sequence[ServedModel], served: Sequence[ServedModel], standing: Standing) -> list[Plan]:
        """Return new plans of those that are meant; the others go on by theirs. Runs in a thread: it reads files."""
        rest = [model for model in served if model not in meant]
        plans = self._tools.plan([model.settings for model in (*rest, *meant)], standing)
        running, proposed = [model.plan for model in rest], plans[: len(rest)]
        return [beside(plan, running, proposed) for plan in plans[len(rest) :]]

    def _say(self, why: str) -> None:
        for step in self._steps:
            if step.changed:
                how = "other workers" if step.needs_workers else "the same workers"
                log.info("%s: %s; %s changed, %s", step.model.name, why, ", ".join(step.changed), how)
