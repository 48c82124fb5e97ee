"""Whether a worker is to be ended or replaced, by what is known of it at one moment. Decides only; ends nobody."""

from typing import Final

from msgspec import Struct

from hybrid.config import WorkerSettings
from hybrid.workers.member import Member, MemberState

_ROOM_TO_GROW: Final = 1.25  # over what a fresh worker holds: a limit below that would recycle for ever

_GENTLE_PATIENCE: Final = 10.0  # at a low priority a tenth of a CPU is left for a start under full load


class Fault(Struct, frozen=True):
    """Why a worker must be ended. `own` when what it executes is the reason, and not somebody outside."""

    text: str
    own: bool = False


def fault_of(member: Member, settings: WorkerSettings, now: float) -> Fault | None:
    """Return what is wrong with a worker: it does not come up, its batch runs for too long, or it says nothing."""
    child = member.child
    if child is None:
        return None
    if member.state is MemberState.STARTING:
        limit_s = settings.start_timeout_s * (_GENTLE_PATIENCE if member.gently else 1.0)
        return Fault(f"not ready after {limit_s:g} s") if now - member.since > limit_s else None
    if member.state is MemberState.STOPPED:
        return None
    overdue_s = member.overdue_s(now)
    if overdue_s is not None:
        return Fault(f"hung: its batch runs for {overdue_s:.1f} s", own=not child.suspended)
    silent_s = now - child.heard_at
    return Fault(f"silent for {silent_s:.1f} s") if silent_s > _patience_s(member, settings) else None


def takes_effect_at(member: Member, settings: WorkerSettings) -> float | None:
    """Return the resident bytes at which a worker is replaced; None without a limit.

    At least a quarter more than it held when it was fresh, whatever the limit says: a successor would be no smaller.
    """
    limit = settings.rss_limit_bytes
    return None if limit is None else max(float(limit), member.fresh_rss_bytes * _ROOM_TO_GROW)


def too_large(member: Member, settings: WorkerSettings) -> bool:
    """Whether a worker that takes batches has grown over its limit."""
    limit = takes_effect_at(member, settings)
    child = member.child
    return member.state is MemberState.READY and child is not None and limit is not None and child.rss_bytes > limit


def _patience_s(member: Member, settings: WorkerSettings) -> float:
    """An engine may hold the interpreter for a whole batch, so a busy worker may be silent for longer."""
    longest = max((taken.expected_s for taken in member.taken.values()), default=0.0)
    return max(settings.heartbeat_timeout_s, 3.0 * longest)
