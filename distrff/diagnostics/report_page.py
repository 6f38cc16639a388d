"""The report of a fit as one HTML page that needs nothing outside itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from distrff.diagnostics.axes import Number, number_text, place_of
from distrff.diagnostics.page import html_page, section
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
        * ``relevance`` : {"bars": [[column, deviation over width, width as text], ...], "n_columns": int},
          the largest first
        * ``alpha_path`` : {"alphas": [...], "mean": [...], "folds": one list for each fold,
          "chosen": number, "noise_floor": number or null, "criterion": str}
        * ``learning_curve`` : {"n_components": [...], "score": [...], "criterion": str}
        * ``plan`` : {"rows": [[quantity, unit, planned, measured or null], ...]}
        * ``sweeps`` : [[label, seconds], ...] in their order; equal neighbours are added up
    """
    parts = (build(report[key]) for key, build in _SECTIONS.items() if report.get(key))
    return html_page(report["title"], "\n".join(filter(None, parts)))


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
    return section("Score on held-out rows", table, wide=True) if scores["rows"] else ""


def _relevance(relevance: Mapping[str, Any]) -> str:
    bars = relevance["bars"]
    if not bars:
        return ""
    chart = bar_chart([tuple(bar) for bar in bars], title="Deviation of a column over its width")
    left_out = relevance["n_columns"] - len(bars)
    more = f" {left_out} columns of longer widths are not drawn." if left_out else ""
    text = f"<p>The longer a bar, the more its column matters; beside it the column's width.{more}</p>"
    return section("Learned widths", f"{chart}\n{text}")


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
    return section("Error against alpha", chart)


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
    return section("Error against the number of features", chart)


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
    return section("Plan against measured", table + "\n" + bars)


def _sweeps(sweeps: Iterable[Sequence[Any]]) -> str:
    rows, total = [], 0.0
    for label, group in groupby(sweeps, key=lambda sweep: str(sweep[0])):
        seconds = [place_of(sweep[1]) or 0.0 for sweep in group]
        name = label if len(seconds) == 1 else f"{label} ({len(seconds)} times)"
        rows.append((name, sum(seconds), _duration(sum(seconds))))
        total += sum(seconds)
    chart = bar_chart(rows, title="Seconds in each sweep over the rows")
    return section("Time in sweeps over the rows", f"{chart}\n<p>Together {_duration(total)}.</p>")


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "facts": _facts,
    "notes": _notes,
    "scores": _scores,
    "relevance": _relevance,
    "alpha_path": _alpha_path,
    "learning_curve": _learning_curve,
    "plan": _plan,
    "sweeps": _sweeps,
}


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
