"""A line chart as inline SVG: latency over rate, with marks. Pure.

Written by hand, not by a plotting library: one file that needs nothing else is what gets attached to a ticket. Colours
are attributes, not style sheets, so that any renderer shows them.
"""

import math
from collections.abc import Sequence
from html import escape
from typing import Final

from msgspec import Struct

_WIDTH: Final = 860
_HEIGHT: Final = 380
_LEFT: Final = 66
_RIGHT: Final = 24
_TOP: Final = 34
_BOTTOM: Final = 50
_INK: Final = "#1f2933"
_QUIET: Final = "#6b7785"
_GRID: Final = "#e4e8ee"
_FONT: Final = 'font-family="system-ui, sans-serif"'
_TICKS: Final = 7


class Series(Struct, frozen=True):
    """Points (x, y) with rising x, y above 0, and how they are drawn."""

    name: str
    colour: str
    points: tuple[tuple[float, float], ...]


class Mark(Struct, frozen=True):
    """A line across the chart, at an x (`vertical`) or at a y, with its label.

    A vertical one has it low and to its left, or `high` and to its right, so that two beside each other stay readable.
    """

    at: float
    label: str
    colour: str
    vertical: bool = False
    high: bool = False


class _Scale(Struct, frozen=True):
    """Maps values to pixels; the y axis is logarithmic, because latency at and beyond saturation spans decades."""

    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * value / self.x_high

    def y(self, value: float) -> float:
        share = math.log(max(value, self.y_low) / self.y_low) / math.log(self.y_high / self.y_low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * min(1.0, share)


def chart(series: Sequence[Series], marks: Sequence[Mark], x_title: str, y_title: str) -> str:
    """Return an SVG element; "" where there is no point to draw."""
    points = [point for line in series for point in line.points]
    if not points:
        return ""
    levels = [y for _, y in points] + [mark.at for mark in marks if not mark.vertical]
    places = [x for x, _ in points] + [mark.at for mark in marks if mark.vertical]
    scale = _Scale(1.05 * max(places), 0.75 * min(levels), 1.5 * max(levels))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="100%" role="img" '
        f'aria-label="{escape(y_title)} over {escape(x_title)}">',
        *_axes(scale, x_title, y_title),
        *(_mark(mark, scale) for mark in marks),
        *(_line(line, scale) for line in series),
        *_legend(series),
        "</svg>",
    ]
    return "\n".join(parts)


def ticks(high: float) -> list[float]:
    """Return round numbers from 0 to `high`, about seven."""
    raw = high / _TICKS
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if factor * power >= raw)
    return [n * step for n in range(int(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return the 1, 2 and 5 of every decade between both; only the 1 where there would be too many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    digits = (1.0, 2.0, 5.0) if len(decades) <= 4 else (1.0,)
    return [d * 10.0**n for n in decades for d in digits if low <= d * 10.0**n <= high]


def _axes(scale: _Scale, x_title: str, y_title: str) -> list[str]:
    bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
    parts = []
    for value in log_ticks(scale.y_low, scale.y_high):
        y = scale.y(value)
        parts.append(f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="{_GRID}"/>')
        parts.append(_text(_LEFT - 8, y + 4, f"{value:g}", "end", _QUIET))
    for value in ticks(scale.x_high):
        x = scale.x(value)
        parts.append(f'<line x1="{x:.1f}" y1="{bottom}" x2="{x:.1f}" y2="{bottom + 5}" stroke="{_QUIET}"/>')
        parts.append(_text(x, bottom + 20, f"{value:g}", "middle", _QUIET))
    parts.append(f'<line x1="{_LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{_QUIET}"/>')
    parts.append(_text((_LEFT + right) / 2, _HEIGHT - 10, x_title, "middle", _INK))
    parts.append(_text(12, _TOP - 16, y_title, "start", _INK))
    return parts


def _mark(mark: Mark, scale: _Scale) -> str:
    dashes = f'stroke="{mark.colour}" stroke-width="1.5" stroke-dasharray="6 4"'
    if mark.vertical:
        x = scale.x(mark.at)
        line = f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}" {dashes}/>'
        left = mark.at > 0.3 * scale.x_high if not mark.high else mark.at > 0.85 * scale.x_high
        anchor, beside = ("end", x - 6) if left else ("start", x + 6)
        return line + _text(beside, _TOP + 14 if mark.high else _HEIGHT - _BOTTOM - 8, mark.label, anchor, mark.colour)
    y = scale.y(mark.at)
    line = f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH - _RIGHT}" y2="{y:.1f}" {dashes}/>'
    return line + _text(_LEFT + 6, y - 6, mark.label, "start", mark.colour)


def _line(series: Series, scale: _Scale) -> str:
    places = [(scale.x(x), scale.y(y)) for x, y in series.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = "".join(
        f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3.5" fill="{series.colour}">'
        f"<title>{escape(series.name)}: {y:.4g} at {x:.4g}</title></circle>"
        for (px, py), (x, y) in zip(places, series.points, strict=True)
    )
    return f'<polyline points="{path}" fill="none" stroke="{series.colour}" stroke-width="2.2"/>{dots}'


def _legend(series: Sequence[Series]) -> list[str]:
    parts = []
    for at, line in enumerate(series):
        x = _WIDTH - _RIGHT - 90 * (len(series) - at)
        parts.append(f'<line x1="{x}" y1="14" x2="{x + 22}" y2="14" stroke="{line.colour}" stroke-width="3"/>')
        parts.append(_text(x + 28, 18, line.name, "start", _INK))
    return parts


def _text(x: float, y: float, text: str, anchor: str, colour: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="13" {_FONT}>'
        f"{escape(text)}</text>"
    )
