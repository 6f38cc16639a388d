"""Scores of predicted numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.metrics.sums import Pairs
from distrff.scores.squared_errors import SquaredErrors, SquaredErrorStatistic, r2_scores


def r2_score(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Any:
    """Return r² = 1 − Σs(ŷ − y)²/Σs(y − ȳ)², the share of the targets' variance explained.

    Parameters
    ----------
    y_true, y_pred : array-like or dask array of shape (n,) or (n, k)
    sample_weight : array-like or dask array of shape (n,), optional
    multioutput : {"uniform_average", "raw_values", "variance_weighted"} or array-like of shape (k,)
        How the targets' r² are averaged, if they are.

    Returns
    -------
    float, or ndarray of shape (k,) for raw values
        Of a constant target 1 if it is predicted without error, else 0.

    Raises
    ------
    InputError
        If shapes differ, there are fewer than two rows, a value is missing or no number, or all weights
        are zero.

    Notes
    -----
    One pass; as scikit-learn's `r2_score`, merged without cancellation.
    """
    sums = _squared_errors(y_true, y_pred, sample_weight)
    if sums.n_rows < 2:
        raise InputError("r2_score needs at least two rows, got 1")
    spread = sums.targets.deviations
    return _averaged(r2_scores(sums.squared_error, sums.targets), multioutput, spread)


def mean_squared_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Any:
    """Return Σs(ŷ − y)²/Σs.

    Parameters, errors and cost as of `r2_score`; targets are averaged alike, or not at all
    ("raw_values").
    """
    sums = _squared_errors(y_true, y_pred, sample_weight)
    return _averaged(sums.squared_error / sums.targets.weight, multioutput, None)


def _squared_errors(y_true: Any, y_pred: Any, sample_weight: Any) -> SquaredErrors:
    pairs = Pairs.of(y_true, y_pred, sample_weight)
    n_targets, n_predicted = pairs.shape
    if n_targets != n_predicted:
        raise InputError(
            f"y_true has {n_targets} column(s) but y_pred has {n_predicted}; score like with like"
        )
    sums: SquaredErrors = pairs.summed("squared errors", SquaredErrorStatistic(n_targets))
    if not sums.targets.weight > 0:
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    return sums


def _averaged(values: np.ndarray, multioutput: Any, spread: np.ndarray | None) -> Any:
    if isinstance(multioutput, str):
        if multioutput == "raw_values":
            return values
        if multioutput == "variance_weighted" and spread is not None:
            return float(np.average(values, weights=spread) if spread.any() else values.mean())
        if multioutput != "uniform_average":
            known = "'uniform_average', 'raw_values'" + (
                ", 'variance_weighted'" if spread is not None else ""
            )
            raise InputError(f"multioutput must be one of {known} or weights, got {multioutput!r}")
        return float(values.mean())
    weights = np.asarray(multioutput, dtype=np.float64)
    if weights.shape != values.shape or not weights.sum() > 0:
        raise InputError(
            f"multioutput must hold one weight for each of {len(values)} targets, got {multioutput!r}"
        )
    return float(np.average(values, weights=weights))
