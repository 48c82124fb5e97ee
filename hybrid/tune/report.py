"""What a search found as JSON with fixed keys, and in words. Pure: the same outcome gives the same text."""

from collections.abc import Iterator, Sequence
from typing import Any

from hybrid.planner.measures import Setting
from hybrid.planner.types import PlanOverrides
from hybrid.tune.values import Curve, Found, Outcome, Trial


def tune_json(outcome: Outcome) -> dict[str, Any]:
    """Return the outcome with the fixed keys of `hybrid tune --json`, and some more; null is not known."""
    found = outcome.found
    return {
        "best": outcome.plan
        | {
            "rps": round(found.rps, 3),
            "p99_ms": _ms(found.p99_s),
            "slo_p99_ms": _ms(found.slo_s),
            "certain": found.certain,
            "gain_over_default": _rounded(found.gain_over_default),
            "default": None if found.default is None else setting_text(found.default),
        },
        "trials": [_trial_json(trial) for trial in found.trials],
        "knee": _knee_json(found.curve),
        "curve": [_point_json(trial) for trial in found.curve.trials],
        "space": found.space_n,
        "measured": measured_n(found),
        "single_p50_ms": _ms(found.single_s),
        "seconds": round(outcome.took_s, 1),
        "resumed_trials": outcome.resumed_n,
        "notes": list(found.notes),
    }


def measured_n(found: Found) -> int:
    """Return how many settings of the space had a load test; probes are none."""
    return len({trial.ask.setting for trial in found.trials if trial.ask.stage != "probe"})


def overrides_of(setting: Setting) -> PlanOverrides:
    """Return the numbers that a profile fixes so that a server runs by this setting."""
    return PlanOverrides(
        engine=None if setting.engine == "simulated" else setting.engine,  # type: ignore[arg-type]  # checked at run time
        instances=setting.instances,
        threads_per_instance=setting.threads,
        max_batch=setting.max_batch,
        max_wait_ms=setting.max_wait_ms,
        early_trigger=setting.max_batch,
    )


def setting_text(setting: Setting, with_engine: bool = True) -> str:
    """Return a setting in words: `onnxruntime, 2 x 1 thread, batch 8`."""
    threads = f"{setting.threads} thread{'s' if setting.threads > 1 else ''}"
    wait = f", wait {setting.max_wait_ms:g} ms" if setting.max_wait_ms else ""
    text = f"{setting.instances} x {threads}, batch {setting.max_batch}{wait}"
    return f"{setting.engine}, {text}" if with_engine else text


def default_text(default: Setting) -> str:
    """Return what the result is compared with, and how, in words."""
    return (
        f"the framework default ({setting_text(default)}: the engine of first choice, one worker on all threads), "
        "under the same clients in the first round"
    )


def why(outcome: Outcome) -> str:
    """Return where the numbers come from, for a profile."""
    found = outcome.found
    held = "" if found.slo_s is None else f" within p99 {_ms(found.slo_s):g} ms"
    return (
        f"hybrid tune: {outcome.plan['model']} serves {found.rps:.4g} requests/s{held}\n"
        f"{measured_n(found)} of {found.space_n} settings had a load test, in {outcome.took_s:.0f} s."
    )


def sentences(outcome: Outcome) -> Iterator[str]:
    """Yield what was found, a sentence each."""
    found = outcome.found
    yield f"{outcome.plan['model']}: {setting_text(found.setting)}"
    if found.slo_s is not None:
        sure = "with 99 % confidence" if found.certain else "by the share of late requests; too few for more certainty"
        yield (
            f"goodput {found.rps:.4g} requests/s: the largest rate that held p99 <= {_ms(found.slo_s):g} ms "
            f"(there {_text_ms(found.p99_s)}; {sure})"
        )
    else:
        yield f"throughput {found.rps:.4g} requests/s with saturated clients (p99 {_text_ms(found.p99_s)})"
    if found.gain_over_default is not None and found.default is not None:
        yield f"{found.gain_over_default:.2f}x the requests/s of {default_text(found.default)}"
    yield knee_text(found)
    yield f"{measured_n(found)} of {found.space_n} settings had a load test, in {outcome.took_s:.0f} s"
    if outcome.resumed_n:
        yield f"{outcome.resumed_n} trials were taken from an earlier run"
    yield from found.notes


def knee_text(found: Found) -> str:
    """Return where the curve bends, in words."""
    curve = found.curve
    if curve.knee_rps is None:
        return "the latency curve has no knee in the range that was measured"
    if not curve.sharp:
        return f"the latency curve has no sharp knee; Kneedle puts it at {curve.knee_rps:.4g} requests/s"
    check = "Kneedle finds none" if curve.cross_check_rps is None else f"Kneedle says {curve.cross_check_rps:.4g}"
    return f"knee of the latency curve at {curve.knee_rps:.4g} requests/s ({check}): plan for less than that"


def rejections(trials: Sequence[Trial]) -> list[tuple[Setting, str, str]]:
    """Return the settings that fell out: where and why, in the order in which they did; each with its last reason."""
    reasons = {t.ask.setting: (where(t), t.rejected) for t in trials if t.rejected and t.ask.stage != "curve"}
    return [(setting, place, text) for setting, (place, text) in reasons.items()]


def where(trial: Trial) -> str:
    """Return the phase of a trial in a word or two."""
    return f"round {trial.ask.round}" if trial.ask.round else trial.ask.stage


def _trial_json(trial: Trial) -> dict[str, Any]:
    ask, seen = trial.ask, trial.seen
    return {
        "stage": ask.stage,
        "round": ask.round or None,
        "engine": ask.setting.engine,
        "instances": ask.setting.instances,
        "threads_per_instance": ask.setting.threads,
        "max_batch": ask.setting.max_batch,
        "max_wait_ms": ask.setting.max_wait_ms,
        "clients": ask.load.clients or None,
        "offered_rps": _rounded(ask.load.rate_rps) or None,
        "rows": ask.load.rows,
        "seconds": round(ask.load.seconds, 3),
        "requests": seen.offered_n,
        "rps": round(seen.rps, 3),
        "p50_ms": _ms(seen.p50_s),
        "p95_ms": _ms(seen.p95_s),
        "p99_ms": _ms(seen.p99_s),
        "late": seen.late_n,
        "errors": seen.errors_n,
        "mean_batch": _rounded(seen.mean_batch),
        "score": _rounded(trial.score),
        "verdict": trial.verdict,
        "rejected": trial.rejected or None,
        "stopped": seen.stopped,
        "void": seen.void,
        "lag_p99_ms": _ms(seen.lag_p99_s),
    }


def _knee_json(curve: Curve) -> dict[str, Any]:
    return {
        "rps": _rounded(curve.knee_rps),
        "p99_ms": _ms(curve.knee_p99_s),
        "kneedle_rps": _rounded(curve.cross_check_rps),
        "sharp": curve.sharp,
    }


def _point_json(trial: Trial) -> dict[str, Any]:
    seen = trial.seen
    return {
        "offered_rps": _rounded(trial.ask.load.rate_rps),
        "rps": round(seen.rps, 3),
        "p50_ms": _ms(seen.p50_s),
        "p95_ms": _ms(seen.p95_s),
        "p99_ms": _ms(seen.p99_s),
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000.0, 3)


def _text_ms(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{1000.0 * seconds:.3g} ms"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
