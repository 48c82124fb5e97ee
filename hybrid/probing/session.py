"""Measures one model on this machine for one question, or answers it from what was measured before.

Owns the order: what each engine is like first, then the times that the search asks for, within a budget. Must never
decide what is a good setting: that is for `planner.search`.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import psutil
from msgspec import Struct, json
from msgspec.structs import replace

from hybrid.config import ModelSettings, engines_for
from hybrid.facts import MachineFacts
from hybrid.planner.guess import is_simulated
from hybrid.planner.measures import EngineProfile, Measurer, ModelProfile, Timing
from hybrid.planner.search import Search
from hybrid.planner.space import MEMORY_SHARE, SearchQuestion
from hybrid.probing import simulated
from hybrid.probing.agreement import Sample, disagreement
from hybrid.probing.budget import Budget
from hybrid.probing.cache import Cache, Record
from hybrid.probing.crew import ProbeFailed
from hybrid.probing.facts import FactsProbe
from hybrid.probing.feed import USUAL_LENGTH
from hybrid.probing.fingerprint import engine_version, machine_key
from hybrid.probing.runner import NO_TIME, ProcessMeasurer

#: Largest batch whose memory is looked at on a CPU; larger ones gain nothing there.
_MOST_ROWS: Final = 64
_MOST_DEVICE_ROWS: Final = 256
#: Part of the budget that finding out about engines may take; an engine whose turn comes later is left out.
_FACTS_SHARE: Final = 0.6

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
        self._found_length = 0

    def answer(self, asking: Asking) -> Answer | None:
        """Return the answer to a question, or None where nothing is known and nothing could be found out."""
        model = self._model
        if is_simulated(model):
            return self._simulated(asking)
        wanted = [name for name in engines_for(model) if engine_version(name)]
        record = self._record()
        engines = _usable(record.profile.engines, wanted, model.workers.device)
        known = bool(engines) and _question(asking(engines), wanted) in record.questions
        if known or not self._may_measure:
            return Answer(replace(record.profile, engines=engines), record.notes) if _any_time(engines) else None
        return self._measure(asking, record, engines, wanted)

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
        notes = dict(record.notes)
        engines = self._with_facts(engines, wanted, notes, budget)
        if not engines:
            return None
        with ProcessMeasurer(self._model, self._machine, self._length, budget, self._progress) as measurer:
            engines, complete = _search(asking, engines, measurer)
        if not _any_time(engines):
            return None
        profile = replace(
            record.profile,
            model=self._model.name,
            length=self._found_length or record.profile.length,
            engines=(*engines, *(e for e in record.profile.engines if e.engine not in wanted)),
            took_s=round(record.profile.took_s + budget.spent_s, 2),
            measured_at=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        )
        questions = dict.fromkeys((*record.questions, _question(asking(engines), wanted)))
        self._cache.save(Record(profile, tuple(questions), notes))
        return Answer(replace(profile, engines=engines), notes, budget.spent_s, complete)

    def _with_facts(
        self, engines: tuple[EngineProfile, ...], wanted: Sequence[str], notes: dict[str, str], budget: Budget
    ) -> tuple[EngineProfile, ...]:
        """Find out about the engines that are not known yet; those that cannot take the model are left out."""
        device = self._model.workers.device
        usable = MEMORY_SHARE * _free_bytes(self._machine, device)
        most = _MOST_ROWS if device == "cpu" else _MOST_DEVICE_ROWS
        probe = FactsProbe(self._model, self._machine, self._length, usable, most, budget, self._progress)
        found = list(engines)
        samples: dict[str, Sample] = {}
        for name in wanted:
            if any(engine.engine == name for engine in engines):
                continue
            if found and budget.spent_s > _FACTS_SHARE * self._budget_s:
                notes[name] = "left out: the time for measuring did not suffice"
                continue
            try:
                facts = probe.find(name)
            except (ProbeFailed, OSError) as error:
                notes[name] = f"left out: {error}"
                continue
            samples[name] = facts.sample
            first = next(iter(samples))
            differs = disagreement(samples[first], facts.sample)
            if differs:
                notes[name] = f"left out: compared with {first}, {differs}"
                continue
            notes.pop(name, None)
            self._found_length = facts.length
            found.append(facts.profile)
        return tuple(found)


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
        engines = tuple(replace(e, timings=_merged(e, taken)) for e in engines)
    return engines, complete


def _any_time(engines: Sequence[EngineProfile]) -> bool:
    return any(not timing.failure for engine in engines for timing in engine.timings)


def _merged(engine: EngineProfile, timings: Sequence[Timing]) -> tuple[Timing, ...]:
    own = {timing.probe: timing for timing in engine.timings}
    own |= {t.probe: t for t in timings if (t.probe.engine, t.probe.device) == (engine.engine, engine.device)}
    return tuple(own.values())


def _usable(engines: Sequence[EngineProfile], wanted: Sequence[str], device: str) -> tuple[EngineProfile, ...]:
    """Those that are wanted and still the version that was measured."""
    return tuple(
        e for e in engines if e.engine in wanted and e.device == device and e.engine_version == engine_version(e.engine)
    )


def _question(question: SearchQuestion, wanted: Sequence[str]) -> str:
    """A question as a key: which engines there are, left out ones too, and everything but what is the answer to it."""
    installed = [(name, engine_version(name)) for name in wanted]
    return json.encode((installed, replace(question, engines=()))).decode()


def _free_bytes(machine: MachineFacts, device: str) -> int:
    """Memory that may be tried: the limit of this process or of its device, and no more than is free at the moment."""
    if device != "cpu" and machine.gpus:
        return min(gpu.memory_total_bytes for gpu in machine.gpus)
    return min(machine.memory_limit_bytes, int(psutil.virtual_memory().available))
