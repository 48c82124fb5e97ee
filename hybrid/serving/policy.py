"""What batching needs of a plan and of a model's settings. Pure."""

from typing import Final

from hybrid.batching.policy import BatchPolicy
from hybrid.config import BatchingSettings
from hybrid.planner.types import Plan

_MARGIN_S: Final = 0.01
_MARGIN_RATIO: Final = 0.2


def policy_of(plan: Plan, settings: BatchingSettings) -> BatchPolicy:
    """Return what batching needs of a plan and of the model's settings.

    Rows that run alone, that are never padded, or all to one length, gain nothing from being sorted.
    """
    return BatchPolicy(
        max_batch=plan.max_batch,
        max_wait_s=plan.max_wait_s,
        early_trigger=plan.early_trigger,
        queue_rows=plan.queue_rows,
        queue_bytes=plan.queue_bytes,
        margin_s=_MARGIN_S,
        margin_ratio=_MARGIN_RATIO,
        static=plan.static,
        static_length=plan.static_length,
        formation=settings.formation if settings.pad_inputs and plan.max_batch > 1 and not plan.static else "fifo",
        size_edges=plan.size_edges,
    )
