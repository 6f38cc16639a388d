"""Predictions of rows by models that did not see them, from one fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from sklearn.base import clone

from distrff.errors import DataWarning, InputError, warn
from distrff.estimators.base import KernelEstimator
from distrff.io.dataset import Dataset
from distrff.model.model import FoldModels, Model
from distrff.model.rows import block_by_block
from distrff.utils.random import group_of

METHODS = ("predict", "decision_function", "predict_proba")


def cross_val_predict(
    estimator: KernelEstimator,
    data: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: str = "predict",
) -> Any:
    """Each row's prediction by a model that did not see the row.

    A clone of the estimator is fitted once, with folds (`cv` and `fold_by` are its own); scaling, map and
    penalty, where it is searched, are those of all rows, and the models without a fold come from the same
    sums. A given `alpha` or `C` stays as it is; ``alpha="gcv"`` is searched by the folds instead.

    Parameters
    ----------
    estimator : KernelRidge, KernelRidgeClassifier, KernelSVC or KernelLikelihoodClassifier
        Fitted or not; it is not changed.
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
        Of shape (n_samples, n_columns), of any storage.
    y, sample_weight : array-like, optional
        As for `fit`. A dataset brings its own.
    method : {"predict", "decision_function", "predict_proba"}

    Returns
    -------
    ndarray or dask array
        Of the shape of the method's result; lazy, with the row chunks of the data, for all that is not in
        memory.

    Raises
    ------
    InputError
        For a fit that holds no folds out: by ``solver="sgd"``, with ``C=inf``, or with a given `alpha` of
        its own for each target.

    Notes
    -----
    Costs a fit, and the flops of the predictions.
    """
    if method not in METHODS:
        raise InputError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
    if not isinstance(estimator, KernelEstimator):
        raise InputError(f"expected one of distrff's estimators, got {estimator!r}")
    if not hasattr(estimator, method):
        raise InputError(f"a {type(estimator).__name__} has no {method}; choose another method")
    dataset = estimator._dataset(data, y, sample_weight)
    fitted = _with_folds(estimator).fit(dataset)
    folds = fitted._out_of_fold_models()
    if folds is None:
        raise InputError(f"this fit of {type(estimator).__name__} held no folds out; use solver='auto'")
    if n_nan := folds.folds.n_never_judged(dataset.n_rows):
        warn(
            f"{n_nan:,} of {dataset.n_rows:,} rows are held out by no fold: their results are NaN",
            DataWarning,
        )
    found = _lazily(fitted.model_, folds, dataset.X, {"decision_function": "decision"}.get(method, method))
    if method == "decision_function" and found.shape[1] == 1:
        found = found[:, 0]
    in_memory = not isinstance(data, Dataset) and not dask.is_dask_collection(data)
    return found.compute() if in_memory else found


def _with_folds(estimator: KernelEstimator) -> KernelEstimator:
    """A clone that holds folds out; a given penalty is the only one of its grid."""
    copy: Any = clone(estimator)
    if copy.solver == "sgd":
        raise InputError("solver='sgd' holds no folds out; use solver='auto'")
    if hasattr(copy, "C"):
        if copy.C != "cv":
            if not np.isfinite(copy.C):
                raise InputError("C=inf has no models without a fold; give a finite C")
            copy.set_params(C="cv", Cs=[copy.C])
    elif isinstance(copy.alpha, str):
        copy.set_params(alpha="cv")
    elif np.ndim(copy.alpha):
        raise InputError("folds share one alpha; give one number in the place of one per target")
    else:
        copy.set_params(alpha="cv", alphas=[copy.alpha])
    return copy


def _lazily(model: Model, folds: FoldModels, X: da.Array, method: str) -> da.Array:
    """The method's result for all rows, each by the model that left its fold out, as a dask array."""
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    light = replace(model, report={}, steps=None, posterior=None)
    kept = dask.delayed((light, folds), name=f"{group_of('model')}-{tokenize(light, folds)}")
    meta = folds.output(model, np.zeros((1, model.n_columns)), np.zeros(1, np.int64), method)
    starts = np.cumsum((0, *X.chunks[0]))[:-1, None]
    numbers = da.from_array(starts, chunks=1, name=f"{group_of('row numbers')}-{tokenize(starts)}")
    return block_by_block(_block, X, numbers, kept, method, meta=meta[:0])


def _block(X: Any, start: np.ndarray, kept: tuple[Model, FoldModels], method: str) -> np.ndarray:
    """The method's result for the rows of a block that begins at a row's number."""
    model, folds = kept
    rows = np.arange(int(start[0, 0]), int(start[0, 0]) + X.shape[0])
    return folds.output(model, X, rows, method)
