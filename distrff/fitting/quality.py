"""How good a fitted model is, from what the fit has summed already: no pass over the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.fitting.context import PreparedFit
from distrff.fitting.moments import ColumnStatistics
from distrff.fitting.result import FitResult
from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets, MultilabelTargets
from distrff.utils.arrays import chosen_rows

_JUDGED_ROWS = 2000  # an accuracy of .9 is then known to 0.7 %


def quality_of_fit(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any] | None:
    """Return the model's error beside that of simpler ones, as data for JSON; None of a fit without targets.

    Numbers: R² and RMSE of all targets together, from the criterion that chose the penalty where there is
    one, beside the RMSE of the targets' mean and of a linear model. Classes: the accuracy on some rows
    of the first pass, with its standard error, beside the mean recall and the accuracy of the most frequent
    class on the same rows: by its share in all rows, a model that always says this class would seem better or
    worse than it is.
    """
    if isinstance(fit.targets, ClassTargets):
        return _of_classes(fit, result, model)
    if isinstance(fit.targets, MultilabelTargets):
        return _of_labels(fit, result, model)
    return quality_of_numbers(fit.statistics, result)


def quality_of_numbers(statistics: ColumnStatistics, result: FitResult) -> dict[str, Any] | None:
    """Return the same of numbers, whose sums are all that it takes; None without numeric targets."""
    targets, together = statistics.targets, statistics.together
    if targets is None:
        return None
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
    F, y, s = _judged(fit, result, model)
    majority = labels.labels[[int(labels.weights.argmax())]]
    chosen, known = model.targets.chosen(F), model.targets.indices(y)
    right = chosen == known
    is_constant = (chosen == chosen[0]).all() and (known != known[0]).any()
    return {
        "kind": "classes",
        **_accuracy(right, s, result),
        "balanced_accuracy": _mean_recall(right, known, s),
        "only_class": model.targets.classes[chosen[:1]].tolist()[0] if is_constant else None,
        "majority": majority.tolist()[0],
        "majority_accuracy": float(s @ (known == model.targets.indices(majority)) / s.sum()),
    }


def _mean_recall(right: np.ndarray, known: np.ndarray, s: np.ndarray) -> float:
    """Return the mean over the classes among the rows of the share that is right."""
    classes, of_row = np.unique(known, return_inverse=True)
    weights = np.bincount(of_row, s, len(classes))
    return float((np.bincount(of_row, s * right, len(classes)) / weights).mean())


def _of_labels(fit: PreparedFit, result: FitResult, model: Model) -> dict[str, Any]:
    assert fit.statistics.targets is not None
    F, y, s = _judged(fit, result, model)
    has_label, is_usual = fit.targets.encode(y) > 0, fit.statistics.targets.mean > 0.5
    wrong, constant = (F > 0) != has_label, has_label != is_usual
    return {
        "kind": "labels",
        **_accuracy(~wrong.any(axis=1), s, result),
        "hamming_loss": float((s @ wrong).mean() / s.sum()),
        "constant_hamming_loss": float((s @ constant).mean() / s.sum()),
    }


def _judged(fit: PreparedFit, result: FitResult, model: Model) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return decision values, targets and weights of some rows of the first pass."""
    sample, folds = fit.statistics.sample(), result.fold_models
    assert sample.y is not None
    weights = np.ones(len(sample.rows)) if sample.sample_weight is None else sample.sample_weight
    kept = np.flatnonzero(weights > 0)
    kept = kept[:: max(1, -(-len(kept) // _JUDGED_ROWS))]
    X, rows = chosen_rows(sample.X, kept), sample.rows[kept]
    F = model.decision(X) if folds is None else folds.output(model, X, rows, "decision")
    return F, sample.y[kept], weights[kept]


def _accuracy(right: np.ndarray, s: np.ndarray, result: FitResult) -> dict[str, Any]:
    """Return the share of rows that are right, with its standard error."""
    accuracy = float(s @ right / s.sum())
    return {
        "rows": "the rows of the fit" if result.fold_models is None else "out of fold",
        "n_rows": len(right),
        "accuracy": accuracy,
        "accuracy_error": float(np.sqrt(np.square(s) @ np.square(right - accuracy)) / s.sum()),
    }
