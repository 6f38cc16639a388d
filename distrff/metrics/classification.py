"""Scores of predicted labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.metrics.sums import Pairs
from distrff.scores.pair_counts import PairCounts, PairCountStatistic

_NORMALIZED = (None, "true", "pred", "all")


def confusion_matrix(
    y_true: Any, y_pred: Any, *, labels: Any = None, sample_weight: Any = None, normalize: str | None = None
) -> np.ndarray:
    """Return C with C[i, j] the rows of label i that were predicted as label j.

    Parameters
    ----------
    y_true, y_pred : array-like or dask array of shape (n,)
        Labels of any type that sorts, at most 10,000 different ones.
    labels : array-like of shape (k,), optional
        Which labels, and their order; rows of others are left out. Default: all that occur, sorted.
    sample_weight : array-like or dask array of shape (n,), optional
    normalize : {None, "true", "pred", "all"}
        Divide by the sums of rows, of columns, or of all.

    Returns
    -------
    ndarray of shape (k, k)
        int64 without weights and `normalize`, else float64.

    Raises
    ------
    InputError
        If lengths differ, a label is missing or a fraction, or none of `labels` is in `y_true`.

    Notes
    -----
    One pass; as scikit-learn's `confusion_matrix`.
    """
    if normalize not in _NORMALIZED:
        raise InputError(f"normalize must be one of {_NORMALIZED}, got {normalize!r}")
    counts = _pair_counts(y_true, y_pred, sample_weight)
    chosen = counts.labels if labels is None else np.asarray(labels).ravel()
    if labels is not None and not np.isin(chosen, counts.labels[counts.pairs[:, 0]]).any():
        raise InputError(f"none of labels={chosen.tolist()} is in y_true; give labels that occur")
    C = counts.matrix(chosen)
    if normalize is None:
        return C.astype(np.int64) if sample_weight is None else C
    axes = {"true": {"axis": 1, "keepdims": True}, "pred": {"axis": 0, "keepdims": True}, "all": {}}
    total = C.sum(**axes[normalize])  # type: ignore[call-overload]
    return np.divide(C, total, out=np.zeros_like(C), where=total > 0)


def accuracy_score(y_true: Any, y_pred: Any, *, normalize: bool = True, sample_weight: Any = None) -> float:
    """Return the share of weight that is labelled rightly, or with ``normalize=False`` that weight itself.

    Parameters and errors as of `confusion_matrix`; one pass, as scikit-learn's `accuracy_score`.
    """
    counts = _pair_counts(y_true, y_pred, sample_weight)
    return counts.agreeing / float(counts.weights.sum()) if normalize else counts.agreeing


def _pair_counts(y_true: Any, y_pred: Any, sample_weight: Any) -> PairCounts:
    counts: PairCounts = Pairs.of(y_true, y_pred, sample_weight).summed(
        "pairs of labels", PairCountStatistic()
    )
    if not counts.weights.sum() > 0:
        raise InputError("all sample weights are zero; give at least one row a positive weight")
    return counts
