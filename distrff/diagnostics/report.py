"""What a fit was, as strict JSON data: the same for `report_`, the command line and the report page."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from distrff.utils.axes import Number, number_text, place_of
from distrff.utils.html import facts, html_card, html_page, notes, paragraph, section, table
from distrff.utils.svg import Band, Line, Mark, Reference, bar_chart, bar_pairs, line_chart
from distrff.utils.text import human_bytes, human_seconds, kernel_text, quantity_text


class FitReport(Mapping[str, Any]):
    """A read-only mapping of strict JSON values.

    Keys
    ----
    model, status, n_samples, n_columns, n_components, n_outputs, dtype, seed : as named
    features : the map as fitted, its specification
    kernel, length_scale, length_scale_search : the kernel as fitted, and how its widths were found
    expected_collisions : of random binning, pairs of occupied bins expected to share a column
    alpha, criterion, cv_score, alphas, mean_score, fold_scores, noise_floor : choice of alpha, of ridge
    training_r2 : of ridge, the share of the targets' variance that the rows' own fit explains; a target each
    solver : which
    tol, relative_residual, preconditioner : of conjugate gradients; the target of largest residual
    C, loss, tol, primal, dual, duality_gap, relative_gradient : of margin machines; the worst class
    Cs, mean_score, fold_scores : the choice of C by held-out loss
    history : of iterative machines, what was known after each light sweep: `measure`, the name of what
        `tol` bounds, and lists `sweep`, `error` and, where there are bounds, `primal` and `dual`; of the
        class that is worst in the end, of targets always the worst; at most 200 sweeps
    explained_variance, explained_variance_ratio : of principal components
    margin, smallest_margin : with C=inf, 1/‖w‖ and the least y·f over all rows
    learning_curve : list of [n_components, score, alpha]
    n_sweeps, sweep_seconds, sweep_labels, seconds, workers, threads : the work done
    phases : list of [name, seconds], which add up to `seconds`
    source, column_names : of the rows
    planned_peak_bytes, measured_peak_bytes : of a worker, above its idle resident set; without a cluster of
        the one process that is client and worker
    plan : what was counted before the fit, as of `Plan`; `seconds` is what `plan` predicted, null without it
    rkhs_norm : ‖w‖₂, one number or one an output
    table : rows read and dropped, columns made and dropped, of a table of mixed columns
    notes : list of sentences on choices that were made
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values: dict[str, Any] = strict(dict(values))

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def to_dict(self) -> dict[str, Any]:
        """Return a copy of the report as plain data."""
        return json.loads(json.dumps(self._values, allow_nan=False))

    def to_html(
        self,
        *,
        title: str | None = None,
        facts: Iterable[Sequence[str]] = (),
        scores: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the report as one HTML page, which needs nothing outside itself; write it as UTF-8.

        It shows what was fitted on what, plan against measured, the path of the penalty with the spread
        of the folds, the learning curve in the number of features, how the certificate closed, which
        columns matter, and where the time went: each where the fit has it.

        Parameters
        ----------
        title : str, optional
            Default: what was fitted.
        facts : iterable of (name, text)
            What the report cannot know, shown first.
        scores : {"columns": [...], "rows": [[...], ...]}, optional
            The machine beside its rivals, as a table; the first column names the rows.
        """
        return report_page(
            fit_page(
                self,
                title=self._title() if title is None else title,
                facts=facts,
                scores=scores,
            )
        )

    def _repr_html_(self) -> str:
        return html_card(self._title(), report_body(fit_page(self, title="")))

    def _title(self) -> str:
        return f"Fit of {self['model']}"

    def __repr__(self) -> str:
        return "\n".join([f"FitReport of {self['model']}", *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        r = self._values
        size = f"{r['n_samples']:,} rows, {r['n_columns']} columns"
        yield f"{size}, {r['n_components']} features ({r['dtype']})"
        if r.get("kernel"):
            yield f"kernel {r['kernel']}"
        yield self._objective_line()
        yield f"{r['n_sweeps']} sweeps in {r['seconds']:.2f} s on {r['workers']} worker(s); {r['status']}"
        if r.get("measured_peak_bytes") and r.get("planned_peak_bytes"):
            yield (
                f"peak memory of a worker {human_bytes(r['measured_peak_bytes'])}, "
                f"planned {human_bytes(r['planned_peak_bytes'])}"
            )
        yield from r["notes"]

    def _objective_line(self) -> str:
        r = self._values
        if "explained_variance_ratio" in r:
            share = sum(r["explained_variance_ratio"])
            return f"{r['n_outputs']} components with {share:.1%} of the variance"
        if "C" in r:
            name = "relative_gradient" if r["duality_gap"] is None else "duality_gap"
            error = "not known" if r[name] is None else f"{r[name]:.2g}"
            C = r["C"] if isinstance(r["C"], str) else f"{r['C']:g}"
            return f"C {C}, {r['loss']}, {name.replace('_', ' ')} {error}"
        score = "" if r["cv_score"] is None else f", {r['criterion']} {r['cv_score']:.6g}"
        for name in ("relative_residual", "duality_gap"):
            if r.get(name) is not None:
                score += f", {name.replace('_', ' ')} {r[name]:.2g} by {r['solver']}"
        return f"alpha {r['alpha']}{score}"


def strict(value: Any) -> Any:
    """Return the value as strict JSON data: NumPy unwrapped, non-finite numbers null."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return strict(value.tolist())
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        return strict(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# From the report of a fit to what the report page shows.

_MOST_COLUMNS = 20  # as bars
_MOST_NUMBERS = 8  # one a target or class


def fit_page(
    report: Mapping[str, Any],
    *,
    title: str,
    facts: Iterable[Sequence[str]] = (),
    scores: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the argument of `report_page` for a fit.

    Parameters
    ----------
    report : mapping
        A `FitReport`, or its `to_dict()`.
    title : str
    facts : iterable of [name, text]
        What the report cannot know, shown first.
    scores : {"columns": [...], "rows": [[...], ...]}, optional
        The model beside its rivals.
    """
    return {
        "title": title,
        "facts": [*map(list, facts), *_facts(report)],
        "notes": list(report["notes"]),
        "scores": scores,
        "penalty_path": alpha_path(report) or _path_of_C(report),
        "learning_curve": learning_curve(report),
        "certificate": _certificate(report),
        "relevance": _relevance(report),
        "components": _components(report),
        "plan": _plan(report),
        "time": {
            "phases": report.get("phases"),
            "sweeps": [
                list(sweep) for sweep in zip(report["sweep_labels"], report["sweep_seconds"], strict=True)
            ],
        },
    }


def _facts(report: Mapping[str, Any]) -> list[list[str]]:
    search = report.get("length_scale_search") or {}
    shown = {
        "machine": report["model"],
        "ended": report["status"].lower().replace("_", " "),
        "rows from": report.get("source"),
        "rows": number_text(report["n_samples"]),
        "columns": number_text(report["n_columns"]),
        "features": number_text(report["n_components"]),
        "kernel": kernel_text(report["kernel"]) if report.get("kernel") else None,
        "width found by": search.get("rule"),
        **_objective(report),
        "products in": report["dtype"],
        "workers": number_text(report["workers"]),
        "seed": str(report["seed"]),
    }
    return [[name, text] for name, text in shown.items() if text]


def _objective(report: Mapping[str, Any]) -> dict[str, str | None]:
    """Return what was minimised, and how well."""
    shown: dict[str, str | None] = {}
    if "C" in report:
        shown |= {"loss": report["loss"], "C": _numbers(report["C"]), "solver": report["solver"]}
    if "alpha" in report:
        shown["alpha"] = _numbers(report["alpha"])
    if report.get("cv_score") is not None:
        shown[report["criterion"]] = number_text(report["cv_score"])
    for name in ("duality_gap", "relative_gradient", "relative_residual"):
        if report.get(name) is not None:
            shown[name.replace("_", " ")] = number_text(report[name])
            break
    if "margin" in report:
        shown["margin"] = _numbers(report["margin"])
    if "rkhs_norm" in report:
        shown["norm of f, ‖w‖"] = _numbers(report["rkhs_norm"])
    if "explained_variance_ratio" in report:
        kept = report["explained_variance_ratio"]
        shown[f"variance along {len(kept)} component(s)"] = f"{sum(kept):.1%}"
    return shown


def _relevance(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the columns of the shortest learned widths, each width beside the column's deviation."""
    search = report.get("length_scale_search") or {}
    if "column_scale" not in search:
        return None
    widths = search["length_scale"]
    names = report.get("column_names") or [f"column {j}" for j in range(len(widths))]
    pairs = zip(search["column_scale"], widths, strict=True)
    ranked = sorted(((scale / width, j) for j, (scale, width) in enumerate(pairs)), key=lambda pair: -pair[0])
    return {
        "bars": [[names[j], value, number_text(widths[j])] for value, j in ranked[:_MOST_COLUMNS]],
        "n_columns": len(widths),
    }


def _components(report: Mapping[str, Any]) -> dict[str, Any] | None:
    shares = report.get("explained_variance_ratio")
    return {"share": shares} if shares else None


def _numbers(value: Any) -> str:
    """Write one number or some; C may be "inf"."""
    values = value if isinstance(value, list) else [value]
    shown = [one if isinstance(one, str) else number_text(one) for one in values[:_MOST_NUMBERS]]
    left_out = len(values) - len(shown)
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")


def alpha_path(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the criterion depends on alpha, as `report_page` takes it; None where alpha was given."""
    if not report.get("alphas"):
        return None
    alphas, floor = report["alphas"], report["noise_floor"]
    return {
        **_path(report, "alpha", alphas),
        # Farther below, it took no part in the choice and would only press the curve to one side.
        "noise_floor": floor if floor is not None and 10 * floor >= min(alphas) else None,
    }


def _path_of_C(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the held-out loss depends on C; None where C was given."""
    return _path(report, "C", report["Cs"]) if report.get("Cs") else None


def _path(report: Mapping[str, Any], parameter: str, values: list[float]) -> dict[str, Any]:
    return {
        "parameter": parameter,
        "values": values,
        "mean": report["mean_score"],
        "folds": list(map(list, zip(*(report.get("fold_scores") or []), strict=True))),
        "chosen": report[parameter],
        "criterion": report["criterion"],
    }


def _certificate(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how the error fell from sweep to sweep; None of a direct solution."""
    history = report.get("history")
    return {**history, "tol": report["tol"]} if history else None


def learning_curve(report: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the criterion for each number of features, as `report_page` takes it; None without a curve."""
    if not report.get("learning_curve"):
        return None
    sizes, scores, _ = zip(*report["learning_curve"], strict=True)
    return {"n_components": list(sizes), "score": list(scores), "criterion": report["criterion"]}


def _plan(report: Mapping[str, Any]) -> dict[str, Any] | None:
    plan = report.get("plan")
    if plan is None:
        return None
    rows = [
        ["time of the fit", "s", plan["seconds"], report["seconds"]],
        [
            "peak memory of a worker, above idle",
            "bytes",
            report["planned_peak_bytes"],
            report["measured_peak_bytes"],
        ],
        ["passes over the rows", "", plan["n_sweeps"], report["n_sweeps"]],
    ]
    return {"rows": [row for row in rows if row[2] is not None]}


# The report of a fit as HTML: a page that needs nothing outside itself, or its body for a notebook.

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


def _relevance_card(relevance: Mapping[str, Any]) -> str:
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


def _certificate_card(known: Mapping[str, Any]) -> str:
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


def _components_card(components: Mapping[str, Any]) -> str:
    rows = [
        (f"component {j}", share, "–" if share is None else f"{share:.1%}")
        for j, share in enumerate(components["share"][:_MOST_COMPONENTS])
    ]
    if not rows:
        return ""
    return section("Variance along the components", bar_chart(rows, title="Share of the variance"))


def _plan_card(plan: Mapping[str, Any]) -> str:
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
    "certificate": _certificate_card,
    "relevance": _relevance_card,
    "components": _components_card,
    "plan": _plan_card,
    "time": _time,
}


def _spans_decades(values: Iterable[Number]) -> bool:
    """Whether a linear axis would press most of the values onto its end."""
    places = [place for value in values if (place := place_of(value)) is not None]
    return bool(places) and min(places) > 0 and max(places) > 10 * min(places)
