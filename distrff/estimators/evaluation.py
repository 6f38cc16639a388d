"""How good a model is, in one light pass: on rows that its fit left out in turn, or on other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.base import tokenize
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted

from distrff.diagnostics.report import FitReport
from distrff.engine.run import begin_run
from distrff.errors import InputError
from distrff.estimators.base import KernelEstimator
from distrff.estimators.fitting.checkpoint import same_rows
from distrff.io.dataset import Dataset
from distrff.model.model import FoldModels, Model
from distrff.model.rows import rows_for
from distrff.utils.random import group_of

METHODS = ("predict", "decision_function", "predict_proba")


def evaluate(model: Any, data: Any = None, y: Any = None, sample_weight: Any = None) -> Evaluation:
    """Return how good a model's predictions are, from one light pass over rows of any storage.

    The rows that the estimator was fitted to are judged out of fold, if the fit had folds (``alpha="cv"`` or
    ``C="cv"``): each row by the model, of the chosen penalty, that did not see it. Scaling, map, widths and
    penalty did see all rows. Without folds the errors on these rows are optimistic, and `rows` says so.
    After `partial_fit` it is not known which rows the fit saw, and `rows` says that.

    Parameters
    ----------
    model : fitted estimator, or Model
        Not one of principal components.
    data : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame, optional
        Of shape (n_samples, n_columns), or a table of the raw columns of the fit. Default: the rows of the
        estimator's fit, which are read again.
    y, sample_weight : array-like, optional
        As for `fit`. A dataset brings its own.

    Returns
    -------
    Evaluation
        Errors beside those of the mean or the most frequent class, residuals, confusions, curves. A mapping
        with a page of its own: `to_html`.

    Raises
    ------
    InputError
        For rows without targets, and rows or models that cannot be used.

    Notes
    -----
    n·(2dD + 2Dk) flops and n·D cosines, as predictions take. Sums are exact but for rounding;
    quantiles and curves come from sketches of fixed buckets: their errors are given with them. The bits are
    the same for any number of workers and any chunking.
    """
    frozen = model if isinstance(model, Model) else getattr(model, "model_", None)
    if frozen is None:
        check_is_fitted(model, "model_")
    if not isinstance(frozen, Model) or frozen.kind == "KernelPCA":
        raise InputError(f"expected a fitted model that predicts, got {model!r}")
    estimator = model if isinstance(model, KernelEstimator) else None
    dataset = _rows_to_judge(estimator, frozen, data, y, sample_weight)
    run = begin_run()
    fit_rows = None if estimator is None else estimator._fit_rows
    of_fit = fit_rows is not None and same_rows(run, fit_rows, dataset)
    folds = estimator._out_of_fold_models() if estimator is not None and of_fit else None
    others = "the rows given" if estimator is None else "other rows"  # a stored model does not know its own
    rows = "out of fold" if folds is not None else "the rows of the fit" if of_fit else others
    if estimator is not None and estimator.has_grown:
        rows = "rows that partial_fit may have seen"
    errors = errors_of(frozen, dataset, folds, run)
    values = {
        "model": frozen.kind,
        "n_samples": errors.n_rows,
        "rows": rows,
        "n_outside": errors.n_outside,
        **dataset.unseen_categories,
        **(errors.values() if isinstance(errors, ClassErrors) else errors.values(dataset.target_names)),
    }
    return Evaluation(values)


_DRAWN_COLUMNS = 4
_MOST_JUDGED, _LEAST_JUDGED, _CURVE_ROWS = 5_000, 500, 1_000
_DETAILS = ("targets", "labels", "classes", "confusion", "confused", "roc", "precision_recall", "reliability")


def judge_fit(estimator: KernelEstimator) -> None:
    """Take into an estimator's report how good it is on its rows, and what matters to it there.

    Three or four light passes, of which those for the columns judge some thousand rows.
    """
    evaluation = evaluate(estimator)
    report = estimator.report_.to_dict()
    of_linear = {name: value for name, value in report["quality"].items() if name.startswith("linear_")}
    quality = {name: value for name, value in evaluation.items() if name not in _DETAILS} | of_linear
    report |= {"quality": quality, "evaluation": evaluation.to_dict()}
    if not estimator.model_.is_multilabel:  # which columns matter is not judged for several labels
        report |= _what_matters(estimator)
    estimator.report_ = FitReport(report)


def _what_matters(estimator: KernelEstimator) -> dict[str, Any]:
    """Return the importance of columns, and the dependence on the most important ones, for the report."""
    rows = _rows_of_fit(estimator)
    # Each judged row is predicted anew for each column: together about as often as two passes do.
    n_judged = min(_MOST_JUDGED, max(_LEAST_JUDGED, 2 * rows.n_rows // (1 + rows.n_columns)))
    importance, dependence = what_matters(
        estimator.model_,
        rows,
        n_columns=_DRAWN_COLUMNS,
        max_rows=n_judged,
        max_curve_rows=_CURVE_ROWS,
        random_state=estimator.seed_,
    )
    found = {"importance": importance.to_dict()}
    return found if dependence is None else found | {"dependence": dependence.to_dict()}


def _rows_to_judge(
    estimator: KernelEstimator | None, model: Model, data: Any, y: Any, sample_weight: Any
) -> Dataset:
    if data is None:
        if y is not None or sample_weight is not None:
            raise InputError("y and sample_weight go with data; give the rows, too")
        return _rows_of_fit(estimator)
    if estimator is not None:
        return estimator._rows_to_judge(data, y, sample_weight)
    return rows_for(model, data, y, sample_weight)


def _rows_of_fit(estimator: KernelEstimator | None) -> Dataset:
    if estimator is not None and estimator._fit_rows is not None:
        return estimator._fit_rows
    if estimator is not None and estimator.has_grown:
        raise InputError("partial_fit keeps no rows to judge; give data, best rows that it never saw")
    raise InputError(
        "the rows of the fit are known only to an estimator that was fitted in this process, to rows in "
        "memory or stored ones; give data"
    )


# Predictions out of fold.


def cross_val_predict(
    estimator: KernelEstimator,
    data: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    method: str = "predict",
) -> Any:
    """Return each row's prediction by a model that did not see the row.

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
    found = _lazily(fitted.model_, folds, dataset.X, {"decision_function": "decision"}.get(method, method))
    if method == "decision_function" and found.shape[1] == 1:
        found = found[:, 0]
    in_memory = not isinstance(data, Dataset) and not dask.is_dask_collection(data)
    return found.compute() if in_memory else found


def _with_folds(estimator: KernelEstimator) -> KernelEstimator:
    """Return a clone that holds folds out; a given penalty is the only one of its grid."""
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
    """Return the method's result for all rows, each by the model that left its fold out, as a dask array."""
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    light = replace(model, report={}, steps=None, posterior=None)
    kept = dask.delayed((light, folds), name=f"{group_of('model')}-{tokenize(light, folds)}")
    meta = folds.output(model, np.zeros((1, model.n_columns)), np.zeros(1, np.int64), method)
    starts = np.cumsum((0, *X.chunks[0]))[:-1, None]
    numbers = da.from_array(starts, chunks=1, name=f"{group_of('row numbers')}-{tokenize(starts)}")
    shape: dict[str, Any] = (
        {"drop_axis": 1} if meta.ndim == 1 else {"chunks": (X.chunks[0], (meta.shape[1],))}
    )
    return da.map_blocks(
        _block,
        X,
        numbers,
        kept,
        method,
        token=group_of("predict"),
        dtype=meta.dtype,
        meta=meta[:0],
        **shape,
    )


def _block(X: Any, start: np.ndarray, kept: tuple[Model, FoldModels], method: str) -> np.ndarray:
    """Return the method's result for the rows of a block that begins at a row's number."""
    model, folds = kept
    rows = np.arange(int(start[0, 0]), int(start[0, 0]) + X.shape[0])
    return folds.output(model, X, rows, method)
