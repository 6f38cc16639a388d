"""The result of a fit, its report and quality, and the choice of alpha."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from distrff.engine.run import Run
from distrff.errors import column_called
from distrff.features.base import FeatureMap
from distrff.features.fitted import Trait
from distrff.fitting.cost import Plan
from distrff.fitting.problem import PenaltyChoice, PreparedFit
from distrff.fitting.rows import ColumnStatistics
from distrff.model.model import FoldModels, Model
from distrff.preprocessing.coding import ClassTargets, MultilabelTargets, Targets
from distrff.preprocessing.folds import Folds
from distrff.solvers.objective import History, Status
from distrff.solvers.ridge import RidgeSolution
from distrff.utils.arrays import as_columns, chosen_rows, dense_rows
from distrff.utils.linalg import factor, in_float64, inverse_of_factor, solve_factor
from distrff.utils.process import one_blas_thread
from distrff.utils.random import stream
from distrff.utils.text import listed

_MAX_NAMES = 10


@dataclass(frozen=True, eq=False, kw_only=True)
class FitResult:
    """The solution of a fit, with the choices that led to it."""

    run: Run
    plan: Plan | None  # None for a fit to Grams that were already there
    n_rows: int
    dtype: str  # of the features
    targets: Targets
    coef: np.ndarray  # (n_features, n_outputs), in the targets' own units
    intercept: np.ndarray  # (n_outputs,)
    n_iter: int = 1  # light sweeps, or passes, of its solver; 1 of a direct one
    status: Status = Status.CONVERGED
    search: Any = None  # how the penalty was chosen: an AlphaSearch or PenaltySearch
    grams: Any = None  # None where no Gram of all rows was formed
    features: Any = None  # the map with the kernel that the solver chose; None where it stays as it was
    fold_models: FoldModels | None = None  # of the chosen penalty; None where no folds were held out
    entries: Mapping[str, Any] = field(default_factory=dict)  # of the report, on the penalty and the solver
    notes: list[str] = field(default_factory=list)  # what the report should say about choices
    workers: tuple[int, int] | None = None  # and threads, of passes before this run; None without any
    shortfall: str | None = None  # what to warn of, where the tolerance was not reached
    interruption: KeyboardInterrupt | None = None  # to be raised again when the model is kept


# The report of a fit: the result, the cost of the passes, and notes on rows and map.


def fit_report(
    estimator: Any,
    result: FitResult,
    fit: PreparedFit | None = None,
    quality: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The values of the report of a fit to rows, or to a Gram where `fit` is None."""
    run, plan = result.run, result.plan
    of_client = plan.client_peak_bytes if plan is not None and run.execution.in_client else 0
    n_workers, n_threads = result.workers or (run.execution.n_workers, run.execution.n_threads)
    values = {
        "model": type(estimator).__name__,
        "status": result.status.name,
        "n_samples": result.n_rows,
        "n_columns": estimator.n_features_in_,
        "n_components": result.coef.shape[0],
        "n_outputs": result.coef.shape[1],
        "dtype": result.dtype,
        "seed": estimator.seed_,
        "quality": quality,
        "kernel": None,
        "length_scale": None,
        **result.entries,
        "n_sweeps": len(run.sweeps),
        "sweep_labels": [label for label, _ in run.sweeps],
        "sweep_seconds": [seconds for _, seconds in run.sweeps],
        "phases": run.phases(),
        "seconds": run.seconds,
        "workers": n_workers,
        "threads": n_threads,
        "planned_peak_bytes": None if plan is None else plan.worker_peak_bytes + of_client,
        "measured_peak_bytes": run.record.measured_peak_bytes or None,
        "plan": None if plan is None else plan.to_dict(),
    }
    notes = list(result.notes)
    if fit is not None:
        dataset = fit.dataset
        values |= {**of_map(fit.features), "source": dataset.source, "column_names": dataset.column_names}
        values |= of_folds(fit.problem.folds, 0 if fit.census is None else fit.census.n_never_held_out)
        if dataset.table_report is not None:
            values["table"] = dataset.table_report
        notes += notes_on_rows(fit, result.dtype)
    if quality is not None and quality["rows"] == "out of fold":
        values["quality"] = {**quality, "held_out": values["folds"]["held_out"]}
        if fit is not None and fit.census and fit.census.n_repeated and quality["kind"] == "numbers":
            notes.append(
                f"{fit.census.n_repeated} rows are held out by several folds: RMSE and R² of the fit count "
                f"them once for each, those of `evaluate` and of a page once in all"
            )
    if quality is not None and quality.get("only_class") is not None:
        notes.append(_of_one_class(quality["only_class"], result))
    threads = max((process.blas_threads for process in run.record.processes.values()), default=1)
    if threads > 1:
        notes.append(
            f"BLAS ran on {threads} threads in a task; the same bits for any number of workers "
            f"are promised for one thread"
        )
    if run.checkpoint is not None and run.checkpoint.n_read:
        notes.append(f"{run.checkpoint.n_read} of {len(run.sweeps)} passes were read from the checkpoint")
    return values | {"alerts": _alerts(result), "notes": notes}


def _of_one_class(label: Any, result: FitResult) -> str:
    cures = []
    if getattr(result.targets, "class_weight", None) is None:
        cures.append("class_weight='balanced'")
    if result.entries.get("Cs") is None and result.entries.get("alphas") is None:  # given, not chosen
        cures.append("a larger C" if "C" in result.entries else "a smaller alpha")
    said = f"of every row that it is judged on the model says {label!r}, though some are of other classes"
    return f"{said}; try {' or '.join(cures)}" if cures else said


def _alerts(result: FitResult) -> list[str]:
    if result.shortfall is not None:
        return [result.shortfall]
    return [result.status.value] if result.status is Status.INTERRUPTED else []


def of_map(features: FeatureMap | None) -> dict[str, Any]:
    """A report's entries on a fitted map."""
    assert features is not None
    kernel = getattr(features, "kernel_", None)
    return {
        "features": features.specification_.to_dict(),
        "kernel": None if kernel is None else repr(kernel),
        "length_scale": getattr(kernel, "length_scale", None),
        "length_scale_search": getattr(features, "length_scale_search_", None),
        "candidates": getattr(features, "candidates_", None),
        "scale_search": getattr(features, "scale_search_", None),
        "size_search": getattr(features, "size_search_", None),
        "expected_collisions": getattr(features, "expected_collisions_", None),
    }


def of_folds(folds: Folds, n_never_held_out: int | None = None) -> dict[str, Any]:
    """A report's entry on the rows held out, where some are; sums do not know how many no fold holds out."""
    if not folds.n_folds:
        return {}
    values = {"held_out": folds.words, "n_folds": folds.n_folds, "n_never_held_out": n_never_held_out}
    if folds.may_lack:  # those that follow from columns
        values["rule"] = folds.to_dict()
    return {"folds": values}


def notes_on_rows(fit: PreparedFit, dtype: str) -> list[str]:
    """Notes on rows and columns left out, searched widths, and phases that float32 cannot hold."""
    dataset, names, notes = fit.dataset, fit.dataset.column_names, []
    table = dataset.table_report or {}
    if table.get("rows_dropped"):
        lacking = "a value" if dataset.steps is None or dataset.steps.drops_missing else "a target"
        notes.append(f"{table['rows_dropped']} of {table['rows_read']} rows left out, which lack {lacking}")
    for why, out in dataset.left_out.items():
        called = f"column {out[0]!r}" if len(out) == 1 else f"columns {listed(out)}"
        notes.append(f"{called} left out: {why}")
    notes += fit.problem.held_out.notes(dataset)
    searches = list(_width_searches(fit.features))
    notes += [search["note"] for search in searches if "note" in search]
    unsearched = {j for search in searches for j in search.get("constant_columns", ())}
    if unsearched:
        notes.append(
            f"constant in all rows: {columns_called(unsearched, names)}; left out by length_scale='ard', so "
            f"that other values in later rows do not count either"
        )
    constant = set(np.flatnonzero(fit.statistics.columns.is_constant()).tolist()) - unsearched
    ignored = set(fit.scaling.ignored()) & constant
    if ignored:
        notes.append(f"constant in all rows: {columns_called(ignored, names)}; nothing is learnt from them")
    if constant := constant - ignored:  # unscaled, say, or fitted by sums that later rows go on with
        notes.append(
            f"constant in all rows: {columns_called(constant, names)}; another value in new rows "
            f"changes predictions: leave them out"
        )
    if dtype == "float32" and (far := fit.frequencies_beyond_float32()):
        notes.append(
            f"{far} frequencies have phases too large for float32 on this data; use dtype='float64' for them"
        )
    return notes


def columns_called(columns: Iterable[int], names: Sequence[str] | None) -> str:
    """What the first of some columns are called."""
    positions = sorted(columns)
    called = [column_called(j, None if names is None else names[j]) for j in positions[:_MAX_NAMES]]
    more = [f"{len(positions) - _MAX_NAMES} more"] if len(positions) > _MAX_NAMES else []
    return ", ".join(called + more)


def _width_searches(features: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the reports of the length scale searches of a map and of the parts of a concatenated one."""
    if search := getattr(features, "length_scale_search_", None):
        yield search
    for part in getattr(features, "maps_", ()):
        yield from _width_searches(part)


def rkhs_norm(coef: np.ndarray) -> Any:
    """‖w‖₂ of one output as a number, of more as an array."""
    norms = np.linalg.norm(coef, axis=0)
    return float(norms[0]) if len(norms) == 1 else norms


def coef_and_intercept(X: np.ndarray, *, fit_intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """Coef and intercept of points in columns; the last row is the intercept if there is one."""
    return (X[:-1], X[-1]) if fit_intercept else (X, np.zeros(X.shape[1]))


# The result of ridge, by any solver: how alpha was chosen, and the model in the targets' own units.


@dataclass(frozen=True, eq=False)
class AlphaSearch:
    """The chosen alpha and what it was chosen from."""

    alpha: np.ndarray  # (1,) or (k,)
    score: float | None = None  # criterion at the chosen alpha, in squared units of the targets
    criterion: str = "none, as alpha was given"
    # alphas, mean_score and, by several folds, fold_scores of shape (n_alphas, n_folds); of targets with
    # alphas of their own both scores have a last axis for them
    results: dict[str, np.ndarray] = field(default_factory=dict)
    learning_curve: list[list[float]] = field(default_factory=list)  # of [size, score, alpha]
    notes: list[str] = field(default_factory=list)  # what the report should say about the choice
    # Mean coefficients (D, k) and intercepts (k,) of the folds' models, where these were solved one by one.
    start: tuple[np.ndarray, np.ndarray] | None = None
    # The same of each fold, in coded units, where they were solved for the chosen alpha.
    fold_solutions: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    interruption: KeyboardInterrupt | None = None  # to be raised again when that mean is kept

    @property
    def path(self) -> dict[str, np.ndarray]:
        """The results as a report has them: means over the targets, NaN where some did not try an alpha."""
        if np.ndim(self.results.get("mean_score", ())) < 2:
            return self.results
        return {name: A if name == "alphas" else A.mean(axis=-1) for name, A in self.results.items()}


def ridge_fold_models(
    folds: Folds, targets: Targets, solutions: Sequence[tuple[np.ndarray, np.ndarray]], *, fit_intercept: bool
) -> FoldModels:
    """The models of coef (D, k) and intercept (k,) in coded units, one a fold."""
    coef, intercept = (np.stack(parts) for parts in zip(*solutions, strict=True))
    return FoldModels(folds, *in_units(targets, coef, intercept, fit_intercept=fit_intercept))


def in_units(
    targets: Targets, coef: np.ndarray, intercept: np.ndarray, *, fit_intercept: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Coef (…, D, k) and intercept (…, k) in the targets' own units, given those in coded ones."""
    # Coded targets are (y − shift)/scale. Without an intercept the solver has added shift/scale to them, so
    # that the coefficients hold the mean.
    shifted = intercept * targets.scale + targets.shift
    return coef * targets.scale, shifted if fit_intercept else np.zeros_like(shifted)


def ridge_result(
    run: Run,
    plan: Plan | None,
    targets: Targets,
    search: AlphaSearch,
    solution: RidgeSolution,
    *,
    n_rows: int,
    fit_intercept: bool,
    dtype: str,
    notes: list[str],
    entries: dict[str, Any],
    **ending: Any,
) -> FitResult:
    """The result of a solver of ridge, in the targets' own units.

    `entries` say how it was solved, `ending` how that ended.
    """
    # The total of a constant target is 0, and so is what its model leaves of it.
    explained = 1.0 - solution.residual / np.where(solution.total > 0, solution.total, 1.0)
    coef, intercept = in_units(targets, solution.coef, solution.intercept, fit_intercept=fit_intercept)
    return FitResult(
        run=run,
        plan=plan,
        n_rows=n_rows,
        dtype=dtype,
        targets=targets,
        coef=coef,
        intercept=intercept,
        search=search,
        entries={
            "rkhs_norm": rkhs_norm(coef),
            "training_r2": explained[0] if len(explained) == 1 else explained,
            "alpha": search.alpha[0] if len(search.alpha) == 1 else search.alpha,
            "criterion": search.criterion,
            "cv_score": search.score,
            **search.path,
            "noise_floor": None,
            "learning_curve": search.learning_curve,
            **entries,
        },
        notes=notes + search.notes,
        **ending,
    )


def iterative_result(
    fit: PreparedFit,
    plan: Plan,
    search: AlphaSearch,
    solution: RidgeSolution,
    *,
    solver: str,
    measure: str,
    error: float,
    history: History,
    status: Status,
    preconditioner: str,
    n_sweeps: int,
    interruption: KeyboardInterrupt | None,
    notes: list[str],
) -> FitResult:
    """The result of conjugate gradients or SGD.

    The measure is "relative residual", ‖B − (G + alpha·I)·w‖/‖B‖, or "duality gap",
    (primal − dual)/max(|primal|, |dual|). `error` is the largest of the targets, NaN before the first pass.
    """
    problem = fit.problem
    # An epoch of SGD and its evaluation are two passes.
    ended = n_sweeps >= problem.max_sweeps - (solver == "sgd")
    remedy = "allow more by max_sweeps, or" if ended else "rounding ends it; use"
    shortfall = (
        f"the {measure} is {error:.2g} after light sweep {n_sweeps}, above tol={problem.tol:g}; {remedy} a "
        f"larger tol"
    )
    return ridge_result(
        fit.run,
        plan,
        fit.targets,
        search,
        solution,
        n_rows=fit.dataset.n_rows,
        fit_intercept=problem.fit_intercept,
        dtype=plan.size.dtype,
        notes=notes,
        entries={
            "solver": solver,
            "preconditioner": preconditioner,
            "tol": problem.tol,
            measure.replace(" ", "_"): error,
            "history": history.values(measure),
        },
        n_iter=n_sweeps,
        status=status,
        shortfall=None if status.is_converged else shortfall,
        interruption=interruption,
    )


# A best value at an end of its grid gets a note: the optimum may lie beyond.


def end_of_grid(
    name: str, chosen: float, grid: np.ndarray, scores: np.ndarray, *, below: str | None = None
) -> list[str]:
    """A sentence if the value chosen is the smallest or the largest of an ascending grid.

    There is none where all of several `scores` are the same. `below` is what to say of the smallest instead.
    The grid of the parameter `name` is the parameter `name`s.
    """
    judged = scores[np.isfinite(scores)]
    # Where all scores agree, the end that was chosen says nothing about values beyond it.
    if len(judged) > 1 and np.ptp(judged) == 0:
        return []
    if chosen == grid[0] and below is not None:
        return [below]
    if len(grid) < 2 or chosen not in (grid[0], grid[-1]):
        return []
    which, other, how = (
        ("smallest", "smaller", "begin lower") if chosen == grid[0] else ("largest", "larger", "end higher")
    )
    return [
        f"{name}={chosen:g} is the {which} of its grid: a {other} one may be better; give {name}s that {how} "
        f"(--{name}s)"
    ]


def end_of_alphas(choice: PenaltyChoice, grid: np.ndarray) -> list[str]:
    """The same of the alpha of all targets, or of each."""
    if np.ndim(choice.index):
        return ends_of_targets(choice.index, choice.scores)
    return end_of_grid("alpha", choice.penalty, grid, choice.scores)


def ends_of_targets(index: np.ndarray, scores: np.ndarray) -> list[str]:
    """How many targets have the smallest or the largest of the alphas that were tried for them."""
    usable, targets = np.isfinite(scores), np.arange(len(index))
    # As in `end_of_grid`: equal scores tell nothing of values beyond.
    differ = np.nanmin(scores, axis=0) < np.nanmax(scores, axis=0)
    notes = []
    for step, words in ((-1, "smallest"), (1, "largest")):
        beyond = index + step
        inside = (beyond >= 0) & (beyond < len(scores))
        is_end = differ & ~(inside & usable[np.where(inside, beyond, 0), targets])
        if is_end.any():
            notes.append(
                f"{np.count_nonzero(is_end)} of {len(index)} targets have the {words} alpha that was tried "
                "for them; one beyond may be better"
            )
    return notes


# How good the model is, beside simpler ones.

_JUDGED_ROWS = 2000  # an accuracy of .9 is then known to 0.7 %


def quality_of_fit(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any] | None:
    """The model's error beside that of simpler ones, as data for JSON; None of a fit without targets.

    Numbers: R² and RMSE of all targets together, from the criterion that chose the penalty where there is
    one, beside the RMSE of the targets' mean and of a linear model. Classes: the accuracy on some rows
    of the first pass, with its standard error, beside the mean recall and the accuracy of the most frequent
    class on the same rows: by its share in all rows, a model that always says this class would seem better or
    worse than it is.
    """
    values: dict[str, Any] | None
    if isinstance(fit.targets, ClassTargets):
        values = _of_classes(fit, result, model)
    elif isinstance(fit.targets, MultilabelTargets):
        values = _of_labels(fit, result, model)
    elif model.loss is not None:
        values = _of_a_loss(fit, result, model)
    else:
        # The linear model is one of all rows: where rows at random are judged that is no matter, but of whole
        # people it has learned those that it is judged on (RMSE .91 on parkinsons, the model itself 1.01).
        is_unfair, census = fit.problem.folds.may_lack, fit.census
        statistics = replace(fit.statistics, together=None) if is_unfair else fit.statistics
        # The constant is that of the rows that the criterion judges.
        if census and (census.n_never_held_out or census.n_repeated) and result.search.score is not None:
            statistics = replace(statistics, targets=census.judged)
        values = quality_of_numbers(statistics, result)
        if values is not None and is_unfair:
            values["linear_rmse"] = None
    if values is not None and fit.problem.held_out.may_lack:
        values["held_out"] = fit.problem.held_out.words  # by which a given penalty judges nothing
    return values and {**values, "exchangeability": exchangeability_of_fit(fit, result)}


def quality_of_numbers(statistics: ColumnStatistics, result: FitResult) -> dict[str, Any] | None:
    """The same of numbers, whose sums are all that it takes; None without numeric targets."""
    targets, together = statistics.targets, statistics.together
    if targets is None:
        return None
    # The deviations of a constant target are rounding.
    variance = np.where(targets.has_one_value(), 0.0, targets.deviations / targets.weight)
    entries = result.entries
    if entries.get("cv_score") is not None:
        mse, rows = float(entries["cv_score"]), _rows_of(str(entries["criterion"]))
    else:
        mse = float(np.mean((1.0 - np.atleast_1d(entries["training_r2"])) * variance))
        rows = "the rows of the fit"
    values = {
        "kind": "numbers",
        "rows": rows,
        **_scores(mse, variance),
        "constant_rmse": float(np.sqrt(variance.mean())),
    }
    linear = None if together is None else together.linear_mse(len(variance))
    if linear is not None:
        values |= {f"linear_{name}": value for name, value in _scores(linear.mean(), variance).items()}
    return values


def _rows_of(criterion: str) -> str:
    if "generalised" in criterion:
        return "generalised cross-validation"
    return "one held-out fold" if "one held-out" in criterion else "out of fold"


def _scores(mse: float, variance: np.ndarray) -> dict[str, Any]:
    total = float(variance.mean())
    return {"r2": 1.0 - mse / total if total > 0 else None, "rmse": float(np.sqrt(max(mse, 0.0)))}


def _of_classes(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any]:
    labels = fit.statistics.labels
    assert labels is not None and isinstance(model.targets, ClassTargets)
    judged = _judged(fit, result, model)
    F, y, s = judged[:3]
    majority = labels.labels[[int(labels.weights.argmax())]]
    chosen, known = model.targets.chosen(F), model.targets.indices(y)
    right = chosen == known
    is_constant = (chosen == chosen[0]).all() and (known != known[0]).any()
    return {
        "kind": "classes",
        **judged.accuracy(right),
        "balanced_accuracy": _mean_recall(right, known, s),
        "only_class": model.targets.classes[chosen[:1]].tolist()[0] if is_constant else None,
        "majority": majority.tolist()[0],
        "majority_accuracy": float(s @ (known == model.targets.indices(majority)) / s.sum()),
    }


def _mean_recall(right: np.ndarray, known: np.ndarray, s: np.ndarray) -> float:
    """The mean over the classes among the rows of the share that is right."""
    classes, of_row = np.unique(known, return_inverse=True)
    weights = np.bincount(of_row, s, len(classes))
    return float((np.bincount(of_row, s * right, len(classes)) / weights).mean())


def _of_labels(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any]:
    assert fit.statistics.targets is not None
    judged = _judged(fit, result, model)
    F, y, s = judged[:3]
    has_label, is_usual = fit.targets.encode(y) > 0, fit.statistics.targets.mean > 0.5
    wrong, constant = (F > 0) != has_label, has_label != is_usual
    return {
        "kind": "labels",
        **judged.accuracy(~wrong.any(axis=1)),
        "hamming_loss": float((s @ wrong).mean() / s.sum()),
        "constant_hamming_loss": float((s @ constant).mean() / s.sum()),
    }


def _of_a_loss(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any]:
    judged = _judged(fit, result, model)
    y, s = as_columns(np.asarray(judged.y, dtype=np.float64)), judged.s
    predicted = model.of_link(judged.F)
    values: dict[str, Any] = {"kind": "numbers", "rows": judged.rows, "n_rows": judged.n_rows}
    if not model.quantiles:
        variance = s @ np.square(y - s @ y / s.sum()) / s.sum()
        values |= _scores(float((s @ np.square(y - predicted)).mean() / s.sum()), variance)
        values["constant_rmse"] = float(np.sqrt(variance.mean()))
    if (name := model.judge) is not None:
        Y = np.broadcast_to(y, predicted.shape)
        if model.quantiles:
            tau = np.broadcast_to(model.quantiles, len(Y.T))
            pairs = zip(Y.T, tau, strict=True)
            best = [np.quantile(one, q, weights=s, method="inverted_cdf") for one, q in pairs]
        else:
            best = np.log(np.maximum(s @ Y / s.sum(), np.finfo(float).tiny))
        mean, constant = (
            s @ model.losses(F, Y) / s.sum() for F in (judged.F, np.broadcast_to(best, Y.shape))
        )
        # The deviance of the constant of counts that are all 0 is that of the least mean.
        has_spread = (constant > 0).all() and (y.max(axis=0) > y.min(axis=0)).all()
        d2 = float(np.mean(1 - mean / constant)) if has_spread else None
        values |= {name: float(mean.mean()), f"constant_{name}": float(constant.mean()), "d2": d2}
    return values


class _Judged(NamedTuple):
    """Judgements of some rows: decision values, targets, weights, and which of them go together from 0."""

    F: np.ndarray
    y: np.ndarray
    s: np.ndarray
    units: np.ndarray  # none where each is for itself
    rows: str
    n_rows: int

    def accuracy(self, right: np.ndarray) -> dict[str, Any]:
        """The share of rows that are right, with its standard error."""
        accuracy = float(self.s @ right / self.s.sum())
        if len(self.units):  # the sums of those that go together are the terms
            terms = np.bincount(self.units, self.s * (right - accuracy))
            error = np.linalg.norm(terms) * np.sqrt(len(terms) / max(1, len(terms) - 1))
        else:
            error = np.sqrt(np.square(self.s) @ np.square(right - accuracy))
        error = float(error / self.s.sum())
        return {"rows": self.rows, "n_rows": self.n_rows, "accuracy": accuracy, "accuracy_error": error}


def _judged(fit: PreparedFit, result: FitResult, model: Model) -> _Judged:
    """Judgements of some rows of the first pass."""
    sample = fit.statistics.sample()
    assert sample.y is not None
    weights = np.ones(len(sample.rows)) if sample.sample_weight is None else sample.sample_weight
    kept = np.flatnonzero(weights > 0)
    # Evenly spaced, since the sample is in row order, which may be by class or by time.
    kept = kept[:: max(1, -(-len(kept) // _JUDGED_ROWS))]
    keys, y, s = sample.keys.chosen(kept), sample.y[kept], weights[kept]
    judges, F = replace(model, fold_models=result.fold_models).judged(keys)
    if not len(F):  # the folds hold out none of these rows
        return _judged(fit, replace(result, fold_models=None), model)
    rows = np.arange(len(y)) if judges.rows is None else judges.rows
    where, units = "the rows of the fit", None
    if result.fold_models is not None:
        where, units = "out of fold", fit.problem.folds.units(keys)
    if units is None and judges.rows is not None:
        units = np.arange(len(y))  # judgements of one row are no more independent than the rows of a group
    together = np.empty(0, np.int64) if units is None else np.unique(units[rows], return_inverse=True)[1]
    return _Judged(F, y[rows], s[rows] * judges.shares(), together, where, len(np.unique(rows)))


# Are rows near each other alike? A cheap look at runs of rows, by kernel ridge of the fit's own map.

_PARTS = 12  # stretches of the rows, each one of their runs, or as many parts of a column's values
_DEALS = 39  # exchangeable rows are taken for others in one table of forty at most
_CLEARLY = 1.05  # of root mean squares
# A smooth function of numbers loses some as well where whole values are held out: 1.12 at most in five public
# tables, where subjects had 2.8.
_CLEARLY_BY_COLUMN = 1.25
_NEGLIGIBLE = 1e-4  # of the targets' variance
_LEAST_ROWS = 100
_ROWS_OF_PENALTY = 256
_PENALTIES = (1e-6, 1e-4, 1e-2, 1.0)  # of the mean of the kernel's diagonal
_MOST_DENSE_FEATURES = 4096


def exchangeability_of_fit(fit: PreparedFit, result: FitResult) -> dict[str, Any] | None:
    """`exchangeability` of neighbouring rows; None where folds or rows tell nothing of it."""
    # Whoever chose other folds knows how new rows will come.
    if not fit.problem.held_out.rows_are_exchangeable:
        return None
    rows = fit.statistics.neighbours()
    assert rows.y is not None
    Y, s = fit.targets.encode(rows.y), fit.targets.row_weights(rows.y, rows.sample_weight)
    s = np.ones(len(Y)) if s is None else s
    if len(kept := np.flatnonzero(s > 0)) < _LEAST_ROWS:
        return None
    X = chosen_rows(rows.X, kept)
    others = () if fit.dataset.is_sparse else parts_by_columns(X, fit.dataset.column_names)
    with one_blas_thread():  # the same bits whatever the client's threads
        F = _kernel_or_features(fit, result.features or fit.features, X)
        return None if F is None else exchangeability(F, Y[kept], s[kept], fit.problem.seed, others)


def _kernel_or_features(fit: PreparedFit, features: Any, X: Any) -> np.ndarray | None:
    X = fit.scaling.apply(X, np.dtype(np.float64))
    specification, kernel = features.specification_, getattr(features, "kernel_", None)
    if Trait.SPARSE in specification.traits or specification.n_features <= _MOST_DENSE_FEATURES:
        Z = in_float64(specification.build().apply(X))
        F = _smaller(Z) if isinstance(Z, np.ndarray) else dense_rows(Z @ Z.T)
    elif kernel is not None and Trait.TREND not in specification.traits:
        F = kernel(X)
    else:
        return None
    return F if np.isfinite(F).all() and 0 < _trace(F) < np.inf else None


def _smaller(Z: np.ndarray) -> np.ndarray:
    """Features far fewer than the rows, or their kernel matrix: of 1,000 rows its inverse takes 40 ms."""
    return Z if _are_features(Z) else Z @ Z.T


def _are_features(F: np.ndarray) -> bool:
    return 2 * F.shape[1] <= len(F)


def _trace(F: np.ndarray) -> float:
    return float(np.square(F).sum() if _are_features(F) else F.trace())


def exchangeability(
    F: np.ndarray, Y: np.ndarray, s: np.ndarray, seed: int, others: Iterable[tuple[str, np.ndarray]] = ()
) -> dict[str, Any] | None:
    """Whether rows in order are predicted worse from farther ones than from all others.

    Kernel ridge is judged on each of 12 stretches of the rows by a model of the other stretches, and again
    where the rows are dealt to stretches at random. Were rows exchangeable, the order of the file would be
    one such deal: it is not if its error is larger than that of each of 39 others. Errors are root mean
    squares in units of `Y`. `F` is the kernel matrix, or features of at most half as many columns as rows.
    `others` are further parts of the rows, with the words for them.
    None where the targets of these rows are all one, or in order, as in a file sorted by classes: a stretch
    then lacks what others have, which says nothing of new rows.
    """
    n, root = len(Y), np.sqrt(s / s.mean())[:, None]
    if _are_in_order(Y):
        return None
    F = root * F if _are_features(F) else root * F * root.T
    Y = root * (Y - s @ Y / s.sum())
    inverse, rng = _regularised_inverse(F, _penalty_of(F, Y)), stream(seed, "exchangeability")
    dual, least = inverse @ Y, _NEGLIGIBLE * np.square(Y).sum()

    def compared(parts: np.ndarray, clearly: float) -> dict[str, Any]:
        error = _left_out_error(inverse, dual, parts)
        deals: list[float] = []
        # Two deals tell most tables.
        while len(deals) < 2 or (len(deals) < _DEALS and error > max(clearly**2 * np.mean(deals), least)):
            deals.append(_left_out_error(inverse, dual, rng.permutation(parts)))
        at_random = float(np.mean(deals)) or np.finfo(float).tiny
        return {
            "error_random": float(np.sqrt(at_random / n)),
            "error_held_out": float(np.sqrt(error / n)),
            "ratio": float(np.sqrt(error / at_random)),
            "alarm": bool(len(deals) == _DEALS and error > max(deals)),
        }

    found = compared(np.arange(n) * _PARTS // n, _CLEARLY)
    also = [{"rows": words} | compared(parts, _CLEARLY_BY_COLUMN) for words, parts in others]
    return found | {"also": also}


def _are_in_order(Y: np.ndarray) -> bool:
    """Whether each column rises or falls all along, or to one end and back as that of a class in one run."""
    signs = [np.sign(steps[steps != 0]) for steps in np.diff(Y, axis=0).T]
    return all(np.count_nonzero(np.diff(sign)) <= 1 for sign in signs)


def _penalty_of(F: np.ndarray, Y: np.ndarray) -> float:
    """The penalty of the least leave-one-out error."""
    some = slice(None, None, -(-len(F) // _ROWS_OF_PENALTY))
    F, Y = _smaller(F[some]) if _are_features(F) else F[some, some], Y[some]

    def error_of(penalty: float) -> float:
        inverse = _regularised_inverse(F, penalty)
        return float(np.square(inverse @ Y / np.diag(inverse)[:, None]).sum())

    return min((share * _trace(F) / len(F) for share in _PENALTIES), key=error_of)


def _regularised_inverse(F: np.ndarray, penalty: float) -> np.ndarray:
    """A = (K + penalty·I)⁻¹, whose product with Y are the dual coefficients; of features, K = F·Fᵀ."""
    if _are_features(F):  # Woodbury: A = (I − F·M⁻¹·Fᵀ)/penalty with M = Fᵀ·F + penalty·I
        W = solve_factor(factor(F.T @ F + penalty * np.eye(F.shape[1]), overwrite=True), F.T)
        A = W.T @ (W / -penalty)
        A.flat[:: len(A) + 1] += 1 / penalty
        return A
    A = np.array(F, order="F")  # by columns, as LAPACK has them
    A.flat[:: len(A) + 1] += penalty
    A = inverse_of_factor(factor(A, overwrite=True, clean=False), overwrite=True)
    for j in range(1, len(A)):  # without temporary arrays, which took half of the time
        A[:j, j] = A[j, :j]
    return A


def _left_out_error(inverse: np.ndarray, dual: np.ndarray, parts: np.ndarray) -> float:
    """Σ of squared errors of rows by models of all rows but those of their part.

    The residuals of a part b are (A_bb)⁻¹(A·Y)_b (Rasmussen and Williams 2006, 5.4.2, for single rows).
    """
    error = 0.0
    for part in np.unique(parts):
        own = np.flatnonzero(parts == part)
        error += np.square(np.linalg.solve(inverse[np.ix_(own, own)], dual[own])).sum()
    return error


# By names: places and times, in whose order a file need not be.
_PLACES = [pair.split() for pair in ("lon lat", "lng lat", "longitude latitude", "easting northing", "x y")]
_TIMES = [[name] for name in ("time", "timestamp", "datetime", "date", "day", "year", "t")]
_LEAST_VALUES, _ROWS_OF_VALUE = 20, 8
_MOST_COLUMNS, _MOST_GROUPS = 256, 8  # among which groups are looked for, and those that are judged


def parts_by_columns(X: np.ndarray, names: Sequence[str] | None) -> Iterator[tuple[str, np.ndarray]]:
    """Yield parts of the rows by columns that look like places, a time or groups, and words for them."""
    by_name, used = {name.lower(): j for j, name in enumerate(names or ())}, set[int]()
    for word, marks in (("blocks", _PLACES), ("spans", _TIMES)):
        for columns in ([by_name[name] for name in mark] for mark in marks if by_name.keys() >= {*mark}):
            used |= {*columns}
            parts = _cells(X[:, columns])
            # A model of the others needs some.
            if np.bincount(parts).max() <= len(X) / 2:
                yield f"{word} of {columns_called(columns, names)}", parts
    others = (j for j in range(min(X.shape[1], _MOST_COLUMNS)) if j not in used)
    dealt = ((j, _dealt_values(X[:, j])) for j in others if (X[:, j] == np.round(X[:, j])).all())
    for j, parts in islice(((j, parts) for j, parts in dealt if parts is not None), _MOST_GROUPS):
        yield f"values of {columns_called([j], names)}", parts


def _cells(places: np.ndarray) -> np.ndarray:
    """The number of the cell of each place, between quantiles of the columns."""
    cells, n_spans = np.zeros(len(places), np.intp), int(_PARTS ** (1 / places.shape[1]))
    for column in places.T:
        # The rank of the first of equal values: they are in one span.
        ranks = np.searchsorted(np.sort(column), column)
        cells = n_spans * cells + ranks * n_spans // len(column)
    return cells


def _dealt_values(values: np.ndarray) -> np.ndarray | None:
    """Values dealt to parts at random; None of few values, or of few rows a value."""
    found, of_row, counts = np.unique(values, return_inverse=True, return_counts=True)
    if len(found) < _LEAST_VALUES or max(len(found), counts.max()) > len(values) / _ROWS_OF_VALUE:
        return None
    return stream(0, "values").permutation(len(found))[of_row] % _PARTS
