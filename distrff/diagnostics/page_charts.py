"""The charts of the report page: the curves of the plots as <svg> elements in the colours of the page."""

from __future__ import annotations

import io
import math
import re
import threading
from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import numpy as np

from distrff.diagnostics import error_plots, plots
from distrff.diagnostics.plots import COLORS, NEAR, known_numbers
from distrff.utils.html import Chart
from distrff.utils.text import column_text, number_text

_PAGE_STYLE = {
    "figure.figsize": (400 / 72, 250 / 72),  # in points, so that text is readable on a telephone
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text
    "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],  # wider than the fonts of the page, so that labels do not touch
    "axes.grid": True,
    "grid.color": "black",
    "grid.alpha": 0.15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_PAGE_COLORS = {color: f"var(--series-{i})" for i, color in enumerate(COLORS, 1)}
_PAGE_COLORS["#000000"] = "currentColor"
_DRAWING = threading.Lock()  # matplotlib's style is global while it is in use


def page_charts(report: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of a report, by the heading of their section."""
    drawn: list[tuple[str, Callable[[Any, Mapping[str, Any]], Any]]] = []
    if report.get("alphas") or report.get("Cs"):
        drawn.append((f"Error against {'alpha' if report.get('alphas') else 'C'}", plots.draw_penalty_path))
    if report.get("learning_curve"):
        drawn.append(("Error against the number of features", plots.draw_learning_curve))
    known = report.get("history") or {}
    if known.get("sweep"):
        drawn.append((f"How the {known['measure']} closed", plots.draw_certificate))
    if known.get("dual") and np.count_nonzero(known_numbers(known["error"]) <= NEAR) > 1:
        drawn.append(("The optimum", plots.draw_bounds))
    return {heading: _chart(heading, draw, report) for heading, draw in drawn}


def error_charts(evaluation: Mapping[str, Any]) -> dict[str, Chart]:
    """Return the charts of an evaluation, by the heading of their section."""
    drawn: list[tuple[str, Callable[[Any, Mapping[str, Any]], Any], Mapping[str, Any]]] = []
    of_targets = [one for one in evaluation.get("targets", ()) if one.get("bins")]
    for target in of_targets:
        of = f" of {target['target']}" if len(of_targets) > 1 else ""
        drawn += [
            (f"Predicted against actual{of}", error_plots.draw_predicted_against_actual, target),
            (f"Residuals against prediction{of}", error_plots.draw_residuals, target),
        ]
    for key, heading, draw in (
        ("confusion", "Which classes are taken for which", error_plots.draw_confusion),
        ("roc", "ROC curve", error_plots.draw_roc),
        ("precision_recall", "Precision against recall", error_plots.draw_precision_recall),
        ("reliability", "Probabilities against frequencies", error_plots.draw_reliability),
    ):
        if evaluation.get(key):
            drawn.append((heading, draw, evaluation))
    return {heading: _chart(heading, draw, data) for heading, draw, data in drawn}


def dependence_charts(dependence: Mapping[str, Any]) -> dict[str, Chart]:
    """Return a chart of each curve of a partial dependence, by the heading of its section."""
    charts = {}
    for curve in dependence["curves"]:
        heading = f"Mean {dependence['result']} against {column_text(curve['column'])}"
        charts[heading] = _chart(heading, plots.draw_partial_dependence, {**dependence, "curves": [curve]})
    return charts


def _chart(title: str, draw: Callable[[Any, Mapping[str, Any]], Any], report: Mapping[str, Any]) -> Chart:
    """Return the <svg> element, with a title and a description for screen readers."""
    from matplotlib import style
    from matplotlib.figure import Figure

    file = io.StringIO()
    with _DRAWING, style.context(["default", _PAGE_STYLE | {"svg.hashsalt": title}]):
        figure = Figure()
        ax = draw(figure.add_subplot(), report)
        if ax.get_legend() is not None:
            ax.get_legend().remove()
            n_labels = len(ax.get_legend_handles_labels()[0])
            figure.legend(loc="outside upper left", ncols=1 if n_labels < 4 else 2)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return Chart(_inlined(file.getvalue(), title, _described(ax)))


def _inlined(svg: str, title: str, description: str) -> str:
    """Return matplotlib's document as an element of a page.

    The head is removed, since its style would apply to the whole page. Groups lose their ids, which several
    charts would share; ids that are referred to are unique by the hash salt.
    """
    view, body = re.findall(r'viewBox="([^"]*)".*?(<g id="figure_1">.*)</svg>', svg, re.DOTALL)[0]
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href", "href")
    body = re.sub(r"\s+", " ", body)
    body = re.sub("|".join(_PAGE_COLORS), lambda color: _PAGE_COLORS[color[0]], body)
    return (
        f'<svg role="img" viewBox="{view}">\n<title>{escape(title)}</title>\n'
        f"<desc>{escape(description)}</desc>\n{body}</svg>"
    )


def _described(ax: Any) -> str:
    """Return a description of a chart: each curve by its lowest and highest point, all else by its label."""
    sentences = [f"{ax.get_xlabel()} across, {ax.get_ylabel()} upwards."]
    for drawn, label in zip(*ax.get_legend_handles_labels(), strict=True):
        points = drawn.get_xydata() if drawn in ax.lines and drawn.get_transform() is ax.transData else []
        known = sorted((y, x) for x, y in points if math.isfinite(y))
        sentences.append(f"{label}.")
        if known:
            ends = [f"{number_text(y)} at {number_text(x)}" for y, x in (known[0], known[-1])]
            sentences[-1] = f"{label}: {len(known)} points, lowest {ends[0]}, highest {ends[1]}."
    return " ".join(sentences)
