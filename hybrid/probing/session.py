"""Measures one model on this machine for one question, or answers it from what was measured before.

Owns the order: what each engine is like first, then the times that the search asks for, within a budget. Must never
decide what is a good setting: that is for `planner.search`.

Times that were taken while others used the CPUs count, for that may be how this machine is. They are taken again at the
first start that finds it calm.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import psutil
from msgspec import Struct, json
from msgspec.structs import replace

from hybrid.config import ModelSettings, engines_for
from hybrid.facts import MachineFacts
from hybrid.planner.guess import has_own_device, is_simulated
from hybrid.planner.measures import EngineProfile, Measurer, ModelProfile, Timing
from hybrid.planner.questions import own_memory
from hybrid.planner.search import Search
from hybrid.planner.space import SearchQuestion
from hybrid.probing import simulated
from hybrid.probing.budget import Budget
from hybrid.probing.cache import Cache, Record
from hybrid.probing.crew import ProbeFailed
from hybrid.probing.crowding import is_calm
from hybrid.probing.facts import FactsProbe
from hybrid.probing.feed import USUAL_LENGTH
from hybrid.probing.findings import OUT_OF_TIME, Findings
from hybrid.probing.fingerprint import MEMORY_STEP, engine_version, machine_key
from hybrid.probing.runner import NO_TIME, ProcessMeasurer

#: Largest batch whose memory is looked at on a CPU; larger ones gain nothing there.
_MOST_ROWS: Final = 64
_MOST_DEVICE_ROWS: Final = 256
#: Part of the budget that finding out about engines may take; an engine whose turn comes later is left out.
_FACTS_SHARE: Final = 0.6
#: Part of the budget that the first times get, beyond the budget where finding out took all of it: what was found out
#: is worth nothing without.
_SEEDS_SHARE: Final = 0.5

Progress = Callable[[str], None]
#: The question for these engines, whose timings count as measured.
Asking = Callable[[tuple[EngineProfile, ...]], SearchQuestion]


class Answer(Struct, frozen=True):
    """What is known, and which engines were left out and why.

    `took_s` is the time that it cost now; `complete` is False where the time was over before the search was done.
    """

    profile: ModelProfile
    notes: dict[str, str]
    took_s: float = 0.0
    complete: bool = True


class Session:
    """One model. `length` is that of variable dimensions where no example tells.

    With `may_measure` False nothing is run, and only what is in the cache is known; with `fresh` the cache is not read.
    """

    def __init__(
        self,
        model: ModelSettings,
        machine: MachineFacts,
        cache: Cache,
        budget_s: float,
        *,
        may_measure: bool = True,
        fresh: bool = False,
        progress: Progress = lambda _: None,
    ) -> None:
        self._model = model
        self._machine = machine
        self._cache = cache
        self._budget_s = budget_s
        self._may_measure = may_measure
        self._fresh = fresh
        self._progress = progress
        self._length = model.batching.static_length or USUAL_LENGTH
        #: Why there is no answer, "" while nobody tried to find one.
        self.failure = ""

    def answer(self, asking: Asking) -> Answer | None:
        """Return the answer to a question, or None where nothing is known and nothing could be found out."""
        model = self._model
        if is_simulated(model):
            return self._simulated(asking)
        wanted = [name for name in engines_for(model) if engine_version(name)]
        answer = self._known_or_measured(asking, wanted)
        if answer is None or model.workers.device != "cpu":  # which engines know another device, only they can tell
            return answer
        missing = tuple(name for name in engines_for(model) if name not in wanted)
        return replace(answer, profile=replace(answer.profile, missing=missing))

    def _known_or_measured(self, asking: Asking, wanted: list[str]) -> Answer | None:
        model = self._model
        if not wanted:
            self.failure = (
                f"no engine for it is installed ({', '.join(engines_for(model)) or 'none takes such a file'})"
            )
            return None
        record = self._record()
        engines = _usable(record.profile.engines, wanted, model.workers.device)
        question = _question(asking(engines), wanted)
        known = bool(engines) and question in record.questions
        tried = record.unfinished.get(question, 0.0) >= self._budget_s
        crowded = replace(record.profile, engines=engines).crowded_share
        if self._may_measure and crowded and is_calm(self._machine):
            engines, known, tried = tuple(replace(engine, timings=()) for engine in engines), False, False
        if not (known or tried) and self._may_measure:
            return self._measure(asking, record, engines, wanted)
        if _any_time(engines):
            return Answer(replace(record.profile, engines=engines), record.notes)
        if tried and self._may_measure:
            self.failure = OUT_OF_TIME
        return None

    def _simulated(self, asking: Asking) -> Answer | None:
        device, model = self._model.simulated, self._model
        assert device is not None
        engine = simulated.engine_profile(device)
        measurer = simulated.SimulatedMeasurer(device, self._machine.cpu.usable, self._length)
        found, _ = _search(asking, (engine,), measurer)
        profile = ModelProfile(model.name, "simulated", "declared", self._length, found)
        return Answer(profile, {}) if _any_time(found) else None

    def _record(self) -> Record:
        machine, digest = machine_key(self._machine), self._cache.digest(self._model)
        record = None if self._fresh else self._cache.load(machine, digest)
        return record or Record(ModelProfile(self._model.name, machine, digest, self._length))

    # Measuring -----------------------------------------------------------------------------------------------------

    def _measure(
        self, asking: Asking, record: Record, engines: tuple[EngineProfile, ...], wanted: Sequence[str]
    ) -> Answer | None:
        budget = Budget(self._budget_s)
        before_s = record.profile.took_s if _any_time(engines) else 0.0  # else what it gave is not used any more
        findings = Findings(list(engines), dict(record.notes), record.reference, record.sample)
        self._find_facts(wanted, findings, budget)
        engines, complete = tuple(findings.engines), not findings.late
        if engines:
            if not _any_time(engines):
                budget.ensure(_SEEDS_SHARE * self._budget_s)
            with ProcessMeasurer(self._model, self._machine, self._length, budget, self._progress) as measurer:
                engines, searched = _search(asking, engines, measurer)
            complete = complete and searched
        profile = replace(
            record.profile,
            model=self._model.name,
            length=findings.length or record.profile.length,
            engines=(*engines, *(e for e in record.profile.engines if e.engine not in wanted)),
            took_s=round(before_s + budget.spent_s, 2),
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        if engines or not complete:  # else it could not be loaded, which may be mended
            key = _question(asking(engines), wanted)
            self._cache.save(_record(record, profile, findings, key, None if complete else self._budget_s))
        if not _any_time(engines):
            self.failure = _why(engines, findings.notes)
            return None
        return Answer(replace(profile, engines=engines), findings.notes, budget.spent_s, complete)

    def _find_facts(self, wanted: Sequence[str], findings: Findings, budget: Budget) -> None:
        """Find out about the engines that are not known yet; those that cannot take the model are left out."""
        most = _MOST_ROWS if self._model.workers.device == "cpu" else _MOST_DEVICE_ROWS
        memory = _free_bytes(self._model, self._machine)
        probe = FactsProbe(self._model, self._machine, self._length, memory, most, budget, self._progress)
        for name in wanted:
            if any(engine.engine == name for engine in findings.engines):
                continue
            share = _FACTS_SHARE if findings.engines else 1.0
            if budget.spent_s >= share * self._budget_s:
                findings.leave_out(name, late=True)
                continue
            try:
                findings.take(probe.find(name))
            except ProbeFailed as error:
                findings.leave_out(name, str(error), late=error.late)
            except OSError as error:
                findings.leave_out(name, str(error), passing=True)


def _record(before: Record, profile: ModelProfile, findings: Findings, question: str, short_s: float | None) -> Record:
    """What to keep. The question counts as answered where `short_s`, the budget that did not suffice, is None."""
    questions, unfinished = list(before.questions), dict(before.unfinished)
    unfinished.pop(question, None)
    if short_s is not None:
        unfinished[question] = short_s
    elif not findings.passing:
        questions.append(question)
    sample = {name: tuple(values) for name, values in findings.sample.items()}
    return Record(profile, tuple(dict.fromkeys(questions)), findings.notes, unfinished, findings.reference, sample)


def _why(engines: Sequence[EngineProfile], notes: Mapping[str, str]) -> str:
    """Why there is no time of any engine."""
    failed = {timing.probe.engine: timing.failure for engine in engines for timing in engine.timings}
    texts = [f"{name} {note}" for name, note in notes.items()] + [f"{name}: {text}" for name, text in failed.items()]
    return "; ".join(texts) or OUT_OF_TIME


def _search(
    asking: Asking, engines: tuple[EngineProfile, ...], measurer: Measurer
) -> tuple[tuple[EngineProfile, ...], bool]:
    """Ask and tell until the search is done or the time over.

    Returns the engines with their new timings, and whether the search was done.
    """
    search = Search(asking(engines))
    complete = True
    while complete and (probes := search.next()):
        timings = measurer.time(probes)
        taken = tuple(timing for timing in timings if timing.failure != NO_TIME)
        complete = len(taken) == len(timings)
        search.tell(taken)
        engines = tuple(replace(e, timings=with_new(e, taken)) for e in engines)
    return engines, complete


def _any_time(engines: Sequence[EngineProfile]) -> bool:
    return any(not timing.failure for engine in engines for timing in engine.timings)


def with_new(engine: EngineProfile, timings: Sequence[Timing]) -> tuple[Timing, ...]:
    """All times of an engine with its new ones, the same setting's several times; a failure that passed is none."""
    new = [t for t in timings if (t.probe.engine, t.probe.device) == (engine.engine, engine.device)]
    every = (*engine.timings, *new)
    worked = {timing.probe for timing in every if not timing.failure}
    return tuple(timing for timing in every if not timing.failure or timing.probe not in worked)


def _usable(engines: Sequence[EngineProfile], wanted: Sequence[str], device: str) -> tuple[EngineProfile, ...]:
    """Those that are wanted and still the version that was measured."""
    return tuple(
        e for e in engines if e.engine in wanted and e.device == device and e.engine_version == engine_version(e.engine)
    )


def _question(question: SearchQuestion, wanted: Sequence[str]) -> str:
    """A question as a key: which engines there are, left out ones too, and everything but what is the answer to it."""
    installed = [(name, engine_version(name)) for name in wanted]
    memory = question.memory_bytes // MEMORY_STEP
    return json.encode((installed, replace(question, engines=(), memory_bytes=memory))).decode()


def _free_bytes(model: ModelSettings, machine: MachineFacts) -> int:
    """Memory that may be tried: that of the model's device, else this process's limit as far as it is free now."""
    if has_own_device(model):
        return own_memory(model, machine)
    return min(machine.memory_limit_bytes, int(psutil.virtual_memory().available))
