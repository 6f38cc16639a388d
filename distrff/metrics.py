"""Scores of predictions in one or two passes, on NumPy and dask arrays of any chunking.

They are scikit-learn's by name, arguments and value, and are summed where the blocks are: nothing as long as
the rows is brought together, but for what `roc_auc_score` says of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import dask
import dask.array as da
import numpy as np
import pandas as pd

from distrff.engine.reduction import Shipped
from distrff.engine.run import begin_run
from distrff.engine.segments import light_segmentation
from distrff.errors import DataWarning, InputError, InputTypeError, warn
from distrff.io.arrays import (
    ArrayReader,
    check_known_chunks,
    frame_arrays,
    in_native,
    is_frame,
    plain_array,
    targets_of,
    weights_of,
    whole_rows,
)
from distrff.io.dataset import BLOCK_BYTES, Dataset, check_pairs
from distrff.io.rows import Rows
from distrff.preprocessing.scaling import Moments
from distrff.utils.arrays import as_columns

__all__ = [
    "accuracy_score",
    "confusion_matrix",
    "log_loss",
    "mean_squared_error",
    "r2_score",
    "roc_auc_score",
]


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


# Scores of predicted labels.

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


# Scores of predicted probabilities and decision values.


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


# A statistic of truths and predictions, summed by a sweep.


@dataclass(frozen=True)
class Pairs:
    """Truths, predictions and weights, checked for their shapes, and what errors call the predictions."""

    dataset: Dataset
    prediction: str

    @classmethod
    def of(cls, y_true: Any, y_pred: Any, sample_weight: Any, *, prediction: str = "y_pred") -> Pairs:
        """Return what the user gave."""
        return cls(paired_rows(y_true, y_pred, sample_weight, prediction=prediction), prediction)

    @property
    def shape(self) -> tuple[int, int]:
        """Columns of the truths and of the predictions."""
        return self.dataset.n_targets, self.dataset.n_columns

    def summed(self, label: str, statistic: Statistic) -> Any:
        """Return the statistic of all rows, after one pass."""
        run = begin_run()
        cuts = light_segmentation(self.dataset.n_rows, sum(self.shape))
        reduction = PairedReduction(statistic, self.prediction, cuts.tile_rows)
        return run.gather([run.sweep(label, self.dataset, reduction, cuts)])[0]


def found_labels(y_true: Any, labels: Any) -> np.ndarray:
    """Return the sorted labels: those given, or those of the truths, for which they are passed over once.

    Raises
    ------
    InputError
        If there are fewer than two.
    """
    if labels is None:
        found = (
            Pairs.of(y_true, y_true, None, prediction="y_true").summed("labels", PairCountStatistic()).labels
        )
    else:
        found = sorted_labels(np.asarray(labels).ravel())[0]
    if len(found) < 2:
        raise InputError(
            f"y_true has one label only, {found.tolist()}; name all labels in labels=…, and give rows of two"
        )
    return found


# Truths beside predictions as a dataset, so that whatever sweeps rows sweeps them.


def paired_rows(
    y_true: Any, y_pred: Any, sample_weight: Any = None, *, prediction: str = "y_pred"
) -> Dataset:
    """Return a dataset whose y are truths and whose X are predictions, both of any type.

    Parameters
    ----------
    y_true, y_pred : array-like, Series, DataFrame or their dask kinds, of shape (n,) or (n, k)
        Dask arrays may be cut into any chunks.
    sample_weight : the same, of shape (n,), optional
    prediction : str
        What errors call `y_pred`.

    Raises
    ------
    InputError
        If lengths differ, there are no rows, or chunk sizes of a dask array are unknown.
    InputTypeError
        If something is neither an array nor a frame.
    """
    given = {"y": ("y_true", y_true), "X": (prediction, y_pred)}
    if sample_weight is not None:
        given["sample_weight"] = ("sample_weight", sample_weight)
    arrays = {field: _array(field, name, values) for field, (name, values) in given.items()}
    _check_shapes(arrays, {field: name for field, (name, _) in given.items()})
    if any(isinstance(A, da.Array) for A in arrays.values()):
        chunks = next(A.chunks[0] for A in arrays.values() if isinstance(A, da.Array))
        arrays = {field: _lazy(field, A, chunks) for field, A in arrays.items()}
    X, y = arrays["X"], arrays["y"]
    row_bytes = sum(A.dtype.itemsize * _width(A) for A in arrays.values())
    return Dataset(
        reader=ArrayReader(arrays),
        n_rows=len(X),
        n_columns=_width(X),
        dtype=X.dtype,
        source="predictions",
        row_bytes=row_bytes,
        chunk_rows=max(X.chunks[0]) if isinstance(X, da.Array) else max(1, BLOCK_BYTES // row_bytes),
        y_dtype=y.dtype,
        n_targets=_width(y),
        y_is_1d=y.ndim == 1,
        has_weights="sample_weight" in arrays,
    )


def _array(field: str, name: str, values: Any) -> Any:
    if not dask.is_dask_collection(values):
        if field == "sample_weight":
            return weights_of(values)
        if isinstance(values, pd.Series | pd.DataFrame):
            return targets_of(values)[0]
        return in_native(plain_array(values, name))
    if is_frame(values):
        return frame_arrays({"y": values})[0]["y"]
    if not isinstance(values, da.Array):
        raise InputTypeError(
            f"{name} is a dask {type(values).__name__}; pass a dask Array, DataFrame or Series"
        )
    check_known_chunks(values, name)
    return values


def _check_shapes(arrays: dict[str, Any], names: dict[str, str]) -> None:
    n = arrays["y"].shape[0] if arrays["y"].ndim else 0
    for name, A in arrays.items():
        if A.ndim not in ((1,) if name == "sample_weight" else (1, 2)) or A.shape[1:] == (0,):
            raise InputError(f"{names[name]} must have one row for each sample, got shape {A.shape}")
        if A.dtype.kind == "c":
            raise InputError(f"Complex data not supported: {names[name]} is complex")
        if A.shape[0] != n:
            raise InputError(
                f"y_true has {n} rows but {names[name]} has {A.shape[0]}; they must be of the same length"
            )
    if not n:
        raise InputError("y_true has no rows; give at least one to be scored")


def _lazy(field: str, A: Any, row_chunks: tuple[int, ...]) -> da.Array:
    if isinstance(A, np.ndarray):
        # name=False: hashing the data for a name would be a pass over it.
        A = da.from_array(A, chunks=(row_chunks, *A.shape[1:]), name=False)
    return whole_rows(A, field)


def _width(A: Any) -> int:
    return int(np.prod(A.shape[1:], dtype=int))


# The sweep over truths and predictions, whatever is summed of them.


@dataclass(frozen=True)
class PairedReduction:
    """Reduction of rows whose X are predictions and whose y are truths.

    Parameters
    ----------
    statistic : Statistic
    prediction : str
        What errors call the predictions.
    tile_rows : int
    """

    statistic: Statistic
    prediction: str
    tile_rows: int

    def size_bytes(self, n_rows: int) -> int:
        return self.statistic.size_bytes(n_rows)

    def zero(self) -> Any:
        return self.statistic.zero()

    def finish(self, accumulator: Any) -> Any:
        return accumulator

    def update(self, found: Any, rows: Rows, shipped: Shipped) -> Any:
        for block in rows.tiles(self.tile_rows):
            check_pairs(block, self.prediction)
            s = np.ones(len(block.X)) if block.sample_weight is None else block.sample_weight
            found = found.merge(self.statistic.of(block.y, block.X, s, block.start))
        return found

    def merge(self, first: Any, second: Any) -> Any:
        return first.merge(second)


# What a score is made of: a value of some rows, and how values of two sets of rows are merged.


class Summed(Protocol):
    """The value of some rows."""

    def merge(self, other: Self) -> Self:
        """Return the value of both sets of rows; neither is changed."""


class Statistic(Protocol):
    """A monoid over rows of truth, prediction and weight; picklable."""

    def zero(self) -> Any:
        """Return the value of no rows."""

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> Any:
        """Return the value of one block, whose first row has the number `start`."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of the value of that many rows, at most."""


# Squared errors beside the spread of the targets, from which mean squared error and r² follow.


@dataclass(frozen=True)
class SquaredErrors:
    """Sums over rows, target by target.

    Parameters
    ----------
    n_rows : int
    squared_error : ndarray of shape (k,)
        Σ s (ŷ − y)².
    targets : Moments
        Of y.
    """

    n_rows: int
    squared_error: np.ndarray
    targets: Moments

    def merge(self, other: SquaredErrors) -> SquaredErrors:
        """Return the sums of both sets of rows."""
        return SquaredErrors(
            self.n_rows + other.n_rows,
            self.squared_error + other.squared_error,
            self.targets.merge(other.targets),
        )


@dataclass(frozen=True)
class SquaredErrorStatistic:
    """Statistic of `SquaredErrors` of so many targets."""

    n_targets: int

    def zero(self) -> SquaredErrors:
        return SquaredErrors(0, np.zeros(self.n_targets), Moments.empty(self.n_targets))

    def of(
        self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int
    ) -> SquaredErrors:
        Y, P = (_numbers(name, A) for name, A in (("y_true", y_true), ("y_pred", y_pred)))
        s = np.ascontiguousarray(sample_weight)
        return SquaredErrors(len(Y), s @ np.square(P - Y), Moments.of(Y, s))

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 3 * self.n_targets


def r2_scores(squared_error: np.ndarray, targets: Moments) -> np.ndarray:
    """Return 1 − Σs(ŷ − y)²/Σs(y − ȳ)² of each target; of a constant one, 1 without error and else 0."""
    total = np.where(targets.has_one_value(), 0.0, targets.deviations)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = 1.0 - squared_error / total
    return np.where(total > 0, r2, np.where(squared_error > 0, 0.0, 1.0))


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return as_columns(np.ascontiguousarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers ({error}); of labels take accuracy_score") from error


# How often each label is predicted for each true one: confusion matrices and accuracy.


@dataclass(frozen=True)
class PairCounts:
    """Weights of the pairs of a true and a predicted label that occur.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted: all that are true or predicted.
    pairs : int64 ndarray of shape (m, 2)
        Positions of the true and the predicted label, in lexicographic order.
    weights : ndarray of shape (m,)
    """

    labels: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_pairs(cls, labels: np.ndarray, pairs: np.ndarray, weights: np.ndarray) -> PairCounts:
        """Return the counts with the weights of equal pairs added up."""
        k = len(labels)
        codes, index = np.unique(pairs[:, 0] * k + pairs[:, 1], return_inverse=True)
        distinct = np.stack(np.divmod(codes, max(k, 1)), axis=1)
        return cls(labels, distinct, np.bincount(index, weights, len(codes)))

    def merge(self, other: PairCounts) -> PairCounts:
        """Return the counts of both sets of rows."""
        if not len(self.labels) or not len(other.labels):
            return self if len(self.labels) else other
        labels, (mine, its) = sorted_labels(self.labels, other.labels)
        pairs = np.concatenate([mine[self.pairs], its[other.pairs]])
        return PairCounts.of_pairs(labels, pairs, np.concatenate([self.weights, other.weights]))

    def matrix(self, labels: np.ndarray) -> np.ndarray:
        """Return the weights as a matrix over `labels`, (len(labels), len(labels)); other pairs are left out.

        Rows are true labels.
        """
        order = np.argsort(labels, kind="stable")
        found = positions(self.labels, labels[order])
        index = np.where(found < 0, -1, order[found])[self.pairs]
        known = (index >= 0).all(axis=1)
        C = np.zeros((len(labels), len(labels)))
        C[tuple(index[known].T)] = self.weights[known]
        return C

    @property
    def agreeing(self) -> float:
        """The weight of rows whose label is predicted."""
        return float(self.weights[self.pairs[:, 0] == self.pairs[:, 1]].sum())


@dataclass(frozen=True)
class PairCountStatistic:
    """Statistic of `PairCounts`."""

    def zero(self) -> PairCounts:
        return PairCounts(np.empty(0, np.int8), np.empty((0, 2), np.int64), np.empty(0))

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> PairCounts:
        labels, pair = sorted_labels(one_column("y_true", y_true), one_column("y_pred", y_pred))
        return PairCounts.of_pairs(labels, np.stack(pair, axis=1), sample_weight)

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 4 * n_rows


# The weighted sum of −log of the probability that was given to the true class.


@dataclass(frozen=True)
class LogLosses:
    """Σ s·(−log p), Σ s, and how many rows have probabilities that do not sum to one."""

    loss: float = 0.0
    weight: float = 0.0
    n_not_one: int = 0

    def merge(self, other: LogLosses) -> LogLosses:
        """Return the sums of both sets of rows."""
        return LogLosses(self.loss + other.loss, self.weight + other.weight, self.n_not_one + other.n_not_one)


@dataclass(frozen=True)
class LogLossStatistic:
    """Statistic of `LogLosses`; probabilities of one column are those of the second of two labels.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted.
    """

    labels: np.ndarray = field(compare=False)

    def zero(self) -> LogLosses:
        return LogLosses()

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> LogLosses:
        P = as_columns(y_pred)
        P = P if P.dtype == np.float32 else P.astype(np.float64, copy=False)
        _check_probabilities(P, start)
        if P.shape[1] == 1:
            P = np.concatenate([1 - P, P], axis=1)
        eps = np.finfo(P.dtype).eps
        not_one = np.abs(P.sum(axis=1) - 1) > np.sqrt(eps)
        index = _known_positions(one_column("y_true", y_true), self.labels, start)
        given = np.clip(P[np.arange(len(P)), index], eps, 1 - eps).astype(np.float64)
        return LogLosses(
            float(sample_weight @ -np.log(given)), float(sample_weight.sum()), int(not_one.sum())
        )

    def size_bytes(self, n_rows: int) -> int:
        return 24


def _check_probabilities(P: np.ndarray, start: int) -> None:
    outside = (P < 0) | (P > 1)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise InputError(
            f"y_proba has {P[row, column]:g} in row {start + row}, column {column}, which is no probability; "
            f"pass what predict_proba returns"
        )


def _known_positions(y: np.ndarray, labels: np.ndarray, start: int) -> np.ndarray:
    index = positions(y, labels)
    if (index < 0).any():
        row = int(np.flatnonzero(index < 0)[0])
        raise InputError(
            f"y_true has the label {y[row : row + 1].tolist()[0]!r} in row {start + row}, which is none of "
            f"the labels; name all of them in labels=…"
        )
    return index


# Sorted scores with the weights of both classes at each: exact areas under ROC curves, ties included.


@dataclass(frozen=True)
class RankedScores:
    """Distinct scores, and how much weight of each class has them.

    Parameters
    ----------
    scores : ndarray of shape (m,)
        Ascending.
    weights : ndarray of shape (m, 2)
        Of the other rows, and of those of the positive class.
    """

    scores: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_rows(cls, scores: np.ndarray, weights: np.ndarray) -> RankedScores:
        """Return the same with the weights of equal scores added up."""
        order = np.argsort(scores, kind="stable")  # two sorted runs are merged in one pass
        ascending = scores[order]
        is_first = np.ones(len(scores), dtype=bool)
        is_first[1:] = ascending[1:] != ascending[:-1]
        if is_first.all():
            return cls(ascending, weights[order])
        starts = np.flatnonzero(is_first)
        return cls(ascending[starts], np.add.reduceat(weights[order], starts))

    def merge(self, other: RankedScores) -> RankedScores:
        """Return the scores of both sets of rows."""
        return RankedScores.of_rows(
            np.concatenate([self.scores, other.scores]), np.concatenate([self.weights, other.weights])
        )

    @property
    def class_weights(self) -> np.ndarray:
        """The weights of the other rows and of the positive ones, shape (2,)."""
        return self.weights.sum(axis=0)

    def area(self) -> float:
        """Return the area under the ROC curve: P(score of a positive > that of another) + ½P(equal).

        Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve".
        """
        negative, positive = self.weights.T
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below / (negative.sum() * positive.sum()))


@dataclass(frozen=True)
class ColumnRanks:
    """`RankedScores` of each column of scores."""

    columns: tuple[RankedScores, ...]

    def merge(self, other: ColumnRanks) -> ColumnRanks:
        """Return the ranks of both sets of rows."""
        pairs = zip(self.columns, other.columns, strict=True)
        return ColumnRanks(tuple(mine.merge(its) for mine, its in pairs))


@dataclass(frozen=True)
class RankStatistic:
    """Statistic of `ColumnRanks`: one column ranks the second of two labels, several rank each its own.

    Memory is 24 bytes for each distinct score of each column.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted.
    n_columns : int
        1 or k.
    """

    labels: np.ndarray = field(compare=False)
    n_columns: int

    def zero(self) -> ColumnRanks:
        none = RankedScores(np.empty(0), np.empty((0, 2)))
        return ColumnRanks((none,) * self.n_columns)

    def of(
        self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int
    ) -> ColumnRanks:
        S = as_columns(y_pred)
        index = positions(one_column("y_true", y_true), self.labels)
        if (index < 0).any():
            raise InputError("y_true has labels that are not in labels=…; name all of them")
        ranked = [1] if self.n_columns == 1 else range(self.n_columns)
        return ColumnRanks(
            tuple(
                RankedScores.of_rows(S[:, j].astype(np.float64), _by_class(index == label, sample_weight))
                for j, label in enumerate(ranked)
            )
        )

    def size_bytes(self, n_rows: int) -> int:
        return 24 * n_rows * self.n_columns


def _by_class(is_positive: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    return np.stack([np.where(is_positive, 0.0, sample_weight), np.where(is_positive, sample_weight, 0.0)], 1)


# Class labels of any type that sorts, as positions in a sorted list.

MOST_LABELS = 10_000


def one_column(name: str, y: np.ndarray) -> np.ndarray:
    """Return labels of shape (r,) or (r, 1) as (r,), or refuse several a row, and fractions."""
    if y.size != len(y):
        raise InputError(f"{name} must be one column of class labels, got shape {y.shape}")
    y = y.reshape(len(y))
    if y.dtype.kind == "f" and (y != np.floor(y)).any():
        raise InputError(
            f"{name} must hold class labels, got the fraction {y[y != np.floor(y)][0]:g}; "
            f"numbers are scored by r2_score and mean_squared_error"
        )
    return y


def sorted_labels(*parts: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the sorted distinct labels of all parts, and the position of each label of each part.

    Raises
    ------
    InputError
        If text is mixed with numbers, or there are more than 10,000 labels.
    """
    is_text = {part.dtype.kind in "OUST" for part in parts if len(part)}
    values = np.concatenate([part.astype(object) for part in parts] if len(is_text) > 1 else parts)
    try:
        labels, index = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise InputError(f"labels of different types cannot be compared ({error}); use one type") from error
    if len(labels) > MOST_LABELS:
        raise InputError(f"there are more than {MOST_LABELS} different labels; are they numbers?")
    return labels, np.split(index.reshape(-1), np.cumsum([len(part) for part in parts])[:-1])


def positions(y: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the position of each y among sorted labels, −1 for one that is not there."""
    if (y.dtype.kind in "OUST") != (labels.dtype.kind in "OUST"):
        y, labels = y.astype(object), labels.astype(object)
    try:
        found = np.minimum(np.searchsorted(labels, y), len(labels) - 1)
        return np.where(labels[found] == y, found, -1)
    except TypeError as error:
        raise InputError(f"labels of different types cannot be compared ({error}); use one type") from error
