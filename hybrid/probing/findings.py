"""What is found out about the engines of one model: which may be planned with, and why others are left out. Pure."""

from typing import Final

from hybrid.planner.measures import EngineProfile
from hybrid.probing.agreement import Sample, disagreement
from hybrid.probing.facts import Facts

OUT_OF_TIME: Final = "the time for measuring did not suffice (planner.probe_budget_s)"


class Findings:
    """What is found out about engines, on top of what was known.

    `late` where the time did not suffice for one, `passing` where one was left out for what may be over next time.
    """

    def __init__(self, engines: list[EngineProfile], notes: dict[str, str], reference: str, sample: Sample) -> None:
        self.engines = engines
        self.notes = notes
        known = any(engine.engine == reference for engine in engines)
        self.reference, self.sample = (reference, sample) if known else ("", {})
        self.length = 0
        self.late = False
        self.passing = False

    def take(self, facts: Facts) -> None:
        """Take an engine, unless it gives other answers than the first one."""
        name = facts.profile.engine
        if not self.reference:
            self.reference, self.sample = name, facts.sample
        differs = disagreement(self.sample, facts.sample)
        if differs:
            self.leave_out(name, f"compared with {self.reference}, {differs}")
            return
        self.notes.pop(name, None)
        self.length = facts.length
        self.engines.append(facts.profile)

    def leave_out(self, name: str, why: str = "", *, late: bool = False, passing: bool = False) -> None:
        """Leave an engine out."""
        self.notes[name] = f"left out: {OUT_OF_TIME if late else why}"
        self.late |= late
        self.passing |= passing
