"""The report of a fit as one HTML page that needs nothing outside itself.

Charts are inline SVG, styles inline CSS; the page follows the reader's light or dark theme, prints, and
fits a telephone. It is well-formed XML too, so that any parser can check it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from distrff.diagnostics.axes import Number, number_text, place_of
from distrff.diagnostics.svg import Band, Line, Mark, Reference, bar_chart, bar_pairs, escape, line_chart
from distrff.sweeps.units import human_bytes


def report_page(report: Mapping[str, Any]) -> str:
    """Return the page as text; write it as UTF-8.

    Parameters
    ----------
    report : mapping
        Strict JSON. Only ``title`` is needed; a section whose key is absent, null or empty is left out.

        * ``title`` : str
        * ``facts`` : [[name, value as text], ...], what was fitted on what
        * ``notes`` : [str, ...], sentences on choices that were made
        * ``scores`` : {"columns": [...], "rows": [[...], ...]}, the model beside its rivals
        * ``alpha_path`` : {"alphas": [...], "mean": [...], "folds": one list for each fold,
          "chosen": number, "noise_floor": number or null, "criterion": str}
        * ``learning_curve`` : {"n_components": [...], "score": [...], "criterion": str}
        * ``plan`` : {"rows": [[quantity, unit, planned, measured or null], ...]}
        * ``sweeps`` : [[label, seconds], ...] in their order; equal neighbours are added up
    """
    title = escape(report["title"])
    parts = [build(report[key]) for key, build in _SECTIONS.items() if report.get(key)]
    body = "\n".join(filter(None, parts))
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<title>{title}</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        '<meta name="color-scheme" content="light dark"/>\n<link rel="icon" href="data:,"/>\n'
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{title}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def quantity_text(value: Number, unit: str) -> str:
    """Write a quantity for reading: bytes and seconds in fitting units, others with three digits."""
    if value is None or place_of(value) is None:
        return "–"
    if unit == "bytes":
        return human_bytes(value)
    if unit == "s":
        return _duration(value)
    return f"{number_text(value)} {unit}".strip()


def _duration(seconds: float) -> str:
    if seconds == 0:
        return "0 s"
    for limit, factor, unit in ((1e-3, 1e6, "µs"), (1, 1e3, "ms"), (119.5, 1, "s")):
        if seconds < limit:
            return f"{number_text(float(seconds) * factor)} {unit}"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{minutes} min {rest} s" if not hours else f"{hours:,} h {minutes} min"


def _facts(facts: Iterable[Sequence[Any]]) -> str:
    pairs = "\n".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f"<dl>\n{pairs}\n</dl>"


def _notes(sentences: Iterable[str]) -> str:
    items = "\n".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f'<aside aria-label="Notes">\n<strong>Notes</strong>\n<ul>\n{items}\n</ul>\n</aside>'


def _scores(scores: Mapping[str, Any]) -> str:
    table = _table(scores["columns"], scores["rows"])
    return _section("Score on held-out rows", table, wide=True) if scores["rows"] else ""


def _alpha_path(path: Mapping[str, Any]) -> str:
    alphas, mean, folds = path["alphas"], path["mean"], path.get("folds") or []
    if not alphas:
        return ""
    known = [
        [score for score in scores if place_of(score) is not None] for scores in zip(*folds, strict=True)
    ]
    low, high = ([pick(scores) if scores else None for scores in known] for pick in (min, max))
    marks, rules = _chosen(path.get("chosen"), alphas, mean)
    floor = path.get("noise_floor")
    if floor is not None:
        rules.append(Reference(f"noise floor: {number_text(floor)}", "x", floor))
    chart = line_chart(
        [Line("mean of the folds" if folds else "score", alphas, mean)],
        title="Error against alpha",
        x_label="alpha",
        y_label=path.get("criterion") or "score",
        x_log=10,
        y_log=_spans_decades([*mean, *low, *high]),
        bands=[Band(f"lowest to highest of {len(folds)} folds", alphas, low, high)] if folds else [],
        marks=marks,
        reference_lines=rules,
    )
    return _section("Error against alpha", chart)


def _chosen(
    chosen: Number, alphas: Sequence[float], mean: Sequence[Number]
) -> tuple[list[Mark], list[Reference]]:
    """A ring on the curve where `chosen` is one of its points, else a line across the plot."""
    if chosen is None:
        return [], []
    label = f"chosen: {number_text(chosen)}"
    score = next((m for a, m in zip(alphas, mean, strict=True) if math.isclose(a, chosen)), None)
    if place_of(score) is None:
        return [], [Reference(label, "x", chosen)]
    return [Mark(label, chosen, score)], []


def _learning_curve(curve: Mapping[str, Any]) -> str:
    if not curve["n_components"]:
        return ""
    chart = line_chart(
        [Line("", curve["n_components"], curve["score"])],
        title="Error against the number of features",
        x_label="number of features",
        y_label=curve.get("criterion") or "score",
        x_log=2,
        y_log=_spans_decades(curve["score"]),
    )
    return _section("Error against the number of features", chart)


def _plan(plan: Mapping[str, Any]) -> str:
    rows = plan["rows"]
    if not rows:
        return ""
    table = _table(
        ["", "planned", "measured"],
        [
            [name, quantity_text(planned, unit), quantity_text(measured, unit)]
            for name, unit, planned, measured in rows
        ],
    )
    bars = bar_pairs(
        [(name, planned, measured) for name, _, planned, measured in rows], title="Measured over planned"
    )
    return _section("Plan against measured", table + "\n" + bars)


def _sweeps(sweeps: Iterable[Sequence[Any]]) -> str:
    rows, total = [], 0.0
    for label, group in groupby(sweeps, key=lambda sweep: str(sweep[0])):
        seconds = [place_of(sweep[1]) or 0.0 for sweep in group]
        name = label if len(seconds) == 1 else f"{label} ({len(seconds)} times)"
        rows.append((name, sum(seconds), _duration(sum(seconds))))
        total += sum(seconds)
    chart = bar_chart(rows, title="Seconds in each sweep over the rows")
    return _section("Time in sweeps over the rows", f"{chart}\n<p>Together {_duration(total)}.</p>")


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "facts": _facts,
    "notes": _notes,
    "scores": _scores,
    "alpha_path": _alpha_path,
    "learning_curve": _learning_curve,
    "plan": _plan,
    "sweeps": _sweeps,
}


def _section(heading: str, content: str, *, wide: bool = False) -> str:
    name = ' class="wide"' if wide else ""
    return f"<section{name}>\n<h2>{escape(heading)}</h2>\n{content}\n</section>"


def _table(columns: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table whose first column names the rows; only the table scrolls when it is too wide."""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    lines = []
    for first, *rest in rows:
        cells = "".join(f"<td>{_cell(value)}</td>" for value in rest)
        lines.append(f'<tr><th scope="row">{_cell(first)}</th>{cells}</tr>')
    body = "\n".join(lines)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f'<div class="table">\n{table}\n</div>'


def _cell(value: Any) -> str:
    is_number = value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))
    return escape(number_text(value) if is_number else value)


def _spans_decades(values: Iterable[Number]) -> bool:
    """Whether a linear axis would press most of the values onto its end."""
    places = [place for value in values if (place := place_of(value)) is not None]
    return bool(places) and min(places) > 0 and max(places) > 10 * min(places)


_STYLE = """
:root { color-scheme: light dark; --paper: #fcfcfa; --card: #ffffff; --ink: #1b2330; --quiet: #5a6472;
  --edge: #dcdfe4; --alert: #fff4dc; --alert-edge: #b87a00;
  --series-1: #0b62a8; --series-2: #c2560c; --series-3: #2d7d46; --series-4: #7a4fa3; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --card: #1b212a; --ink: #e8ebef;
  --quiet: #a3adba; --edge: #333c48; --alert: #33290f; --alert-edge: #d9a23b;
  --series-1: #6cb6f5; --series-2: #f2a05e; --series-3: #79c992; --series-4: #c3a1e6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.45;
  font: 1rem/1.45 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  -webkit-text-size-adjust: 100%; }
main { max-width: 64rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); align-items: start; }
h1, dl, aside, .wide { grid-column: 1 / -1; }
h1 { margin: 0.25rem 0 0; font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 0 0 0.75rem; font-size: 1.05rem; }
section, dl { min-width: 0; margin: 0; padding: 1rem; background: var(--card);
  border: 1px solid var(--edge); border-radius: 0.5rem; }
dl { display: grid; gap: 0.75rem 1.5rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 11rem), 1fr)); }
dt { color: var(--quiet); font-size: 0.85rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
aside { padding: 0.75rem 1rem; background: var(--alert); border-left: 0.3rem solid var(--alert-edge);
  border-radius: 0.25rem; overflow-wrap: anywhere; }
ul { margin: 0.25rem 0 0; padding-left: 1.2rem; }
p { margin: 0.5rem 0 0; color: var(--quiet); font-size: 0.9rem; }
svg { display: block; width: 100%; max-width: 34rem; height: auto; font-family: inherit;
  font-variant-numeric: tabular-nums; }
.table { overflow-x: auto; }
.table + svg { margin-top: 0.75rem; }
table { width: 100%; border-collapse: collapse; font-size: 0.95rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.35rem 0 0.35rem 0.75rem; border-bottom: 1px solid var(--edge); text-align: right;
  vertical-align: baseline; }
td { white-space: nowrap; }
th:first-child { padding-left: 0; text-align: left; font-weight: 500; }
thead th { color: var(--quiet); font-weight: 500; font-size: 0.85rem; }
tbody tr:last-child > * { border-bottom: 0; }
@media (max-width: 30rem) { main { padding: 0.75rem 0.5rem 2rem; gap: 0.5rem; }
  section, dl { padding: 0.75rem; } svg { font-size: 13px; }
  dl { gap: 0.5rem 1rem; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); } }
@media print { section, dl, aside { break-inside: avoid; } }
"""
