"""What is known of models when they are planned: read from the cache, or measured first where that is wanted.

The edge between `planner.prepare` and the sessions. Must never decide by what it finds.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from hybrid.config import ModelSettings, PlannerSettings
from hybrid.facts import MachineFacts
from hybrid.planner.guess import has_own_device
from hybrid.planner.measures import EngineProfile, ModelProfile
from hybrid.planner.questions import own_memory, question_for
from hybrid.planner.shares import Key, cpu_budget, key_of
from hybrid.planner.space import SearchQuestion
from hybrid.planner.types import Objective
from hybrid.probing.cache import Cache, default_folder
from hybrid.probing.session import Answer, Session

_SHOWN_S: Final = 0.5

Say = Callable[[str], None]


class Measuring:
    """Answers what is known of models. `step` hears what is being done, `say` what is worth a line of its own.

    With `fresh` what was measured before is measured again, once for each model.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        environ: Mapping[str, str] = os.environ,
        *,
        fresh: bool = False,
        step: Say = lambda _: None,
        say: Say = lambda _: None,
        cache: Cache | None = None,
    ) -> None:
        self._settings = settings
        folder = Path(settings.cache_folder) if settings.cache_folder else default_folder(environ)
        self._cache = cache or Cache(folder)
        self._fresh = fresh
        self._renewed: set[Key] = set()
        self._step = step
        self._say = say

    def __call__(
        self, machine: MachineFacts, models: Sequence[ModelSettings], objective: Objective
    ) -> dict[Key, ModelProfile]:
        """Return what is known of each model that anything is known of.

        Each is measured alone and for all CPUs, whoever else is served: shares change, and times hold for all of them.
        """
        found: dict[Key, ModelProfile] = {}
        for model in models:
            profile = self._profile(machine, model, objective)
            if profile is not None:
                found[key_of(model)] = profile
        if self._cache.warning:
            self._say(f"warning: {self._cache.warning}")
            self._cache.warning = ""
        return found

    def known_only(self) -> "Measuring":
        """Return one that measures nothing and knows what this one does, also where the cache could not be written."""
        return Measuring(replace(self._settings, measure="cached"), cache=self._cache)

    def _profile(self, machine: MachineFacts, model: ModelSettings, objective: Objective) -> ModelProfile | None:
        key = key_of(model)

        def asking(engines: tuple[EngineProfile, ...]) -> SearchQuestion:
            memory = own_memory(model, machine) if has_own_device(model) else machine.memory_limit_bytes
            profile = ModelProfile(model.name, "", "", 0, engines)
            cpus = cpu_budget(machine, 1)
            spare_cpus = machine.cpu.usable - cpus
            return question_for(model, profile, cpus, memory, objective, spare_cpus=spare_cpus)

        session = Session(
            model,
            machine,
            self._cache,
            self._settings.probe_budget_s,
            may_measure=self._settings.measure == "auto",
            fresh=self._fresh and key not in self._renewed,
            progress=lambda text: self._step(f"measuring {model.name}: {text}"),
        )
        answer = session.answer(asking)
        self._renewed.add(key)
        if answer is None:
            if session.failure:
                self._say(f"warning: {model.name} was not measured: {session.failure}")
            return None
        self._tell(model, answer)
        return answer.profile

    def _tell(self, model: ModelSettings, answer: Answer) -> None:
        if answer.took_s >= _SHOWN_S:
            over = "; the time was over before everything was, a larger planner.probe_budget_s goes on"
            rest = "" if answer.complete else over
            in_all_s = answer.profile.took_s
            before = f" ({in_all_s:.0f} s with what was known)" if in_all_s > 1.5 * answer.took_s else ""
            self._say(f"measured {model.name} in {answer.took_s:.0f} s{before}, kept for later starts{rest}")
            for engine, note in answer.notes.items():
                self._say(f"measured {model.name}: {engine} {note}")
        if share := answer.profile.crowded_share:
            self._say(
                f"warning: {model.name} was measured ({answer.profile.measured_when}) while other processes had "
                f"{share:.0%} of the CPU time that was asked for; it is measured again at the first start that finds "
                "the CPUs free"
            )
