"""The report page below its facts: sections of a fit, and its charts as <svg> in the colours of the page."""

from __future__ import annotations

import io
import math
import re
import threading
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from distrff.diagnostics import plots
from distrff.diagnostics.plots import COLORS, NEAR, known_numbers
from distrff.diagnostics.quality import OF_VARIANCE
from distrff.utils.text import (
    Bars,
    Chart,
    Items,
    Part,
    Section,
    Table,
    column_text,
    human_seconds,
    number_text,
    quantity_text,
)

_WIDTH, _HEIGHT = 400, 250  # in points, so that text is readable on a telephone
_AXES_HEIGHT = 150  # at least
_NAME_LENGTH = 100  # of names at the ticks
_LINE = 15  # from one line of text to the next
_HANDLE = 40  # of a legend, with the spaces beside it
_GAP = 4  # between ticks

_PAGE_STYLE: dict[str, Any] = {
    "figure.figsize": (_WIDTH / 72, _HEIGHT / 72),
    "figure.dpi": 72,  # so that pixels are points
    "figure.constrained_layout.use": True,
    "svg.fonttype": "none",  # text stays text
    "text.parse_math": False,  # names may have dollars
    "font.size": 12,
    "font.sans-serif": ["DejaVu Sans"],  # wider than the fonts of the page, so that labels do not touch
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "grid.color": "black",
    "grid.alpha": 0.15,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
}
_PAGE_COLORS = {color: f"var(--series-{i})" for i, color in enumerate(COLORS, 1)}
_PAGE_COLORS["#000000"] = "currentColor"
Draw = Callable[..., Any]
"""A plot of data in the Axes `ax`, which it returns."""

_DRAWING = threading.Lock()  # matplotlib's style is global while it is in use


def page_charts(report: Mapping[str, Any]) -> dict[str, Chart]:
    """Charts of a report, by the heading of their section."""
    drawn: dict[str, Draw] = {}
    # One alone, as that of a likelihood, is no curve.
    if len(report.get("alphas") or report.get("Cs") or ()) > 1:
        drawn[f"Error against {'alpha' if report.get('alphas') else 'C'}"] = plots.plot_alpha_path
    if report.get("learning_curve"):
        drawn["Error against the number of features"] = plots.plot_learning_curve
    known = report.get("history") or {}
    if known.get("sweep"):
        drawn[f"How the {known['measure']} closed"] = plots.draw_certificate
    if known.get("dual") and np.count_nonzero(known_numbers(known["error"]) <= NEAR) > 1:
        drawn["The optimum"] = plots.draw_bounds
    return {heading: _chart(heading, partial(draw, report)) for heading, draw in drawn.items()}


def error_charts(evaluation: Mapping[str, Any]) -> dict[str, Chart]:
    """The charts of an evaluation, by the heading of their section."""
    drawn: dict[str, Draw] = {}
    of_targets = [one["target"] for one in evaluation.get("targets", ()) if one.get("bins")]
    for j, name in enumerate(of_targets):
        of = f" of {name}" if len(of_targets) > 1 else ""
        drawn[f"Predicted against actual{of}"] = partial(plots.plot_predicted_against_actual, target=j)
        drawn[f"Residuals against prediction{of}"] = partial(plots.plot_residuals, target=j)
    of_classes = (
        ("confusion", "Which classes are taken for which", plots.plot_confusion),
        ("roc", "ROC curve", plots.plot_roc),
        ("precision_recall", "Precision against recall", plots.plot_precision_recall),
        ("reliability", "Probabilities against frequencies", plots.plot_reliability),
    )
    drawn |= {heading: draw for key, heading, draw in of_classes if evaluation.get(key)}
    return {heading: _chart(heading, partial(draw, evaluation)) for heading, draw in drawn.items()}


def dependence_charts(dependence: Mapping[str, Any]) -> dict[str, Chart]:
    """A chart of each curve of a partial dependence, by the heading of its section."""
    charts = {}
    for curve in dependence["curves"]:
        heading = f"Mean {dependence['result']} against {column_text(curve['column'])}"
        alone = {**dependence, "curves": [curve]}
        charts[heading] = _chart(heading, partial(plots.plot_partial_dependence, alone))
    return charts


def _chart(title: str, draw: Draw) -> Chart:
    """The <svg> element, with a title and a description for screen readers."""
    from matplotlib import style
    from matplotlib.figure import Figure

    file = io.StringIO()
    with (
        _DRAWING,
        # The salt makes ids that are the same in each run, and differ between the charts of a page.
        style.context(["default", _PAGE_STYLE | {"svg.hashsalt": title}]),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "Glyph .* missing")  # it is the browser that draws the letters
        # Not pyplot's, which would keep the figure, and choose a backend with a window.
        figure = Figure()
        ax = draw(ax=figure.add_subplot())
        _make_room(figure, ax)
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return Chart(_inlined(file.getvalue(), title, _described(ax)))


def _make_room(figure: Any, ax: Any) -> None:
    """Change legend, names, ticks and height so that no text is cut off or lies on another."""
    handles, labels = ax.get_legend_handles_labels()
    if ax.get_legend() is not None:
        ax.get_legend().remove()
        labels = [_shortened(label, _WIDTH - 2 * _HANDLE) for label in labels]
        halves = len(labels) > 3 and max(map(_length, labels)) + 1.5 * _HANDLE < _WIDTH / 2
        # Outside of the Axes: inside it may cover curves, which nobody can move on a page.
        figure.legend(handles, labels, loc="outside upper left", ncols=2 if halves else 1)
    for axis in (ax.xaxis, ax.yaxis):
        if _has_names(axis):
            axis.set_ticklabels([_shortened(name.get_text(), _NAME_LENGTH) for name in axis.get_ticklabels()])
    height = max(_AXES_HEIGHT, _LINE * len(ax.get_yticks()) if _has_names(ax.yaxis) else 0)
    # Extents are known only after a layout.
    figure.get_layout_engine().execute(figure)
    figure.set_figheight(figure.get_figheight() + max(0.0, height - ax.bbox.height) / 72)
    # Half of the ticks at a time, until one is left.
    while _are_crowded(figure, ax) and (fewer := len(ticks := ax.get_xticks()) // 2):
        if _has_names(ax.xaxis):
            ax.set_xticks(ticks[::2], [name.get_text() for name in ax.get_xticklabels()[::2]])
            continue
        is_log = ax.get_xscale() == "log"
        ax.xaxis.get_major_locator().set_params(**{"numticks" if is_log else "nbins": fewer})
        # Within a decade a logarithmic axis has ticks of its own, however few are asked for.
        if len(ax.get_xticks()) >= len(ticks):
            ax.set_xticks(ticks[::2])
    for label, most in ((ax.xaxis.label, ax.bbox.width), (ax.yaxis.label, ax.bbox.height)):
        label.set_text(_shortened(label.get_text(), most))


def _has_names(axis: Any) -> bool:
    from matplotlib.ticker import FixedLocator

    return isinstance(axis.get_major_locator(), FixedLocator)


def _are_crowded(figure: Any, ax: Any) -> bool:
    figure.get_layout_engine().execute(figure)
    boxes = [label.get_window_extent() for label in ax.get_xticklabels() if label.get_text()]
    seen = sorted(
        (box.x0, box.x1) for box in boxes if ax.bbox.x0 - 1 <= box.x0 / 2 + box.x1 / 2 <= ax.bbox.x1 + 1
    )
    return any(start < stop + _GAP for (_, stop), (start, _) in pairwise(seen))


def _shortened(text: str, most: float) -> str:
    """The text, or both its ends, in so many points: names that belong together often begin alike."""
    text = " ".join(text.split())
    short, kept = text, len(text)
    while _length(short) > most and kept > 1:
        # In proportion first: each step lays out text.
        kept = min(kept - 1, int(kept * most / _length(short)))
        short = f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"
    return short


def _length(text: str) -> float:
    """Length in points. Scripts that the font lacks are as wide as its W."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    wide = "".join("W" if unicodedata.east_asian_width(one) in "WF" else one for one in text)
    font = FontProperties(size=_PAGE_STYLE["font.size"])
    return float(text_to_path.get_text_width_height_descent(wide, font, ismath=False)[0])


def _inlined(svg: str, title: str, description: str) -> str:
    """Matplotlib's document as an element of a page."""
    # Without its head, whose style would apply to the whole page. Groups lose their ids, which several charts
    # would share; ids that are referred to are unique by the hash salt.
    view, body = re.findall(r'viewBox="([^"]*)".*?(<g id="figure_1">.*)</svg>', svg, re.DOTALL)[0]
    body = re.sub(r'<g id="[^"]*"', "<g", body).replace("xlink:href", "href")
    body = re.sub(r"\s+", " ", body)
    # In place of fixed colours the page's variables, which its dark theme changes.
    body = re.sub("|".join(_PAGE_COLORS), lambda color: _PAGE_COLORS[color[0]], body)
    return (
        f'<svg role="img" viewBox="{view}">\n<title>{escape(title)}</title>\n'
        f"<desc>{escape(description)}</desc>\n{body}</svg>"
    )


def _described(ax: Any) -> str:
    """A description of a chart: each curve by its lowest and highest point, all else by its label."""
    sentences = [f"{ax.get_xlabel()} across, {ax.get_ylabel()} upwards."]
    for drawn, label in zip(*ax.get_legend_handles_labels(), strict=True):
        # Lines across the whole Axes, such as that of the chosen alpha, are in other coordinates.
        points = drawn.get_xydata() if drawn in ax.lines and drawn.get_transform() is ax.transData else []
        known = sorted((y, x) for x, y in points if math.isfinite(y))
        sentences.append(f"{label}.")
        if known:
            ends = [f"{number_text(y)} at {number_text(x)}" for y, x in (known[0], known[-1])]
            sentences[-1] = f"{label}: {len(known)} points, lowest {ends[0]}, highest {ends[1]}."
    return " ".join(sentences)


# The sections of a fit.

_MAX_BARS = 20
_MAX_CANDIDATES = 12  # as rows

_Parts = list[Part]


def solver_sections(
    report: Mapping[str, Any], charts: Mapping[str, Chart], choices: Sequence[str]
) -> list[Section]:
    """The sections below the facts of a fit; `charts` are given by heading.

    `choices` say in words how columns and size were chosen.
    """
    parts: dict[str, _Parts] = {heading: [chart] for heading, chart in charts.items()}
    known = report.get("history") or {}
    if known.get("dual"):
        # Enough digits to distinguish two close bounds.
        dual, primal = (
            "–" if one is None else f"{one:.7g}" for one in (known["dual"][-1], known["primal"][-1])
        )
        bounds = (
            f"The optimum lies between {dual} and the objective of this model, {primal}; "
            f"for one class against the rest if there are several."
        )
        parts.setdefault("The optimum", []).append(bounds)
    search = report.get("length_scale_search") or {}
    if search.get("column_scale"):
        parts["Learned widths"] = _relevance(report, search)
    if search.get("settings"):
        parts["Kernels that were tried"] = _settings(search)
    if search.get("likely"):
        parts["Kernels that were tried"] = _likely(search["likely"])
    if search.get("column_shares"):
        parts["Columns and directions that matter"] = _metric(report, search)
    shares = report.get("explained_variance_ratio")
    if shares:
        bars = [(f"component {j}", share, f"{share:.1%}") for j, share in enumerate(shares[:_MAX_BARS])]
        parts["Variance along the components"] = [Bars(bars)]
    if report.get("plan"):
        parts["Plan against measured"] = [_plan(report, report["plan"])]
    parts["Time"] = _time(report)
    sections = [Section(heading, shown) for heading, shown in parts.items() if shown]
    if report.get("candidates"):
        shown = [*_candidates(report["candidates"]), *([Items(choices)] if choices else [])]
        sections.append(Section("Maps that were tried", shown, wide=True))
    return sections


def _candidates(candidates: Sequence[Mapping[str, Any]]) -> _Parts:
    """A table of the best candidates and of the chosen one."""
    rows = [
        [
            f"{one['candidate']} (chosen)" if one["chosen"] else one["candidate"],
            f"{number_text(one['error'])} ± {number_text(one['spread'])}",
            one["expected"],
            one["flops"],
            human_seconds(one["seconds"]),
        ]
        for rank, one in enumerate(candidates)
        if rank < _MAX_CANDIDATES or one["chosen"]
    ]
    left_out = len(candidates) - len(rows)
    more = f" {left_out} more are not shown." if left_out else ""
    criterion = candidates[0]["criterion"]
    unit = ", in units of the targets' variance" if criterion == OF_VARIANCE else ""
    legend = (
        f"The error is the {criterion} of small models on held-out rows of a sample{unit}, in the last stage "
        f"that each reached; expected is that of all rows and features. One width, widths that are shrunk "
        f"afterwards, or a cheaper map may be preferred where errors hardly differ.{more}"
    )
    return [Table(["candidate", "held-out error", "expected error", "flops", "time"], rows), legend]


def _settings(search: Mapping[str, Any]) -> _Parts:
    """A table of the best kernels of equispaced features, and how many there were."""
    tried, left_out = search["settings"], search["left_out"]
    rows = [
        [one["kernel"], number_text(one["alpha"]), number_text(one["error"])]
        for one in tried[:_MAX_CANDIDATES]
    ]
    legend = (
        f"The best of {len(tried)} kernels, each at its best alpha of a coarse grid: the mean squared error "
        f"on the rows of one fold. All folds then decide between the best few."
    )
    if left_out:
        legend += (
            f" {len(left_out)} more have widths that the lattice of frequencies does not resolve, "
            f"such as {left_out[0]}."
        )
    return [Table(["kernel", "alpha", "held-out error"], rows), legend]


def _likely(likely: Sequence[Mapping[str, Any]]) -> _Parts:
    """A table of the most likely kernels of a map."""
    least = min(one["minus_two_log_likelihood"] for one in likely)
    legend = (
        "The most likely kernel of one term, and that of two where rows ask for a second: widths, "
        "directions, smoothness, shares and alpha together, by all rows."
    )
    columns, rows = ["kernel", "alpha"], [[one["kernel"], number_text(one["alpha"])] for one in likely]
    if len(likely) > 1:
        columns.append("−2·log L")
        for row, one in zip(rows, likely, strict=True):
            row.append(number_text(one["minus_two_log_likelihood"] - least))
        legend += (
            " Of two, the held-out error decides. The last column is minus twice the logarithm of the "
            "likelihood, from the least one on."
        )
    return [Table(columns, rows), legend]


def _metric(report: Mapping[str, Any], search: Mapping[str, Any]) -> _Parts:
    """Bars of the columns and the directions by their shares of the squared length of gradients."""
    columns = zip(_names(report, search["column_shares"]), search["column_shares"], strict=True)
    directions = [(f"direction {i}", share) for i, share in enumerate(search["directions"], 1)]
    legend = "How much of the squared length of f's gradients lies along each column and each direction."
    parts: _Parts = [legend]
    for kind, shares in (("columns", columns), ("directions", directions)):
        bars = [(name, share, f"{share:.1%}") for name, share in shares]
        parts += _ranked(bars, f"{kind} of smaller shares")
    return parts


def _relevance(report: Mapping[str, Any], search: Mapping[str, Any]) -> _Parts:
    """Bars of the columns with the shortest learned widths in units of their standard deviations."""
    widths = search["length_scale"]
    found = zip(_names(report, widths), search["column_scale"], widths, strict=True)
    bars = [(name, scale / width, number_text(width)) for name, scale, width in found]
    legend = (
        "The longer a bar, the faster the model may vary along its column: it is the deviation of the column "
        "over its width, which stands beside it, in the units that the model sees."
    )
    return [*_ranked(bars, "columns of longer widths"), legend]


def _names(report: Mapping[str, Any], columns: Sequence[Any]) -> Sequence[str]:
    return report.get("column_names") or [f"column {j}" for j in range(len(columns))]


def _ranked(bars: list[tuple[str, float, str]], others: str) -> _Parts:
    """The longest bars, and how many others are left out."""
    ranked = sorted(bars, key=lambda bar: -bar[1])
    left_out = len(ranked) - _MAX_BARS
    return [Bars(ranked[:_MAX_BARS]), *([f"{left_out} {others} are not drawn."] if left_out > 0 else [])]


def _plan(report: Mapping[str, Any], plan: Mapping[str, Any]) -> Table:
    rows = []
    peaks = report["planned_peak_bytes"], report["measured_peak_bytes"]
    for name, unit, planned, measured in (
        ("time of the fit", "s", plan["seconds"], report["seconds"]),
        ("peak memory of a worker, above idle", "bytes", *peaks),
        ("passes over the rows", "", plan["n_sweeps"], report["n_sweeps"]),
    ):
        # Nobody asked for a plan, so no seconds were predicted; the other costs are always counted.
        if planned is not None:
            ratio = f"{number_text(measured / planned)} ×" if measured is not None and planned > 0 else "–"
            rows.append([name, quantity_text(planned, unit), quantity_text(measured, unit), ratio])
    return Table(["", "planned", "measured", "ratio"], rows)


def _time(report: Mapping[str, Any]) -> _Parts:
    phases = report.get("phases") or []
    sweeps = list(zip(report["sweep_labels"], report["sweep_seconds"], strict=True))
    parts: _Parts = [Bars(_added_up(phases))] if phases else []
    if sweeps:
        passes = "1 pass" if len(sweeps) == 1 else f"{len(sweeps)} passes"
        total = human_seconds(sum(seconds for _, seconds in sweeps))
        parts += [f"{passes} over the rows, together {total}:", Bars(_added_up(sweeps))]
    return parts


def _added_up(timed: Iterable[Sequence[Any]]) -> list[tuple[str, float, str]]:
    """A bar of (label, seconds, seconds as text) for each label."""
    # Light sweeps are many, and have one label.
    by_label: dict[str, list[float]] = {}
    for label, seconds in timed:
        by_label.setdefault(label, []).append(seconds)
    return [
        (label if len(parts) == 1 else f"{label} ({len(parts)} times)", sum(parts), human_seconds(sum(parts)))
        for label, parts in by_label.items()
    ]
