"""Scores of predicted probabilities and decision values."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.errors import DataWarning, InputError, warn
from distrff.metrics.sums import Pairs, found_labels
from distrff.scores.log_losses import LogLosses, LogLossStatistic
from distrff.scores.ranked_scores import ColumnRanks, RankStatistic


def log_loss(
    y_true: Any, y_proba: Any, *, normalize: bool = True, sample_weight: Any = None, labels: Any = None
) -> float:
    """Return the mean of −log of the probability that was given to the true label.

    Parameters
    ----------
    y_true : array-like or dask array of shape (n,)
    y_proba : array-like or dask array of shape (n, k) or (n,)
        Probabilities of the sorted labels; (n,): of the second of two. They are clipped to [ε, 1 − ε] with
        the ε of their dtype.
    normalize : bool
        The mean; else the sum.
    sample_weight : array-like or dask array of shape (n,), optional
    labels : array-like of shape (k,), optional
        All labels; default: those of `y_true`, for which it is passed over once more.

    Raises
    ------
    InputError
        If shapes do not fit, a value is missing or outside of [0, 1], or a label is not among `labels`.

    Notes
    -----
    As scikit-learn's `log_loss`. A `DataWarning` tells of rows whose probabilities do not sum to one.
    """
    pairs = Pairs.of(y_true, y_proba, sample_weight, prediction="y_proba")
    known = found_labels(y_true, labels)
    _check_columns(max(2, pairs.shape[1]), known, "y_proba")
    sums: LogLosses = pairs.summed("log losses", LogLossStatistic(known))
    if not sums.weight > 0:
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    if sums.n_not_one:
        warn(
            f"y_proba does not sum to one in {sums.n_not_one} rows; pass what predict_proba returns",
            DataWarning,
        )
    return sums.loss / sums.weight if normalize else sums.loss


def roc_auc_score(
    y_true: Any,
    y_score: Any,
    *,
    average: str | None = "macro",
    sample_weight: Any = None,
    multi_class: str = "raise",
    labels: Any = None,
) -> Any:
    """Return the area under the ROC curve, exactly, ties counting half.

    Parameters
    ----------
    y_true : array-like or dask array of shape (n,)
    y_score : array-like or dask array of shape (n,), or (n, k) of more than two labels
        Decision values or probabilities: of the second label, or of each.
    average : {"macro", "weighted", None}
        Of several labels: the mean, that weighted by the labels' rows, or all areas.
    sample_weight : array-like or dask array of shape (n,), optional
    multi_class : {"raise", "ovr"}
        "ovr": each label against the rest.
    labels : array-like of shape (k,), optional
        All labels; default: those of `y_true`, for which it is passed over once more.

    Returns
    -------
    float, or ndarray of shape (k,) with ``average=None``

    Raises
    ------
    InputError
        If shapes do not fit, a value is missing, or a label has no weight: there is no curve then.

    Notes
    -----
    As scikit-learn's `roc_auc_score`. Blocks are sorted where they are, and sorted runs merged; in the end
    one worker holds 24 bytes for each distinct score of each column, at most 24·n·k bytes.
    """
    pairs = Pairs.of(y_true, y_score, sample_weight, prediction="y_score")
    n_columns = pairs.shape[1]
    if multi_class not in ("raise", "ovr") or average not in ("macro", "weighted", None):
        raise InputError(
            f"multi_class must be 'raise' or 'ovr' and average 'macro', 'weighted' or None, "
            f"got {multi_class!r} and {average!r}"
        )
    known = found_labels(y_true, labels)
    if n_columns == 2:
        raise InputError("y_score has two columns; pass those of the second label, y_score[:, 1]")
    _check_columns(2 if n_columns == 1 else n_columns, known, "y_score")
    if n_columns > 1 and multi_class == "raise":
        raise InputError(f"y_score has {n_columns} columns; ask for multi_class='ovr'")
    ranks: ColumnRanks = pairs.summed("ranked scores", RankStatistic(known, n_columns))
    sizes = np.asarray([column.class_weights for column in ranks.columns])
    if not (sizes > 0).all():
        raise InputError(
            "y_true has a label without rows of positive weight, or no other: there is no ROC curve then"
        )
    areas = np.asarray([column.area() for column in ranks.columns])
    if n_columns == 1:
        return float(areas[0])
    return (
        areas
        if average is None
        else float(np.average(areas, weights=sizes[:, 1] if average == "weighted" else None))
    )


def _check_columns(n_columns: int, labels: np.ndarray, name: str) -> None:
    if n_columns != len(labels):
        raise InputError(
            f"{name} is of {n_columns} labels, but there are {len(labels)}: {labels[:20].tolist()}; "
            f"name all labels in labels=…, in the order of the columns"
        )
