"""The report of a fit as strict JSON data, for `report_`, the command line and the report page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from distrff.diagnostics.quality import OF_VARIANCE, quality_lines, quality_sections
from distrff.errors import DataWarning, InputError, warn
from distrff.utils.serialize import StrictMapping
from distrff.utils.text import (
    Bars,
    Chart,
    Facts,
    Items,
    Part,
    Section,
    Table,
    html_card,
    html_page,
    human_bytes,
    human_seconds,
    kernel_text,
    number_text,
    quantity_text,
)


class FitReport(StrictMapping):
    """A read-only mapping of strict JSON values.

    Keys
    ----
    model, status, n_samples, n_columns, n_components, n_outputs, dtype, seed : as named
    quality : R² and RMSE, of all targets together, beside those of the mean and of a linear model (null where
        folds go by columns, since it is one of all rows); or the
        accuracy, with its standard error where it is that of sampled rows, beside that of the most frequent
        class and the mean recall, `balanced_accuracy`, of the classes among these rows; `only_class` is the
        label that the model gives to all of them, if it gives one alone; null without targets. `rows` says on
        which rows: "out of fold", "the rows of the fit", … On the latter it is optimistic, whatever its
        standard error: the error of the chosen one of `candidates` is that of rows held out.
        `exchangeability` is a look at 12 runs of neighbouring rows by kernel ridge of the fit's map: its
        root mean square error in coded units on rows held out at random, `error_random`, and on stretches of
        rows, `error_held_out`; their `ratio`; `alarm`, whether it is clearly more than 1; and `also`, a list
        of the same where `rows` tell parts by columns that look like places, a time or groups. null where
        folds hold out other rows than random ones, for less than 100 rows, or rows in the order of the target
    evaluation : as `Evaluation`, where the rows of the fit were evaluated
    importance, dependence : as `PermutationImportance` and `PartialDependence`, of the most important
        columns, where these were judged
    folds : where rows were held out, how in words (`held_out`), `n_folds`, `n_never_held_out` rows of
        positive weight (null where sums alone were there), and of folds by columns the `rule`: how groups
        were dealt, where cells and spans begin
    features : the map as fitted, its specification
    kernel, length_scale, length_scale_search : the kernel as fitted, and how its length scales were found
    candidates : the maps that were tried on a sample, the best first, as in `AutoFeatures.candidates_`;
        `chosen` is the first one that fits in memory
    expected_collisions : of random binning, pairs of occupied bins expected to share a column
    alpha, criterion, cv_score, alphas, mean_score, fold_scores, noise_floor : choice of alpha, of ridge
    training_r2 : of ridge, the share of the targets' variance explained on the fitted rows, for each target
    weights_search : of concatenated maps with weights="cv", their score, that of equal ones, n_trials
    solver : name of the solver
    tol, relative_residual, preconditioner : of conjugate gradients, for the target of largest residual
    in_units_of_y : of losses in units of the targets' spread, that `spread`, and `C`, `epsilon`, `delta` as
        they are without it; lists of several targets
    C, loss, tol, primal, dual, duality_gap, relative_gradient : of margin models, for the worst class
    Cs, mean_score, fold_scores : the choice of C by held-out loss
    history : of iterative models, the state after each light sweep: `measure`, the name of what
        `tol` bounds, and lists `sweep`, `error` and, if there are bounds, `primal` and `dual`; for the
        class that is worst at the end, for targets always the worst one; at most 200 sweeps
    explained_variance, explained_variance_ratio : of principal components
    margin, smallest_margin : with C=inf, 1/‖w‖ and the smallest y·f over all rows
    learning_curve : list of [n_components, score, alpha]
    n_sweeps, sweep_seconds, sweep_labels, seconds, workers, threads : the work done
    phases : list of [name, seconds], which add up to `seconds`
    source, column_names : of the rows
    planned_peak_bytes, measured_peak_bytes : of a worker, above its idle resident set; without a cluster
        of the single process
    plan : the costs counted before the fit, as in `Plan`; `seconds` is the prediction of `plan`, null
        without one
    rkhs_norm : ‖w‖₂, one number or one per output
    table : rows read and dropped, columns made and dropped, for a table of mixed columns
    alerts : list of sentences on where the fit fell short
    notes : list of sentences on choices that were made
    """

    def to_html(
        self,
        *,
        title: str | None = None,
        facts: Iterable[Sequence[str]] = (),
        scores: Mapping[str, Any] | None = None,
    ) -> str:
        """The report as one self-contained HTML page; write it as UTF-8.

        It leads with the quality, and its details where the fit's rows were evaluated. Then it shows the
        fitted model; then plan against measured, the path of the penalty with the spread of the folds, the
        learning curve in the number of features, the convergence of the certificate, the columns and
        directions that matter, the maps that were tried, and the time of each phase, as far as the fit has
        them.

        Parameters
        ----------
        title : str, optional
            Default: the name of the model.
        facts : iterable of (name, text)
            Further facts, shown first.
        scores : {"columns": [...], "rows": [[...], ...]}, optional
            A table of this model and others; the first column names the rows.
        """
        # Charts import matplotlib, and a fit whose report nobody looks at needs none.
        from distrff.diagnostics.pages import dependence_charts, error_charts, page_charts

        sections = []
        if scores and scores["rows"]:
            held_out = Table(scores["columns"], scores["rows"])
            sections.append(Section("Score on held-out rows", [held_out], wide=True))
        evaluation, dependence = self.get("evaluation"), self.get("dependence")
        errors = error_charts(evaluation) if evaluation else {}
        curves = dependence_charts(dependence) if dependence else {}
        sections += quality_sections(self, errors, curves)
        sections += self._fitted([*facts, *_facts(self)], page_charts(self))
        title = self._title() if title is None else title
        return html_page(title, sections=sections, alerts=self.get("alerts") or ())

    def _repr_html_(self) -> str:
        """The page without its frame and its charts, which need matplotlib."""
        sections = [*quality_sections(self, {}, {}), *self._fitted(_facts(self), {})]
        return html_card(self._title(), sections=sections, alerts=self.get("alerts") or ())

    def _fitted(self, facts: Sequence[Sequence[str]], charts: Mapping[str, Chart]) -> list[Section]:
        """Sections of the fitted model, then of the solver's evidence."""
        fitted: list[Part] = [Facts(facts)]
        if self["notes"]:
            fitted.append(Items(self["notes"]))
        return [Section("What was fitted", fitted, wide=True), *_sections(self, charts)]

    def _title(self) -> str:
        return f"Fit of {self['model']}"

    def __repr__(self) -> str:
        return "\n".join([f"FitReport of {self['model']}", *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        r = self._values
        size = f"{r['n_samples']:,} rows, {r['n_columns']} columns"
        yield f"{size}, {r['n_components']} features ({r['dtype']})"
        if r.get("quality"):
            yield from quality_lines(r)
        elif r.get("folds"):
            yield f"rows held out: {folds_text(r['folds'])}"
        if r.get("candidates"):
            yield self._choice_line()
        if r.get("kernel"):
            yield f"kernel {kernel_text(r['kernel'])}".replace("\u200b", "")  # no breaks in a terminal
        yield self._objective_line()
        yield f"{r['n_sweeps']} sweeps in {r['seconds']:.2f} s on {r['workers']} worker(s); {r['status']}"
        if r.get("measured_peak_bytes") and r.get("planned_peak_bytes"):
            yield (
                f"peak memory of a worker {human_bytes(r['measured_peak_bytes'])}, "
                f"planned {human_bytes(r['planned_peak_bytes'])}"
            )
        yield from r.get("alerts") or ()
        yield from r["notes"]

    def _choice_line(self) -> str:
        candidates = self._values["candidates"]
        # Not the best one in any case: it may not fit in memory.
        chosen = next(one for one in candidates if one["chosen"])
        # The error of alpha, further down, is in squared units of the target.
        unit = " of the targets' variance" if chosen["criterion"] == OF_VARIANCE else ""
        # Equispaced features choose their own widths and smoothness, on more rows than a small model has.
        is_own = chosen["candidate"].startswith("equispaced")
        whose = " (kernel of the small model; the fit chose its own, below)" if is_own else ""
        return (
            f"map {chosen['candidate']}{whose}; chosen of {len(candidates)} candidates, held-out "
            f"{chosen['criterion']} {number_text(chosen['error'])} ± {number_text(chosen['spread'])}{unit}"
        )

    def _objective_line(self) -> str:
        r = self._values
        if "explained_variance_ratio" in r:
            share = sum(r["explained_variance_ratio"])
            return f"{r['n_outputs']} components with {share:.1%} of the variance"
        if "C" in r:
            # Softmax has no gap: it is judged by its gradient.
            name = "relative_gradient" if r["duality_gap"] is None else "duality_gap"
            error = "not known" if r[name] is None else f"{r[name]:.2g}"
            C = r["C"] if isinstance(r["C"], str) else f"{r['C']:g}"
            return f"C {C}, {r['loss']}, {name.replace('_', ' ')} {error}"
        score = "" if r["cv_score"] is None else f", {r['criterion']} {r['cv_score']:.6g}"
        for name in ("relative_residual", "duality_gap"):
            if r.get(name) is not None:
                score += f", {name.replace('_', ' ')} {r[name]:.2g} by {r['solver']}"
        return f"alpha {_range_of_many(r['alpha']) or r['alpha']}{score}"


# The report page, and the card of a notebook.

_MAX_BARS = 20
_MAX_CANDIDATES = 12  # as rows
_MAX_NUMBERS = 8  # one per target or class
_MAX_ALPHAS = 10

_Parts = list[Part]


def folds_text(folds: Mapping[str, Any] | None) -> str | None:
    """How rows were held out, and how many were not."""
    if folds is None:
        return None
    n_never = folds["n_never_held_out"]
    never = f"; none holds out {number_text(n_never)} rows" if n_never else ""
    return f"{folds['n_folds']} fold{'s' * (folds['n_folds'] > 1)} of {folds['held_out']}{never}"


def _facts(report: Mapping[str, Any]) -> list[list[str]]:
    search = report.get("length_scale_search") or {}
    shown = {
        "model": report["model"],
        "ended": report["status"].lower().replace("_", " "),
        "rows from": report.get("source"),
        "rows": number_text(report["n_samples"]),
        "columns": number_text(report["n_columns"]),
        "features": number_text(report["n_components"]),
        "rows held out": folds_text(report.get("folds")),
        "kernel": kernel_text(report["kernel"]) if report.get("kernel") else None,
        "width found by": search.get("rule"),
        **_objective(report),
        "products in": report["dtype"],
        "workers": number_text(report["workers"]),
        "seed": str(report["seed"]),
    }
    return [[name, text] for name, text in shown.items() if text]


def _objective(report: Mapping[str, Any]) -> dict[str, str | None]:
    """The minimised objective, and how precisely it was."""
    shown: dict[str, str | None] = {}
    if "C" in report:
        shown |= {"loss": report["loss"], "C": _numbers(report["C"]), "solver": report["solver"]}
    if "alpha" in report:
        shown["alpha"] = _range_of_many(report["alpha"]) or _numbers(report["alpha"])
    if report.get("cv_score") is not None:
        shown[report["criterion"]] = number_text(report["cv_score"])
    # The one that the solver bounds by tol.
    for name in ("duality_gap", "relative_gradient", "relative_residual"):
        if report.get(name) is not None:
            shown[name.replace("_", " ")] = number_text(report[name])
            break
    if "margin" in report:
        shown["margin"] = _numbers(report["margin"])
    if "rkhs_norm" in report:
        shown["norm of f, ‖w‖"] = _numbers(report["rkhs_norm"])
    kept = report.get("explained_variance_ratio")
    if kept:
        shown[f"variance along {len(kept)} component(s)"] = f"{sum(kept):.1%}"
    return shown


def _numbers(value: Any) -> str:
    """One number or several as text; C may be "inf"."""
    values = value if isinstance(value, list) else [value]
    shown = [one if isinstance(one, str) else number_text(one) for one in values[:_MAX_NUMBERS]]
    left_out = len(values) - len(shown)
    return ", ".join(shown) + (f" and {left_out} more" if left_out else "")


def _range_of_many(values: Any) -> str | None:
    """The alphas of many targets as text; None where they are few."""
    if not isinstance(values, list) or len(values) <= _MAX_ALPHAS:
        return None
    low, middle, high = (number_text(f(values)) for f in (min, median, max))
    return f"of {len(values)} targets from {low} to {high}, median {middle}"


def _sections(report: Mapping[str, Any], charts: Mapping[str, Chart]) -> list[Section]:
    """The sections below the facts of a fit; `charts` are given by heading."""
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
        sections.append(Section("Maps that were tried", _candidates(report["candidates"]), wide=True))
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


# The judgement of a fit's own rows in its report.

_DRAWN_COLUMNS = 4
_MOST_JUDGED, _LEAST_JUDGED, _CURVE_ROWS = 5_000, 500, 1_000
_DETAILS = ("targets", "labels", "classes", "confusion", "confused", "roc", "precision_recall", "reliability")


def judge_fit(estimator: Any) -> None:
    """Take into an estimator's report how good it is on its rows, and which columns matter to it there.

    Two light passes, and tasks that predict some thousand rows for each column.
    """
    from distrff.diagnostics.evaluate import evaluate

    evaluation = evaluate(estimator)
    report = estimator.report_.to_dict()
    # These come from the first pass of the fit, and an evaluation does not have them.
    of_fit = {
        name: value
        for name, value in report["quality"].items()
        if name.startswith("linear_") or name in ("exchangeability", "held_out")
    }
    # Details are kept once, in the evaluation.
    quality = {name: value for name, value in evaluation.items() if name not in _DETAILS} | of_fit
    report |= {"quality": quality, "evaluation": evaluation.to_dict()}
    if not estimator.model_.is_multilabel:  # which columns matter is not judged for several labels
        report |= _what_matters(estimator)
    estimator.report_ = FitReport(report)


def _what_matters(estimator: Any) -> dict[str, Any]:
    """The importance of columns, and the dependence on the most important ones, for the report."""
    from distrff.diagnostics.dependence import what_matters

    # Each judged row is predicted anew for each column: together about as often as two passes do.
    n_predicted = 2 * estimator.report_["n_samples"] // (1 + estimator.report_["n_columns"])
    try:
        importance, dependence = what_matters(
            estimator,
            n_columns=_DRAWN_COLUMNS,
            max_rows=min(_MOST_JUDGED, max(_LEAST_JUDGED, n_predicted)),
            max_curve_rows=_CURVE_ROWS,
            random_state=estimator.seed_,
        )
    except InputError as error:  # such as folds that hold none of the drawn rows out
        warn(f"the report has no importance of columns: {error}", DataWarning)
        return {}
    found = {"importance": importance.to_dict()}
    return found if dependence is None else found | {"dependence": dependence.to_dict()}
