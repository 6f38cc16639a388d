"""Small charts as SVG text to be inlined in a page: pure functions of numbers.

Colours come from the page (``--series-1`` to ``--series-4``, ``--quiet``) with fallbacks, text from
``currentColor``. Lines differ in dashes, bars in filling, so that grey is enough to read them. The
view box is 400 wide, so that texts are readable on a telephone as well as on half a screen. Missing
values (None, NaN, infinity; on a logarithmic axis what is not positive) are gaps.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal, NamedTuple

from distrff.utils.axes import Log, Number, Scale, number_text, place_of, scale_of

WIDTH, PLOT_HEIGHT, ROW = 400.0, 190.0, 17.0
CHARACTER = 7.2  # a generous mean width at the font size of 12, so that texts do not touch
_DASHES = ("none", "7 3", "2 3", "8 3 2 3")
_COLORS = tuple(
    f"var(--series-{i}, {fallback})"
    for i, fallback in enumerate(("#0b62a8", "#c2560c", "#2d7d46", "#7a4fa3"), 1)
)
_GRID, _BASE = "stroke:currentColor;stroke-opacity:0.15", "stroke:currentColor;stroke-opacity:0.6"
_RING = "fill:none;stroke:currentColor;stroke-width:1.8"
_OUTLINE = "fill:none;stroke:currentColor;stroke-width:1.2"


class Line(NamedTuple):
    """A curve; `x` and `y` of the same length. An empty label keeps it out of the legend."""

    label: str
    x: Sequence[Number]
    y: Sequence[Number]


class Band(NamedTuple):
    """The area between two curves."""

    label: str
    x: Sequence[Number]
    low: Sequence[Number]
    high: Sequence[Number]


class Mark(NamedTuple):
    """A ring around one point."""

    label: str
    x: Number
    y: Number


class Reference(NamedTuple):
    """A straight line across the plot at a value of one axis."""

    label: str
    axis: Literal["x", "y"]
    value: Number


def line_chart(
    series: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_log: Log = False,
    y_log: Log = False,
    bands: Sequence[Band] = (),
    marks: Sequence[Mark] = (),
    reference_lines: Sequence[Reference] = (),
) -> str:
    """Return a chart of curves as an ``<svg>`` element.

    Parameters
    ----------
    series, bands, marks, reference_lines : sequences of Line, Band, Mark, Reference
    title : str
        For screen readers and as a tooltip; the visible heading is the page's.
    x_label, y_label : str
    x_log, y_log : bool, 2 or 10
        Logarithmic axis; True is 10. The base decides where the ticks are.
    """
    xs = [x for line in series for x in line.x] + [x for band in bands for x in band.x]
    ys = [y for line in series for y in line.y] + [y for band in bands for y in (*band.low, *band.high)]
    extra_x = [mark.x for mark in marks] + [rule.value for rule in reference_lines if rule.axis == "x"]
    extra_y = [mark.y for mark in marks] + [rule.value for rule in reference_lines if rule.axis == "y"]
    x_scale, y_scale = scale_of(xs + extra_x, x_log), scale_of(ys + extra_y, y_log)
    legend, top = _legend(_entries(series, bands, marks, reference_lines), ROW)
    left = 10 + max(_text_width(text) for _, text in y_scale.ticks)
    box = _Box(x_scale, y_scale, left, WIDTH - 12, top + 8, top + 8 + PLOT_HEIGHT)
    body = [
        _text(0, 12, y_label, "start", quiet=True),
        legend,
        *_grid(box),
        _text((box.left + box.right) / 2, box.bottom + 2 * ROW, x_label, "middle", quiet=True),
        *(_area(box, band, index) for index, band in enumerate(bands)),
        *(_rule(box, rule, index) for index, rule in enumerate(reference_lines)),
        *(_curve(box, line, index) for index, line in enumerate(series)),
        *(_ring(*place) for mark in marks if (place := box.at(mark.x, mark.y))),
    ]
    told = [f"{x_label} across, {y_label} upwards.", *map(_in_words, series)]
    told += [f"{label}." for label in [item[0] for item in (*bands, *marks, *reference_lines)] if label]
    return _svg(title, " ".join(told), box.bottom + 2 * ROW + 6, body)


def bar_chart(rows: Sequence[tuple[str, Number, str]], *, title: str) -> str:
    """Return horizontal bars as an ``<svg>`` element; a row is (label, value, value as text)."""
    bars = [(label, [(value, text, _fill(0))]) for label, value, text in rows]
    return _bars(bars, title, "; ".join(f"{label}: {text}" for label, _, text in rows), [])


def bar_pairs(
    rows: Sequence[tuple[str, Number, Number]],
    *,
    title: str,
    names: tuple[str, str] = ("planned", "measured"),
) -> str:
    """Return pairs of horizontal bars, each pair relative to its own first value, as an ``<svg>`` element.

    A row is (label, first, second). Rows that have no ratio (a value is missing, or the first is not
    positive) are left out; without any other row the result is empty.
    """
    ratios = [(label, _ratio(first, second)) for label, first, second in rows]
    known = [(label, ratio) for label, ratio in ratios if ratio is not None]
    bars = [
        (label, [(1.0, "", _OUTLINE), (ratio, f"{number_text(ratio)} ×", _fill(0))]) for label, ratio in known
    ]
    told = "; ".join(
        f"{label}: {names[1]} is {number_text(ratio)} times {names[0]}" for label, ratio in known
    )
    legend = [(_swatch(_OUTLINE), names[0]), (_swatch(_fill(0)), names[1])]
    return _bars(bars, title, told, legend) if known else ""


def escape(text: Any) -> str:
    """Return `text` safe inside HTML and XML; characters that XML forbids become U+FFFD."""
    return html.escape(re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", str(text)))


@dataclass(frozen=True)
class _Box:
    """The plot area: two scales and the edges that their ends are drawn at."""

    x: Scale
    y: Scale
    left: float
    right: float
    top: float
    bottom: float

    def across(self, value: Number) -> float | None:
        share = self.x.share(value)
        return None if share is None else self.left + share * (self.right - self.left)

    def upwards(self, value: Number) -> float | None:
        share = self.y.share(value)
        return None if share is None else self.bottom - share * (self.bottom - self.top)

    def at(self, x: Number, y: Number) -> tuple[float, float] | None:
        place = self.across(x), self.upwards(y)
        return None if place[0] is None or place[1] is None else (place[0], place[1])


def _svg(title: str, told: str, height: float, body: Iterable[str]) -> str:
    inside = "\n".join(filter(None, body))
    return (
        f'<svg role="img" viewBox="0 0 {WIDTH:.0f} {height:.0f}" font-size="12" fill="currentColor">\n'
        f"<title>{escape(title)}</title>\n<desc>{escape(told)}</desc>\n{inside}\n</svg>"
    )


def _fill(index: int, opacity: float = 1.0) -> str:
    return f"fill:{_COLORS[index % 4]};fill-opacity:{opacity:g}"


def _stroke(index: int) -> str:
    color, dashes = _COLORS[index % 4], _DASHES[index % 4]
    return f"fill:none;stroke:{color};stroke-width:2;stroke-linejoin:round;stroke-dasharray:{dashes}"


def _rule_style(index: int) -> str:
    return (
        f"stroke:currentColor;stroke-width:1.4;stroke-opacity:0.75;stroke-dasharray:{_DASHES[1 + index % 3]}"
    )


def _segment(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" style="{style}"/>'


def _rect(x: float, y: float, width: float, height: float, style: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" style="{style}"/>'


def _ring(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" style="{_RING}"/>'


def _swatch(style: str) -> str:
    return _rect(0, -9, 18, 10, style)


def _text_width(text: str) -> float:
    return CHARACTER * len(text)


def _shortened(text: str, width: float) -> str:
    most = int(width / CHARACTER)
    return text if len(text) <= most else text[: most - 1] + "…"


def _text(x: float, y: float, text: str, anchor: str, *, quiet: bool = False) -> str:
    """Return a line of text, shortened and moved so that it stays inside the drawing."""
    text = _shortened(text, WIDTH)
    before = {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * _text_width(text)
    x = min(max(x, before), WIDTH - (_text_width(text) - before))
    style = ' style="fill:var(--quiet, #5b6675)"' if quiet else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(text)}</text>'


def _entries(
    series: Sequence[Line], bands: Sequence[Band], marks: Sequence[Mark], rules: Sequence[Reference]
) -> list[tuple[str, str]]:
    """Return (symbol, label) of everything that has a label."""
    entries = [(_segment(0, -4, 18, -4, _stroke(i)), line.label) for i, line in enumerate(series)]
    entries += [(_swatch(_fill(i, 0.2)), band.label) for i, band in enumerate(bands)]
    entries += [(_ring(9, -4), mark.label) for mark in marks]
    entries += [(_segment(0, -4, 18, -4, _rule_style(i)), rule.label) for i, rule in enumerate(rules)]
    return [entry for entry in entries if entry[1]]


def _legend(entries: Sequence[tuple[str, str]], top: float) -> tuple[str, float]:
    """Return the entries set in rows below `top`, and where the last row ends."""
    parts: list[str] = []
    x, y = math.inf, top
    for symbol, label in entries:
        shown = _shortened(label, WIDTH - 24)
        width = 24 + _text_width(shown)
        if x + width > WIDTH:
            x, y = 0.0, y + ROW
        text = _text(24, 0, shown, "start")
        parts.append(f'<g transform="translate({x:.1f} {y - 4:.1f})">{symbol}{text}</g>')
        x += width + 12
    return "\n".join(parts), y


def _grid(box: _Box) -> list[str]:
    parts, last = [], -math.inf
    for value, text in box.y.ticks:
        y = box.upwards(value) or 0.0
        parts += [
            _segment(box.left, y, box.right, y, _GRID),
            _text(box.left - 6, y + 4, text, "end", quiet=True),
        ]
    for value, text in box.x.ticks:
        x, half = box.across(value) or 0.0, _text_width(text) / 2
        parts.append(_segment(x, box.top, x, box.bottom, _GRID))
        if x - half > last:  # a number that would touch its neighbour is left out
            parts.append(_text(x, box.bottom + ROW, text, "middle", quiet=True))
            last = x + half + 6
    return [*parts, _segment(box.left, box.bottom, box.right, box.bottom, _BASE)]


def _runs(points: Iterable[Any]) -> list[list[Any]]:
    """Cut a sequence at its gaps."""
    runs: list[list[Any]] = [[]]
    for point in points:
        if point is not None:
            runs[-1].append(point)
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _path(points: Iterable[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def _curve(box: _Box, line: Line, index: int) -> str:
    runs = _runs(box.at(x, y) for x, y in zip(line.x, line.y, strict=True))
    parts = [f'<path d="{_path(run)}" style="{_stroke(index)}"/>' for run in runs if len(run) > 1]
    few = sum(map(len, runs)) <= 32  # a short curve shows its points; a point alone has no line to show it
    dots = [point for run in runs if few or len(run) == 1 for point in run]
    parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.4" style="{_fill(index)}"/>' for x, y in dots]
    return "\n".join(parts)


def _area(box: _Box, band: Band, index: int) -> str:
    edges = []
    for x, low, high in zip(band.x, band.low, band.high, strict=True):
        below, above = box.at(x, low), box.at(x, high)
        edges.append(None if below is None or above is None else (below, above))
    style = f"{_fill(index, 0.2)};stroke:{_COLORS[index % 4]};stroke-opacity:0.35"
    outlines = [[low for low, _ in run] + [high for _, high in reversed(run)] for run in _runs(edges)]
    return "\n".join(f'<path d="{_path(outline)} Z" style="{style}"/>' for outline in outlines)


def _rule(box: _Box, rule: Reference, index: int) -> str:
    place = (box.across if rule.axis == "x" else box.upwards)(rule.value)
    if place is None:
        return ""
    ends = (place, box.top, place, box.bottom) if rule.axis == "x" else (box.left, place, box.right, place)
    return _segment(*ends, _rule_style(index))


def _in_words(line: Line) -> str:
    name = line.label or "The line"
    known = [(y, x) for x, y in zip(line.x, line.y, strict=True) if y is not None and math.isfinite(y)]
    if not known:
        return f"{name}: no values."
    known.sort(key=itemgetter(0))
    ends = [f"{number_text(y)} at {number_text(x)}" for y, x in (known[0], known[-1])]
    return f"{name}: {len(known)} points, lowest {ends[0]}, highest {ends[1]}."


def _ratio(first: Number, second: Number) -> float | None:
    a, b = place_of(first), place_of(second)
    return None if a is None or b is None or a <= 0 or b < 0 else min(b / a, 1e300)


def _bars(
    rows: Sequence[tuple[str, Sequence[tuple[Number, str, str]]]],
    title: str,
    told: str,
    entries: Sequence[tuple[str, str]],
) -> str:
    """Rows of a label and below it one bar for each (value, text behind the bar, style)."""
    longest = max([0.0, *(place_of(value) or 0.0 for _, bars in rows for value, _, _ in bars)])
    room = WIDTH - 14 - max((_text_width(text) for _, bars in rows for _, text, _ in bars), default=0.0)
    legend, y = _legend(entries, 0.0)
    parts = [legend]
    for label, bars in rows:
        y += ROW + 4
        parts.append(_text(0, y - 3, label, "start"))
        for value, text, style in bars:
            length = max(1.0, room * (place_of(value) or 0.0) / (longest or 1.0))
            parts += [_rect(1, y + 2, length, 9, style), _text(length + 8, y + 11, text, "start", quiet=True)]
            y += 13
    return _svg(title, told, y + 8, parts)
