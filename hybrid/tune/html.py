"""The report of a search: one HTML file that needs nothing else. Pure: values in, text out."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from msgspec import Struct

from hybrid.planner.measures import Setting
from hybrid.tune.chart import Mark, Series, chart
from hybrid.tune.report import default_text, knee_text, measured_n, rejections, setting_text, where
from hybrid.tune.values import Found, Outcome, Trial

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; background: #f6f7f9; margin: 0; }
main { max-width: 1060px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 0 0 10px; }
section { background: #fff; border: 1px solid #e4e8ee; border-radius: 8px; padding: 18px 20px; margin-top: 18px; }
.quiet { color: #6b7785; } p { margin: 6px 0; }
.cards { display: flex; flex-wrap: wrap; gap: 12px; margin-top: 18px; }
.card { flex: 1 1 140px; background: #fff; border: 1px solid #e4e8ee; border-radius: 8px; padding: 12px 16px; }
.card b { display: block; font-size: 20px; } .card span { color: #6b7785; font-size: 13px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; }
th { text-align: left; color: #6b7785; font-weight: 600; border-bottom: 2px solid #e4e8ee; padding: 4px 8px; }
td { border-bottom: 1px solid #eef1f4; padding: 4px 8px; vertical-align: top; }
td.w { white-space: nowrap; }
td.bar { min-width: 90px; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar i { display: block; height: 4px; border-radius: 2px; background: #9db7e8; margin-top: 2px; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.best td { background: #eef7f1; } tr.out td { color: #8a5a00; } tr.fail td { color: #a3262a; }
code { font: 13px ui-monospace, monospace; background: #f0f2f5; padding: 2px 5px; border-radius: 4px; }
"""
_P50, _P99, _SLO, _KNEE, _RATE = "#5b8def", "#1b3a78", "#c0392b", "#b7791f", "#2f855a"


class Context(Struct, frozen=True):
    """What stands beside the numbers: the command, when, the machine as (what, value), how to use the result."""

    command: str
    when: str
    machine: tuple[tuple[str, str], ...]
    use: tuple[str, ...] = ()


def report_html(outcome: Outcome, context: Context) -> str:
    """Return the whole file."""
    found = outcome.found
    name = escape(str(outcome.plan["model"]))
    body = [
        f'<h1>hybrid tune: {name}</h1><p class="quiet">{escape(context.when)} &middot; '
        f"<code>{escape(context.command)}</code></p>",
        _cards(outcome),
        _section("Latency over rate", _curve(found)),
        _section("How to use it", "".join(f"<p><code>{escape(line)}</code></p>" for line in context.use)),
        _section("Plan", _plan(outcome)),
        _section("Settings that were tried, and why they fell out", _settings(found)),
        _section("All trials", _trials(found)),
        _section("Machine", _pairs(context.machine)),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>hybrid tune: {name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><main>\n{''.join(body)}\n</main></body></html>\n"
    )


def _cards(outcome: Outcome) -> str:
    found = outcome.found
    slo = "" if found.slo_s is None else f" within {_ms(found.slo_s)} ms"
    sure = "99 % confidence" if found.certain else "not certain"
    cards = [
        (setting_text(found.setting, with_engine=False), found.setting.engine),
        (f"{found.rps:.4g}/s", f"requests{slo}, {sure}" if found.slo_s is not None else "requests, saturated"),
        (f"{_ms(found.p99_s)} ms", "p99 at that rate"),
    ]
    if found.gain_over_default is not None and found.default is not None:
        cards.append((f"{found.gain_over_default:.2f}x", f"the requests/s of {default_text(found.default)}"))
    cards.append((f"{measured_n(found)} of {found.space_n}", f"settings tested, in {outcome.took_s:.0f} s"))
    inside = "".join(
        f'<div class="card"><b>{escape(value)}</b><span>{escape(text)}</span></div>' for value, text in cards
    )
    return f'<div class="cards">{inside}</div>'


def _curve(found: Found) -> str:
    trials = found.curve.trials
    lines = [
        Series(name, colour, tuple((t.ask.load.rate_rps, 1000.0 * value) for t in trials if (value := read(t))))
        for name, colour, read in (("p50", _P50, _p50), ("p99", _P99, _p99))
    ]
    marks = [Mark(found.rps, f"best {found.rps:.4g}/s", _RATE, vertical=True)]
    if found.slo_s is not None:
        marks.append(Mark(1000.0 * found.slo_s, f"objective p99 {_ms(found.slo_s)} ms", _SLO))
    if found.curve.knee_rps is not None:
        label = f"knee {found.curve.knee_rps:.4g}/s"
        marks.append(Mark(found.curve.knee_rps, label, _KNEE, vertical=True, high=True))
    drawn = chart(lines, marks, "requests per second, Poisson", "latency in ms, from the intended send time")
    sentences = (text[:1].upper() + text[1:] for text in (knee_text(found), *found.notes))
    notes = "".join(f'<p class="quiet">{escape(text)}.</p>' for text in sentences)
    return (drawn or '<p class="quiet">No time was left to measure the curve.</p>') + notes


def _plan(outcome: Outcome) -> str:
    plan = outcome.plan
    reasons = plan.get("reasons", {})
    rows = [
        (key, _value(value), str(reasons.get(key, "")))
        for key, value in plan.items()
        if key in reasons and any(value if isinstance(value, list) else [value != ""])
    ]
    return _table((("key", ""), ("value", ""), ("why", "")), [("", row) for row in rows])


def _settings(found: Found) -> str:
    """One line per setting: what it got in each round, with bars to compare them by, and why it is not the best."""
    scores: dict[Setting, dict[int, float]] = {}
    for trial in found.trials:
        if trial.ask.round:
            scores.setdefault(trial.ask.setting, {})[trial.ask.round] = trial.score or 0.0
    numbers = sorted({number for by_round in scores.values() for number in by_round})
    highest = {n: max(by_round.get(n, 0.0) for by_round in scores.values()) for n in numbers}
    why = {setting: f"{place}: {text}" for setting, place, text in rejections(found.trials)}
    why[found.setting] = "the best"
    order = sorted(scores, key=lambda s: (-max(scores[s]), s != found.setting, -scores[s][max(scores[s])]))
    lines = []
    for setting in order:
        bars = "".join(f'<td class="bar">{_bar(scores[setting].get(n), highest[n])}</td>' for n in numbers)
        kind = "best" if setting == found.setting else ""
        lines.append(
            f'<tr class="{kind}"><td>{escape(setting_text(setting))}</td>{bars}'
            f"<td>{escape(why.get(setting, ''))}</td></tr>"
        )
    head = "".join(f"<th>round {n}, requests/s</th>" for n in numbers)
    return f'<div class="scroll"><table><tr><th>setting</th>{head}<th></th></tr>{"".join(lines)}</table></div>'


def _bar(score: float | None, highest: float) -> str:
    if score is None:
        return ""
    return f'{score:.4g}<i style="width:{100.0 * score / highest if highest else 0.0:.0f}%"></i>'


def _trials(found: Found) -> str:
    engines = len({trial.ask.setting.engine for trial in found.trials})
    numbers = ("load", "s", "req/s", "p50 ms", "p99 ms", "late", "errors", "batch")
    columns = [
        ("phase", "w"),
        ("setting", "" if engines > 1 else "w"),
        *((name, "n") for name in numbers),
        ("verdict", ""),
    ]
    key = '<p class="quiet">Green: the best setting. Amber: one that fell out there. Red: it failed, or was late.</p>'
    return key + _table(columns, [(_kind(trial, found), _cells(trial, engines > 1)) for trial in found.trials])


def _cells(trial: Trial, with_engine: bool) -> tuple[str, ...]:
    ask, seen = trial.ask, trial.seen
    crowd = f"{ask.load.clients} client{'s' if ask.load.clients > 1 else ''}"
    load = f"{ask.load.rate_rps:.4g}/s" if ask.load.rate_rps else crowd
    load += f", {ask.load.rows} rows" if ask.load.rows > 1 else ""
    void = " (void)" if seen.void else ""
    stopped = " (stopped early)" if seen.stopped else ""
    return (
        where(trial),
        setting_text(ask.setting, with_engine),
        load,
        f"{ask.load.seconds:.2g}",
        f"{seen.rps:.4g}",
        _ms(seen.p50_s),
        _ms(seen.p99_s),
        f"{seen.late_n}/{seen.offered_n}" if ask.load.slo_s is not None else "",
        str(seen.errors_n or ""),
        "" if seen.mean_batch is None else f"{seen.mean_batch:.1f}",
        (trial.verdict if trial.verdict != "compared" else "") + void + stopped,
    )


def _kind(trial: Trial, found: Found) -> str:
    if trial.verdict.startswith(("fail", "late")):
        return "fail"
    if trial.ask.setting == found.setting:
        return "best"
    return "out" if trial.rejected else ""


def _table(columns: Sequence[tuple[str, str]], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """A table; columns are (heading, class), rows are (class, cells)."""
    head = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in columns)
    lines = []
    for row_kind, cells in rows:
        inside = "".join(
            f'<td class="{kind}">{escape(cell)}</td>' for cell, (_, kind) in zip(cells, columns, strict=True)
        )
        lines.append(f'<tr class="{row_kind}">{inside}</tr>')
    return f'<div class="scroll"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _pairs(pairs: Sequence[tuple[str, str]]) -> str:
    return _table((("", ""), ("", "")), [("", pair) for pair in pairs])


def _section(title: str, body: str) -> str:
    return f"\n<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _p50(trial: Trial) -> float | None:
    return trial.seen.p50_s


def _p99(trial: Trial) -> float | None:
    return trial.seen.p99_s


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000.0 * seconds:.3g}"
