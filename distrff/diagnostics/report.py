"""The report of a fit as strict JSON data, for `report_`, the command line and the report page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from distrff.diagnostics.quality import OF_VARIANCE, quality_lines, quality_sections
from distrff.errors import DataWarning, InputError, warn
from distrff.utils.serialize import StrictMapping
from distrff.utils.text import (
    Chart,
    Facts,
    Items,
    Part,
    Section,
    Table,
    html_card,
    html_page,
    human_bytes,
    kernel_text,
    number_text,
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
    scale_search : the functions of the columns that were tried, with their held-out `errors`, and `scale`,
        the one that was taken
    size_search : of a number of features that was chosen, the held-out errors of small models (`curve`); the
        share `expected_fall` by which twice as many features are expected to lower the model's error, and
        `times_the_flops`, what they take
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
    plan : the costs counted before the fit, as in `Plan`; `seconds` is the prediction of `plan`, where a
        map was chosen in the fit the one made then; null without a call of `plan`
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
        from distrff.diagnostics.pages import solver_sections  # for those who look at them

        choices = [*choice_of_columns(self), *choice_of_size(self)]
        return [Section("What was fitted", fitted, wide=True), *solver_sections(self, charts, choices)]

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
            yield from choice_of_columns(r)
            yield from choice_of_size(r)
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


_SCALES = {"standard": "as they are", "log": "by logarithms", "quantile": "by ranks made normal"}


def choice_of_columns(report: Mapping[str, Any]) -> Iterator[str]:
    """How the columns enter the map, and why, in one line."""
    if search := report.get("scale_search"):
        others = [
            f"{_SCALES[name]} {number_text(error)}"
            for name, error in search["errors"].items()
            if name != search["scale"]
        ]
        own = number_text(search["errors"][search["scale"]])
        yield (
            f"all columns {_SCALES[search['scale']]}: the held-out {search['criterion']} of small models is "
            f"{own}; {', '.join(others)}"
        )


def choice_of_size(report: Mapping[str, Any]) -> Iterator[str]:
    """What more features would bring, as it was expected before the fit, and by its learning curve."""
    if search := report.get("size_search"):
        n, held_out = search["n_components"], report.get("learning_curve") or []
        yield (
            f"{n:,} features: twice as many were expected to lower the held-out error by "
            f"{search['expected_fall']:.2%}, for {search['times_the_flops']:.1f} times the flops"
        )
        if len(held_out) > 1 and None not in (held_out[-2][1], held_out[-1][1]) and held_out[-2][1] > 0:
            fall = 1 - held_out[-1][1] / held_out[-2][1]
            verb = "lowered" if fall >= 0 else "raised"
            yield f"the last doubling of the features has {verb} the error of the fit by {abs(fall):.2%}"


# The report page, and the card of a notebook.

_MAX_NUMBERS = 8  # one per target or class
_MAX_ALPHAS = 10


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
