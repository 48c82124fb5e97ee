"""What disqualifies a setting, whatever its throughput. Pure: one measurement in, a sentence or nothing out."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from hybrid.planner.measures import Setting
from hybrid.tune.values import Seen

#: The median may not be above this many times that of a single request: the queue would be most of the answer.
EXPLODES: Final = 10.0
#: A larger batch, or a wait, must gain this much: less is past the knee, and costs latency all the same.
WORTH: Final = 1.05


def disqualified(seen: Seen) -> str:
    """Return why a setting is out because of failed requests, or of none that was answered; "" when it is not."""
    if seen.failure:
        return f"cannot run: {seen.failure}"
    if seen.errors_n:
        return f"{seen.errors_n} of {seen.offered_n} requests failed: {seen.first_error}"
    return "" if seen.rps else "no answer within the window; raise --seconds-per-trial"


def exploded(seen: Seen, single_s: float | None) -> str:
    """Return why the median is too long for a usable server; "" when it is not."""
    if seen.p50_s is None or not single_s or seen.p50_s <= EXPLODES * single_s:
        return ""
    return f"p50 {_ms(seen.p50_s)} is {seen.p50_s / single_s:.0f} times that of a single request ({_ms(single_s)})"


def not_worth_it(scores: Mapping[Setting, float]) -> dict[Setting, str]:
    """Return the settings whose larger batch, or whose wait, gains under 5 % over the next simpler one, and why.

    Compared is with the largest simpler one that was itself worth it, so that a chain of small gains is followed.
    """
    reasons: dict[Setting, str] = {}
    kept: dict[Setting, Setting] = {}
    for setting in sorted(scores, key=lambda s: (s.max_wait_ms, s.max_batch)):
        family = replace(setting, max_batch=0, max_wait_ms=0.0)
        simpler = kept.get(family)
        if simpler is None or scores[setting] >= WORTH * scores[simpler]:
            kept[family] = setting
            continue
        gain = 100.0 * (scores[setting] / scores[simpler] - 1.0) if scores[simpler] else 0.0
        what = f"waiting {setting.max_wait_ms:g} ms" if setting.max_wait_ms else f"batch {setting.max_batch}"
        worth = f"gains only {gain:.0f} %" if gain >= 0.5 else "gains nothing"
        reasons[setting] = f"{what} {worth} over batch {simpler.max_batch}"
    return reasons


def _ms(seconds: float) -> str:
    return f"{1000.0 * seconds:.3g} ms"
