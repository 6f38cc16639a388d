"""Scores of predictions on NumPy and dask arrays, with the names, arguments and values of scikit-learn.

Blocks of dask arrays are summed where they are, in one pass. Only `roc_auc_score` gathers all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from itertools import chain
from typing import TYPE_CHECKING, Any

import dask
import numpy as np
import pandas as pd
from sklearn import metrics as sklearn_metrics

from distrff.errors import DataWarning, InputError, warn
from distrff.io.arrays import (
    check_dask_array,
    frame_arrays,
    in_chunks,
    in_native,
    is_dask_array,
    is_frame,
    paired,
    plain_array,
    targets_of,
    weights_of,
)
from distrff.io.dataset import check_finite, check_weights
from distrff.preprocessing.coding import Moments, plain_values, r2_scores
from distrff.utils.arrays import as_columns
from distrff.utils.random import group_of, new_key

if TYPE_CHECKING:  # see io.arrays
    import dask.array as da

__all__ = [
    "accuracy_score",
    "confusion_matrix",
    "log_loss",
    "mean_squared_error",
    "r2_score",
    "roc_auc_score",
]

MAX_LABELS = 10_000
_MERGED_AT_ONCE = 16
_NO_WEIGHT = "all sample weights are zero; give at least one row a positive weight"


# Scores of regressions.


def r2_score(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Any:
    """R² = 1 − Σs(ŷ − y)²/Σs(y − ȳ)², the share of the targets' variance explained.

    Parameters
    ----------
    y_true, y_pred : array-like or dask array of shape (n,) or (n, k)
    sample_weight : array-like or dask array of shape (n,), optional
    multioutput : {"uniform_average", "raw_values", "variance_weighted"} or array-like of shape (k,)
        Whether and how r² is averaged over targets.

    Returns
    -------
    float, or ndarray of shape (k,) for raw values
        For a constant target 1 if it is predicted without error, else 0.

    Raises
    ------
    InputError
        If shapes differ, there are fewer than two rows, a value is missing or not a number, or all weights
        are zero.

    Notes
    -----
    One pass; as scikit-learn's `r2_score`, with blocks merged without cancellation.
    """
    squared_error, targets, n_rows = _squared_errors(y_true, y_pred, sample_weight)
    if n_rows < 2:
        raise InputError("r2_score needs at least two rows, got 1")
    return _averaged(r2_scores(squared_error, targets), multioutput, targets.deviations)


def mean_squared_error(
    y_true: Any, y_pred: Any, *, sample_weight: Any = None, multioutput: Any = "uniform_average"
) -> Any:
    """Σs(ŷ − y)²/Σs.

    Parameters, errors and cost as for `r2_score`, without "variance_weighted".
    """
    squared_error, targets, _ = _squared_errors(y_true, y_pred, sample_weight)
    return _averaged(squared_error / targets.weight, multioutput)


def _squared_errors(y_true: Any, y_pred: Any, sample_weight: Any) -> tuple[np.ndarray, Moments, int]:
    """Σs(ŷ − y)² of each target, the targets' moments, and the number of rows."""
    rows = _rows(y_true, y_pred, sample_weight)
    n_targets, n_predicted = map(_width, rows[:2])
    if n_targets != n_predicted:
        raise InputError(
            f"y_true has {n_targets} column(s) but y_pred has {n_predicted}; they must have the same number"
        )
    # Deviations are merged as moments: Σy² − (Σy)²/n would cancel for targets far from zero.
    squared_error, targets = _summed(_block_errors, rows, _merged_errors)
    if not targets.weight > 0:
        raise InputError(_NO_WEIGHT)
    return squared_error, targets, len(rows[0])


def _block_errors(y: np.ndarray, p: np.ndarray, s: np.ndarray) -> tuple[np.ndarray, Moments]:
    Y, P = _numbers("y_true", y), _numbers("y_pred", p)
    return s @ np.square(P - Y), Moments.of(Y, s)


def _merged_errors(parts: list[tuple[np.ndarray, Moments]]) -> tuple[np.ndarray, Moments]:
    squared_errors, targets = zip(*parts, strict=True)
    return np.sum(squared_errors, axis=0), reduce(Moments.merge, targets)


def _averaged(values: np.ndarray, multioutput: Any, spread: np.ndarray | None = None) -> Any:
    weights = None
    if not isinstance(multioutput, str):
        weights = np.asarray(multioutput, dtype=np.float64)
        if weights.shape != values.shape or not weights.sum() > 0:
            raise InputError(
                f"multioutput must hold one weight for each of {len(values)} targets, got {multioutput!r}"
            )
    elif multioutput == "raw_values":
        return values
    elif multioutput == "variance_weighted" and spread is not None:
        # As scikit-learn: targets that are all constant count alike.
        weights = spread if spread.any() else None
    elif multioutput != "uniform_average":
        known = "'uniform_average', 'raw_values'" + ("" if spread is None else ", 'variance_weighted'")
        raise InputError(f"multioutput must be one of {known} or weights, got {multioutput!r}")
    return float(np.average(values, weights=weights))


# Scores of classifications.


def confusion_matrix(
    y_true: Any, y_pred: Any, *, labels: Any = None, sample_weight: Any = None, normalize: str | None = None
) -> np.ndarray:
    """C, where C[i, j] counts the rows of label i that were predicted as label j.

    Parameters
    ----------
    y_true, y_pred : array-like or dask array of shape (n,)
        Labels of any type that sorts, at most 10,000 different ones.
    labels : array-like of shape (k,), optional
        Labels in order; rows with other labels are left out. Default: all that occur, sorted.
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
        If lengths differ, a label is missing or a fraction, or none of `labels` occurs in `y_true`.

    Notes
    -----
    One pass; as scikit-learn's `confusion_matrix`.
    """
    if normalize not in (None, "true", "pred", "all"):
        raise InputError(f"normalize must be None, 'true', 'pred' or 'all', got {normalize!r}")
    rows = _rows(y_true, y_pred, sample_weight, labels=("y_true", "y_pred"))
    counts = _summed(_block_pairs, rows, _merged_pairs)
    if not counts.sum() > 0:
        raise InputError(_NO_WEIGHT)
    y, p = (counts.index.get_level_values(i).to_numpy() for i in (0, 1))
    s = counts.to_numpy(np.int64 if sample_weight is None else np.float64)
    with _refused_by_sklearn():
        return sklearn_metrics.confusion_matrix(y, p, labels=labels, sample_weight=s, normalize=normalize)


def _block_pairs(y: np.ndarray, p: np.ndarray, s: np.ndarray) -> pd.Series:
    """The weight of each pair of a true and a predicted label."""
    # scikit-learn would refuse a block with none of `labels`, and warn of one with a single label, as blocks
    # of sorted rows have. So it gets the pairs of all rows.
    return _merged_pairs([pd.Series(s, pd.MultiIndex.from_arrays([_of_one_type(y, p), p]))])


def _merged_pairs(parts: list[pd.Series]) -> pd.Series:
    counts = pd.concat(parts).groupby(level=[0, 1], sort=False).sum()
    if max(map(len, counts.index.levels)) > MAX_LABELS:
        raise InputError(f"there are more than {MAX_LABELS} different labels; are they numbers?")
    return counts


def accuracy_score(y_true: Any, y_pred: Any, *, normalize: bool = True, sample_weight: Any = None) -> float:
    """The share of weight with correct labels, or with ``normalize=False`` that weight itself.

    Parameters and errors as for `confusion_matrix`; one pass, as scikit-learn's `accuracy_score`, or for dask
    arrays that of dask-ml.
    """
    y, p, s = _rows(y_true, y_pred, sample_weight, labels=("y_true", "y_pred"))
    weight = s.sum()
    if is_dask_array(y):
        # Imported here, since it takes 2.5 s and 305 MB. Its r2_score and log_loss cannot be used.
        import dask.array as da
        from dask_ml import metrics as dask_metrics

        y = da.blockwise(
            _of_one_type, "i", y, "i", p, "i", token=group_of("score"), meta=np.empty(0, y.dtype)
        )
        right = dask_metrics.accuracy_score(y, p, normalize=False, sample_weight=s, compute=False)
        right, weight = dask.compute(right, weight)
    else:
        with _refused_by_sklearn():
            right = sklearn_metrics.accuracy_score(y, p, normalize=False, sample_weight=s)
    if not weight > 0:
        raise InputError(_NO_WEIGHT)
    return float(right / weight if normalize else right)


def _of_one_type(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """y itself; InputError for text compared with numbers, which dask-ml would count as unequal."""
    if len(y) and isinstance(y[0], str) != isinstance(p[0], str):
        raise InputError(f"labels of different types: y_true has {y[0]!r}, y_pred {p[0]!r}; use one type")
    return y


# Scores of predicted probabilities and decision values.


def log_loss(
    y_true: Any, y_proba: Any, *, normalize: bool = True, sample_weight: Any = None, labels: Any = None
) -> float:
    """The mean of −log of the probability predicted for the true label.

    Parameters
    ----------
    y_true : array-like or dask array of shape (n,)
    y_proba : array-like or dask array of shape (n, k) or (n,)
        Probabilities of the sorted labels; with shape (n,), of the second of two. They are clipped to
        [ε, 1 − ε] with the ε of their dtype.
    normalize : bool
        Whether to return the mean, not the sum.
    sample_weight : array-like or dask array of shape (n,), optional
    labels : array-like of shape (k,), optional
        All labels; default: those of `y_true`, which takes another pass over it.

    Raises
    ------
    InputError
        If shapes do not fit, a value is missing or outside of [0, 1], or a label is not among `labels`.

    Notes
    -----
    As scikit-learn's `log_loss`. A `DataWarning` counts rows with probabilities that do not sum to one.
    """
    rows = _rows(y_true, y_proba, sample_weight, "y_proba", labels=("y_true",))
    known = np.ravel(labels) if labels is not None else _summed(_unique, rows[:1], _merged_labels)
    # One column is of the second of two labels.
    known = _known(known, max(2, _width(rows[1])), "y_proba")
    loss, weight, n_off = _summed(partial(_block_loss, labels=known), rows, sum)
    if not weight > 0:
        raise InputError(_NO_WEIGHT)
    if n_off:
        warn(
            f"y_proba does not sum to one in {int(n_off)} rows; pass what predict_proba returns", DataWarning
        )
    return float(loss / weight if normalize else loss)


def _block_loss(y: np.ndarray, P: np.ndarray, s: np.ndarray, *, labels: np.ndarray) -> np.ndarray:
    """The sum of the loss, that of the weights, and how many rows' probabilities do not sum to one."""
    P = as_columns(P)
    if ((P < 0) | (P > 1)).any():
        raise InputError(
            f"y_proba has {P[(P < 0) | (P > 1)][0]:g}, which is no probability; "
            f"pass what predict_proba returns"
        )
    P = np.hstack([1 - P, P]) if P.shape[1] == 1 else P
    # Not scikit-learn's log_loss: its warning about sums would be lost on the worker, and it sums in float32.
    eps = np.finfo(P.dtype).eps
    # The ε of the dtype of P, as scikit-learn has it: a float32 probability of 1 is known to 1e-7 alone.
    losses = -np.log(np.clip(P[_one_hot(y, labels)], eps, 1 - eps), dtype=np.float64)
    # One array of three sums, which blocks add as they are.
    return np.array([s @ losses, s.sum(), np.sum(np.abs(P.sum(axis=1) - 1) > np.sqrt(eps))])


def roc_auc_score(
    y_true: Any,
    y_score: Any,
    *,
    average: str | None = "macro",
    sample_weight: Any = None,
    multi_class: str = "raise",
    labels: Any = None,
) -> Any:
    """The exact area under the ROC curve; ties count half.

    Parameters
    ----------
    y_true : array-like or dask array of shape (n,)
    y_score : array-like or dask array of shape (n,), or (n, k) for more than two labels
        Decision values or probabilities of the second label, or of each label.
    average : {"macro", "weighted", None}
        For several labels: the mean of the areas, their mean weighted by the labels' rows, or all areas.
    sample_weight : array-like or dask array of shape (n,), optional
    multi_class : {"raise", "ovr"}
        "ovr": each label against the rest; "raise": refuse more than two labels.
    labels : array-like of shape (k,), optional
        All labels; default: those of `y_true`.

    Returns
    -------
    float, or ndarray of shape (k,) with ``average=None``

    Raises
    ------
    InputError
        If shapes do not fit, a value is missing, or a label has no weight, so that there is no curve.

    Notes
    -----
    As scikit-learn's `roc_auc_score`, which sorts: one task holds the labels, scores and weights of all rows.
    """
    rows = _rows(y_true, y_score, sample_weight, "y_score", labels=("y_true",))
    n_columns = _width(rows[1])
    if multi_class not in ("raise", "ovr") or average not in ("macro", "weighted", None):
        raise InputError(
            f"multi_class must be 'raise' or 'ovr' and average 'macro', 'weighted' or None, "
            f"got {multi_class!r} and {average!r}"
        )
    if n_columns == 2:
        raise InputError("y_score has two columns; pass those of the second label, y_score[:, 1]")
    if n_columns > 1 and multi_class == "raise":
        raise InputError(f"y_score has {n_columns} columns; pass multi_class='ovr'")
    # An area is of ranks among all rows, which no sum over blocks has.
    if is_dask_array(rows[0]):
        rows = [A.rechunk(-1) for A in rows]
    return _summed(partial(_block_area, labels=labels, average=average), rows)


def _block_area(y: np.ndarray, S: np.ndarray, s: np.ndarray, *, labels: Any, average: Any) -> Any:
    S = _numbers("y_score", S)
    Y = _one_hot(y, _known(y if labels is None else np.ravel(labels), max(2, S.shape[1]), "y_score"))
    # scikit-learn warns and returns NaN where a curve has one kind of rows.
    if not Y[s > 0].any(axis=0).all():
        raise InputError("y_true has a label without rows of positive weight: there is no ROC curve then")
    if S.shape[1] == 1:
        Y, S = Y[:, 1], S[:, 0]
    # For several classes scikit-learn takes only probabilities; for as many binary labels, any scores.
    return sklearn_metrics.roc_auc_score(Y, S, average=average, sample_weight=s)


# Labels of any type that sorts.


def _unique(y: np.ndarray) -> np.ndarray:
    try:
        labels = np.unique(y)
    except TypeError as error:
        raise InputError(f"labels of different types cannot be compared ({error}); use one type") from error
    # Numbers by mistake would make a label of each row, and a matrix of their square.
    if len(labels) > MAX_LABELS:
        raise InputError(f"there are more than {MAX_LABELS} different labels; are they numbers?")
    return labels


def _merged_labels(parts: list[np.ndarray]) -> np.ndarray:
    return _unique(np.concatenate(parts))


def _known(y: np.ndarray, n_columns: int, name: str) -> np.ndarray:
    """The sorted labels in y, one for each column."""
    labels = _unique(y)
    if n_columns != len(labels):
        raise InputError(
            f"{name} is for {n_columns} labels, but there are {len(labels)}: {labels[:20].tolist()}; "
            f"give all labels as labels=…"
        )
    return labels


def _one_hot(y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    Y = y[:, None] == labels
    known = Y.any(axis=1)
    if not known.all():
        raise InputError(
            f"y_true has the label {y[~known].tolist()[0]!r}, which is not among the labels; "
            f"give all labels as labels=…"
        )
    return Y


# Checked rows of any kind, and sums over their blocks.


def _rows(
    y_true: Any, y_pred: Any, sample_weight: Any, prediction: str = "y_pred", labels: tuple[str, ...] = ()
) -> list[Any]:
    """True values, predictions and weights, all as NumPy arrays or all as dask arrays.

    Arrays named in `labels` become 1-D. Values of dask arrays are checked when their blocks are computed.
    """
    # Lazy frames have lengths only together: apart, rows of one could meet other rows of another.
    given = paired({"y_true": y_true, prediction: y_pred, "sample_weight": sample_weight})[0]
    weight = given.pop("sample_weight")
    arrays = {name: _array(name, values) for name, values in given.items()}
    n = arrays["y_true"].shape[0] if arrays["y_true"].ndim else 0
    if weight is not None:
        arrays["sample_weight"] = _array("sample_weight", weight)
    elif any(map(is_dask_array, arrays.values())):
        import dask.array as da

        arrays["sample_weight"] = da.ones(n)
    else:
        arrays["sample_weight"] = np.ones(n)
    for name, A in arrays.items():
        one_column = name in (*labels, "sample_weight")
        if A.ndim not in (1, 2) or A.shape[1:] == (0,) or (one_column and _width(A) > 1):
            columns = "one column" if one_column else "one row for each sample"
            raise InputError(f"{name} must be {columns}, got shape {A.shape}")
        if A.dtype.kind == "c":
            raise InputError(f"Complex data not supported: {name} is complex")
        if A.shape[0] != n:
            raise InputError(
                f"y_true has {n} rows but {name} has {A.shape[0]}; they must have the same length"
            )
        arrays[name] = A[:, 0] if one_column and A.ndim == 2 else A
    if not n:
        raise InputError("y_true has no rows; give at least one row to score")
    # Arrays in memory are cut like the first lazy one, so that blocks of all meet in one task.
    row_chunks = next((A.chunks[0] for A in arrays.values() if is_dask_array(A)), None)
    if row_chunks is None:
        return [_checked(A, name, name in labels) for name, A in arrays.items()]
    lazy = {name: _lazy(A, row_chunks) for name, A in arrays.items()}
    return [
        A.map_blocks(
            _checked, name, name in labels, token=group_of("score"), meta=np.empty((0,) * A.ndim, A.dtype)
        )
        for name, A in lazy.items()
    ]


def _lazy(A: Any, row_chunks: tuple[int, ...]) -> da.Array:
    """A dask array with one block across the columns."""
    if not is_dask_array(A):
        return in_chunks(A, (row_chunks, *A.shape[1:]))
    return A.rechunk({1: -1}) if A.ndim == 2 else A


def _array(name: str, values: Any) -> Any:
    if not dask.is_dask_collection(values):
        is_pandas = isinstance(values, pd.Series | pd.DataFrame)
        return targets_of(values)[0] if is_pandas else plain_array(values, name)
    if is_frame(values):
        return frame_arrays({"y": values})[0]["y"]
    check_dask_array(values, name)
    return values


def _checked(values: Any, name: str, is_label: bool, block_info: Any = None) -> np.ndarray:
    """The rows of a block as an array; InputError for values that no score can use."""
    place = block_info[0]["array-location"] if block_info else [(0, n) for n in values.shape]
    start = place[0][0]
    # dask does not look at what the function of a block returns, and rows would be paired with others.
    if values.shape != tuple(stop - start for start, stop in place):
        raise InputError(
            f"a block of {name} has shape {values.shape}, but its dask array declares another; "
            f"the function of a block must return as many rows as it was given"
        )
    if name == "sample_weight":
        values = weights_of(values)
        check_weights(values, start)
        return values
    values = in_native(plain_array(values, name))
    check_finite(name, values, start)
    if not is_label:
        return values
    if values.dtype.kind == "f" and (values != np.floor(values)).any():
        raise InputError(
            f"{name} must hold class labels, got the fraction {values[values != np.floor(values)][0]:g}; "
            f"numbers are scored by r2_score and mean_squared_error"
        )
    if values.dtype.kind in "uf" and np.abs(values).max(initial=0) < 2**63:
        # Of two types NumPy compares integers as floats, which have 53 binary digits.
        return values.astype(np.int64)
    # scikit-learn refuses integers in an array of objects.
    return plain_values(values)


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return as_columns(np.ascontiguousarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers ({error}); for labels use accuracy_score") from error


def _width(A: Any) -> int:
    return int(np.prod(A.shape[1:], dtype=int))


def _summed(
    function: Callable[..., Any], rows: list[Any], merge: Callable[[list[Any]], Any] | None = None
) -> Any:
    """The merged values of `function` of each block of rows."""
    if not is_dask_array(rows[0]):
        return function(*rows)
    import dask.array as da

    # One array of the function's values, so that what y_true and y_pred have in common is computed once:
    # to_delayed() of each would compute it twice. blockwise aligns chunks that differ.
    indices = (index[: A.ndim] for A, index in zip(rows, ("ij", "ik", "i"), strict=False))
    arguments = chain.from_iterable(zip(rows, indices, strict=True))
    found = da.blockwise(
        function, "i", *arguments, concatenate=True, meta=np.empty(0, dtype=object), token=group_of("score")
    )
    parts = found.to_delayed().tolist()
    while len(parts) > 1:
        # As a tree: a single merge would hold the parts of all blocks at once.
        runs = (parts[i : i + _MERGED_AT_ONCE] for i in range(0, len(parts), _MERGED_AT_ONCE))
        parts = [dask.delayed(merge)(run, dask_key_name=new_key("merge")) for run in runs]
    return parts[0].compute()


@contextmanager
def _refused_by_sklearn() -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InputError(str(error)) from error
