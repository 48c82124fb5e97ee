"""What a search has asked so far, and how long the rest may take. Pure.

Owns the list of trials. The phases of the search are generators that yield an `Ask` and are sent an `Answer`: so they
read like the procedure that they are, need no clock or server, and may be replayed from a journal.
"""

from collections.abc import Generator
from typing import Final, TypeVar

from msgspec.structs import replace

from hybrid.planner.measures import Setting
from hybrid.tune.values import Answer, Ask, Load, Seen, Stage, Trial

T = TypeVar("T")
Steps = Generator[Ask, Answer, T]

#: What a trial takes beside its window: changing the setting, warming up, draining.
_BESIDE_S: Final = 1.5


class Book:
    """The trials in order. `todo_s` holds what each phase that is still to come will take, by its stage."""

    def __init__(self, budget_s: float) -> None:
        self.trials: list[Trial] = []
        self.left_s = budget_s
        self.todo_s: dict[Stage, float] = {}

    def ask(self, setting: Setting, load: Load, stage: Stage, text: str, number: int = 0) -> Steps[Seen]:
        """Have a load measured, and enter it."""
        self.todo_s[stage] = max(0.0, self.todo_s.get(stage, 0.0) - cost_s(load.seconds))
        asked = Ask(setting, load, stage, text, sum(self.todo_s.values()), number)
        answer = yield asked
        self.left_s = answer.left_s
        self.trials.append(Trial(asked, answer.seen))
        return answer.seen

    def mark(self, verdict: str = "", rejected: str = "", score: float | None = None) -> None:
        """Say what was made of the trial that was entered last."""
        self.trials[-1] = replace(self.trials[-1], verdict=verdict, rejected=rejected, score=score)

    def reject(self, setting: Setting, stage: Stage, why: str) -> None:
        """Say why a setting fell out after a phase, at its last trial there."""
        for at in range(len(self.trials) - 1, -1, -1):
            trial = self.trials[at]
            if trial.ask.setting == setting and trial.ask.stage == stage:
                self.trials[at] = replace(trial, rejected=trial.rejected or why)
                return

    def time_for(self, seconds: float, *later: Stage) -> bool:
        """Whether `seconds` of load fit in the budget beside what the `later` phases need."""
        return self.left_s >= cost_s(seconds) + sum(self.todo_s.get(stage, 0.0) for stage in later)


def cost_s(seconds: float) -> float:
    """Return how long a trial with a window of `seconds` takes, about."""
    return seconds + _BESIDE_S
