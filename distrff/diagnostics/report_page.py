"""The report of a fit as HTML: a page that needs nothing outside itself, or its body for a notebook."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from distrff.display.axes import Number, number_text, place_of
from distrff.display.elements import facts, notes, paragraph, section, table
from distrff.display.page import html_page
from distrff.display.svg import Band, Line, Mark, Reference, bar_chart, bar_pairs, line_chart
from distrff.display.units import human_seconds, quantity_text

_NEAR = 0.5  # relative gap from which on both bounds fit one linear axis
_MOST_COMPONENTS = 20  # as bars


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
        * ``penalty_path`` : {"parameter": str, "values": [...], "mean": [...], "folds": one list for each
          fold, "chosen": number, "noise_floor": number or null, "criterion": str}
        * ``learning_curve`` : {"n_components": [...], "score": [...], "criterion": str}
        * ``certificate`` : {"measure": str, "sweep": [...], "error": [...], "tol": number, and where there
          are bounds "primal": [...], "dual": [...]}
        * ``relevance`` : {"bars": [[column, deviation over width, width as text], ...], "n_columns": int},
          the largest first
        * ``components`` : {"share": [...]}, of the variance, by principal component
        * ``plan`` : {"rows": [[quantity, unit, planned, measured or null], ...]}
        * ``time`` : {"phases": [[name, seconds], ...], "sweeps": [[label, seconds], ...]}, both in their
          order; those of one name are added up
    """
    return html_page(report["title"], report_body(report))


def report_body(report: Mapping[str, Any]) -> str:
    """Return the sections of the page, to be set below a title."""
    parts = (build(report[key]) for key, build in _SECTIONS.items() if report.get(key))
    return "\n".join(filter(None, parts))


def _scores(scores: Mapping[str, Any]) -> str:
    if not scores["rows"]:
        return ""
    return section("Score on held-out rows", table(scores["columns"], scores["rows"]), wide=True)


def _relevance(relevance: Mapping[str, Any]) -> str:
    bars = relevance["bars"]
    if not bars:
        return ""
    chart = bar_chart([tuple(bar) for bar in bars], title="Deviation of a column over its width")
    left_out = relevance["n_columns"] - len(bars)
    more = f" {left_out} columns of longer widths are not drawn." if left_out else ""
    text = f"The longer a bar, the more its column matters; beside it the column's width.{more}"
    return section("Learned widths", f"{chart}\n{paragraph(text)}")


def _penalty_path(path: Mapping[str, Any]) -> str:
    values, mean, folds = path["values"], path["mean"], path.get("folds") or []
    if not values:
        return ""
    known = [
        [score for score in scores if place_of(score) is not None] for scores in zip(*folds, strict=True)
    ]
    low, high = ([pick(scores) if scores else None for scores in known] for pick in (min, max))
    marks, rules = _chosen(path.get("chosen"), values, mean)
    floor = path.get("noise_floor")
    if floor is not None:
        rules.append(Reference(f"noise floor: {number_text(floor)}", "x", floor))
    heading = f"Error against {path['parameter']}"
    chart = line_chart(
        [Line("mean of the folds" if folds else "score", values, mean)],
        title=heading,
        x_label=path["parameter"],
        y_label=path.get("criterion") or "score",
        x_log=10,
        y_log=_spans_decades([*mean, *low, *high]),
        bands=[Band(f"lowest to highest of {len(folds)} folds", values, low, high)] if folds else [],
        marks=marks,
        reference_lines=rules,
    )
    return section(heading, chart)


def _chosen(
    chosen: Number, values: Sequence[float], mean: Sequence[Number]
) -> tuple[list[Mark], list[Reference]]:
    """A ring on the curve where `chosen` is one of its points, else a line across the plot."""
    if chosen is None:
        return [], []
    label = f"chosen: {number_text(chosen)}"
    score = next((m for value, m in zip(values, mean, strict=True) if math.isclose(value, chosen)), None)
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


def _certificate(known: Mapping[str, Any]) -> str:
    """The error from sweep to sweep, and beside it how primal and dual close in on the optimum."""
    sweeps = known.get("sweep")
    if not sweeps:
        return ""
    tol = known.get("tol")
    chart = line_chart(
        [Line("", sweeps, known["error"])],
        title=f"{known['measure']} after each light sweep",
        x_label="light sweep",
        y_label=known["measure"],
        y_log=10,
        reference_lines=[] if tol is None else [Reference(f"tol: {number_text(tol)}", "y", tol)],
    )
    closed = section(f"How the {known['measure']} closed", chart)
    return f"{closed}\n{_bounds(known)}"


def _bounds(known: Mapping[str, Any]) -> str:
    if not known.get("dual"):
        return ""
    columns = zip(*(known[key] for key in ("sweep", "error", "primal", "dual")), strict=True)
    points = list(columns)
    _, _, primal, dual = points[-1]
    told = paragraph(
        f"The optimum lies between {_exact(dual)} and the objective of this machine, {_exact(primal)}; "
        f"of one class against the rest where there are several."
    )
    near = [point for point in points if point[1] is not None and point[1] <= _NEAR]
    if len(near) < 2:
        return section("The optimum", told)
    sweep, _, above, below = (list(column) for column in zip(*near, strict=True))
    chart = line_chart(
        [Line("best objective", sweep, above), Line("best lower bound", sweep, below)],
        title="Objective and lower bound",
        x_label="light sweep",
        y_label="objective",
        bands=[Band("", sweep, below, above)],
    )
    return section("The optimum", f"{chart}\n{told}")


def _exact(value: Number) -> str:
    """Write as many digits as tell two close bounds apart."""
    return "–" if value is None else f"{value:.7g}"


def _components(components: Mapping[str, Any]) -> str:
    rows = [
        (f"component {j}", share, "–" if share is None else f"{share:.1%}")
        for j, share in enumerate(components["share"][:_MOST_COMPONENTS])
    ]
    if not rows:
        return ""
    return section("Variance along the components", bar_chart(rows, title="Share of the variance"))


def _plan(plan: Mapping[str, Any]) -> str:
    rows = plan["rows"]
    if not rows:
        return ""
    told = table(
        ["", "planned", "measured"],
        [
            [name, quantity_text(planned, unit), quantity_text(measured, unit)]
            for name, unit, planned, measured in rows
        ],
    )
    bars = bar_pairs(
        [(name, planned, measured) for name, _, planned, measured in rows], title="Measured over planned"
    )
    return section("Plan against measured", told + "\n" + bars)


def _time(time: Mapping[str, Any]) -> str:
    phases, _, n = _added_up(time.get("phases") or [])
    sweeps, total, n_sweeps = _added_up(time.get("sweeps") or [])
    parts = []
    if n:
        parts.append(bar_chart(phases, title="Seconds in each phase of the fit"))
    if n_sweeps:
        passes = "1 pass" if n_sweeps == 1 else f"{n_sweeps} passes"
        parts.append(paragraph(f"{passes} over the rows, together {human_seconds(total)}:"))
        parts.append(bar_chart(sweeps, title="Seconds in each pass over the rows"))
    return section("Time", "\n".join(parts)) if parts else ""


def _added_up(timed: Iterable[Sequence[Any]]) -> tuple[list[tuple[str, float, str]], float, int]:
    """Return a bar of (label, seconds, seconds as text) for each label; the sum, and how many were timed."""
    by_label: dict[str, list[float]] = {}
    for label, seconds in timed:
        by_label.setdefault(str(label), []).append(place_of(seconds) or 0.0)
    rows = []
    for label, parts in by_label.items():
        name = label if len(parts) == 1 else f"{label} ({len(parts)} times)"
        rows.append((name, sum(parts), human_seconds(sum(parts))))
    return rows, sum(seconds for _, seconds, _ in rows), sum(map(len, by_label.values()))


_SECTIONS: dict[str, Callable[[Any], str]] = {
    "facts": facts,
    "notes": notes,
    "scores": _scores,
    "penalty_path": _penalty_path,
    "learning_curve": _learning_curve,
    "certificate": _certificate,
    "relevance": _relevance,
    "components": _components,
    "plan": _plan,
    "time": _time,
}


def _spans_decades(values: Iterable[Number]) -> bool:
    """Whether a linear axis would press most of the values onto its end."""
    places = [place for value in values if (place := place_of(value)) is not None]
    return bool(places) and min(places) > 0 and max(places) > 10 * min(places)
