"""Planning anew while the server runs: what was asked for, what plans are made by, and what a new plan changes. Pure.

Decides whether a plan can come into force in the workers that run, or needs others. Must never know how a model is
started: that is `manager`, which carries out what is decided here.
"""

from typing import Final

from msgspec import Struct, field, structs

from hybrid.config import BatchingSettings
from hybrid.planner.types import Plan, PlanOverrides, RunTimeOverrides
from hybrid.serving.model import ServedModel
from hybrid.serving.policy import policy_of
from hybrid.workers.warming import HARMLESS_ROWS

#: Keys of a plan that only the batcher reads, as long as the batches keep their shape.
_OF_THE_BATCHER: Final = frozenset(
    {"max_batch", "max_wait_ms", "early_trigger", "batching", "queue_rows", "queue_bytes"}
)
#: Devices on which a few rows are no risk though they were never run: elsewhere the warm-up shows what memory holds.
_ROOMY: Final = frozenset({"cpu", "simulated"})


class Wish(Struct, frozen=True):
    """What somebody asks for: numbers to fix, `back` names those to fix no more; for one model or, without, for all.

    `profile` is what `--profile` takes; None leaves it. `why` is said where the plan is shown.
    """

    model: str | None = None
    overrides: PlanOverrides = PlanOverrides()
    back: frozenset[str] = frozenset()
    profile: str | None = None
    why: str = ""

    @property
    def updates(self) -> dict[str, object]:
        """The keys that it speaks of; None for those that are taken back."""
        fixed = {key: value for key, value in structs.asdict(self.overrides).items() if value is not None}
        return dict.fromkeys(sorted(self.back)) | fixed

    @property
    def text(self) -> str:
        """Why the plan is made anew, in a few words."""
        parts = [self.why] if self.why else []
        parts += [
            f"{key} = {value}" if value is not None else f"{key} left open" for key, value in self.updates.items()
        ]
        parts += [f"profile {self.profile}"] if self.profile is not None else []
        return f"re-planned at run time: {', '.join(parts) or 'as asked'}"


class Standing(Struct, frozen=True):
    """What plans are made by: profile and flags of the start, and what was fixed since, by the last word on each."""

    profile: str = "auto"
    flags: PlanOverrides = PlanOverrides()
    for_all: PlanOverrides = PlanOverrides()
    by_model: dict[str, PlanOverrides] = field(default_factory=dict)

    @property
    def overrides(self) -> RunTimeOverrides:
        """All of it but the profile, as the planner takes it."""
        return RunTimeOverrides(**structs.asdict(self.flags), for_all=self.for_all, by_model=self.by_model)

    def changed(self, wish: Wish) -> "Standing":
        """Return what plans are made by once the wish is granted. A word about all models is one about each."""
        updates, by_model = wish.updates, dict(self.by_model)
        profile = self.profile if wish.profile is None else wish.profile
        if wish.model is not None:
            by_model[wish.model] = structs.replace(by_model.get(wish.model, PlanOverrides()), **updates)
            return structs.replace(self, profile=profile, by_model=by_model)
        cleared = dict.fromkeys(updates)
        by_model = {name: structs.replace(fixed, **cleared) for name, fixed in by_model.items()}
        return structs.replace(
            self, profile=profile, for_all=structs.replace(self.for_all, **updates), by_model=by_model
        )


class Replanned(Struct, frozen=True):
    """What came of it for one model: the plan in force, which keys are new, whether other workers were started."""

    plan: Plan
    changed: tuple[str, ...] = ()
    restarted: bool = False


class Step(Struct, frozen=True):
    """What a new plan means for one served model: the keys that are new, and whether it takes other workers."""

    model: ServedModel
    plan: Plan
    changed: tuple[str, ...]
    needs_workers: bool


def step_of(model: ServedModel, plan: Plan) -> Step:
    """Return the step from the plan by which a model runs to another."""
    other = needs_workers(model.started_by, plan, model.settings.batching)
    return Step(model, plan, plan.differs(model.planned), other)


def needs_workers(running: Plan, after: Plan, settings: BatchingSettings) -> bool:
    """Whether a plan asks for other workers than those that were started by `running`.

    Numbers of the batcher do not, unless batches get a shape that the workers were not made for: static batching,
    more than one row where it was not checked that rows may share a batch, or more rows than a device was seen to hold.
    """
    keys = after.differs(running)
    if not _OF_THE_BATCHER.issuperset(keys):
        return True
    if (running.static or after.static) and ("max_batch" in keys or "batching" in keys):
        return True
    harmless = HARMLESS_ROWS if running.max_batch > 1 and running.device in _ROOMY else 0
    if after.max_batch > max(running.max_batch, harmless):
        return True
    # What waits is kept in the order that suits the formation, and stays in it.
    return policy_of(running, settings).formation != policy_of(after, settings).formation
