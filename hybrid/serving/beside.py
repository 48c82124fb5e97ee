"""The plan of a model that is loaded beside others which go on by plans of their own. Pure."""

from collections.abc import Sequence

from msgspec.structs import replace

from hybrid.planner.types import Plan


def beside(new: Plan, running: Sequence[Plan], proposed: Sequence[Plan]) -> Plan:
    """Return the new plan with what is true of it while the others keep the plans they run by.

    A new plan shares the machine as if all models were planned at once, but those that run are not disturbed: they may
    have more CPUs than their share until they are loaded again. Where cores would be taken twice, the new workers are
    not pinned: two workers tied to one core wait for each other while others idle.

    Args:
        new: The plan of the model that is loaded, made together with the others.
        running: The plans that the others run by.
        proposed: The plans that they would get now, in the same order.
    """
    reasons = dict(new.reasons)
    stale = [now.model for now, then in zip(running, proposed, strict=True) if _share(now) != _share(then)]
    if stale:
        names = ", ".join(dict.fromkeys(stale))
        reasons["instances"] += f" Planned beside {names}, as if planned anew too: load again to share the CPUs so."
    taken = {core for plan in running for cores in plan.cores for core in cores}
    if not taken.intersection(core for cores in new.cores for core in cores):
        return replace(new, reasons=reasons)
    reasons["cores"] = "Not pinned: models that were loaded before hold some of the cores that the plan would give."
    return replace(new, cores=tuple(() for _ in new.cores), reasons=reasons)


def _share(plan: Plan) -> tuple[object, ...]:
    return plan.device, plan.instances, plan.threads_per_instance
