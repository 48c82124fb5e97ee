"""Figures of a measured plan in words. Pure; part of `measured`."""

from hybrid.planner.guess import ENGINE_NAMES
from hybrid.planner.measures import Setting
from hybrid.planner.ranking import Rated
from hybrid.planner.search import Choice


def within(choice: Choice) -> str:
    """The objective, as part of a sentence; nothing where the aim is throughput."""
    return "" if choice.known.question.objective == "throughput" else f" within a p99 of {ms(choice.known.slo_s)}"


def shape_of(setting: Setting) -> str:
    """Workers and threads."""
    workers = "1 worker" if setting.instances == 1 else f"{setting.instances} workers"
    return f"{workers} x {setting.threads} thread{'' if setting.threads == 1 else 's'}"


def all_busy(setting: Setting) -> str:
    """What a batch time of several workers is to be read with."""
    return " with all workers busy" if setting.instances > 1 else ""


def full_batch(one: Rated) -> str:
    """The largest batch of a setting."""
    rows = one.setting.max_batch
    return "one row" if rows == 1 else f"a full batch of {rows}"


def ratio(best: Rated, other: Rated) -> str:
    """How often the goodput of the other one fits into that of the best."""
    times = best.rps / max(other.rps, 1e-12)
    return f"{times:.2f}x" if times < 100 else "over 100x"


def rates(best: Rated, other: Rated) -> str:
    """Both goodputs."""
    return f"{best.rps:.0f} against {other.rps:.0f} rows/s"


def engine_title(name: str) -> str:
    """What users call an engine."""
    return ENGINE_NAMES.get(name, name)


def ms(seconds: float) -> str:
    """A time of any length in three digits; seconds from one on."""
    return f"{seconds * 1000.0:.3g} ms" if seconds < 1 else f"{seconds:.2f} s"
