"""What models that did not see their rows tell: results out of fold, and how errors spread with x."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dask
import numpy as np
from dask.base import tokenize

from distrff.diagnostics.evaluate import spread_out_of_fold
from distrff.errors import InputError
from distrff.fitting.fit import begin, choose, prepare
from distrff.fitting.problem import Penalty, Problem
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.model.model import FoldModels, Model
from distrff.model.rows import block_by_block
from distrff.preprocessing.folds import Keys
from distrff.solvers.objective import Squared
from distrff.utils.arrays import as_columns
from distrff.utils.random import group_of


def results_out_of_fold(model: Model, folds: FoldModels, dataset: Dataset, method: str) -> Any:
    """The method's result for all rows, each by the model that left its fold out, as a dask array."""
    import dask.array as da  # half a second, which a fit of rows in memory need not wait for

    X = dataset.X
    if X.numblocks[1] > 1:
        X = X.rechunk({1: -1})
    light = replace(model, report={}, steps=None, posterior=None, fold_models=folds)
    kept = dask.delayed(light, name=f"{group_of('model')}-{tokenize(light)}")
    # An answer for no rows says shape and dtype, and refuses here what tasks would refuse later.
    names = [place for place in folds.folds.places if isinstance(place, str)]
    none = {name: np.empty(0, dataset.id_dtypes[name]) for name in names}
    meta = light.out_of_fold(Keys(np.zeros(0, np.int64), none, np.zeros((0, model.n_columns))), method)
    # Folds follow from row numbers, which a block of a dask array does not know: each gets the number of its
    # first row as a block of another array, and their columns likewise.
    starts = np.cumsum((0, *X.chunks[0]))[:-1, None]
    numbers = da.from_array(starts, chunks=1, name=f"{group_of('row numbers')}-{tokenize(starts)}")
    columns = [dataset.id_readers[name].lazy("y").rechunk((X.chunks[0],))[:, None] for name in names]
    return block_by_block(_block, X, numbers, *columns, model=kept, names=names, method=method, meta=meta)


def _block(
    X: Any, start: np.ndarray, *columns: np.ndarray, model: Model, names: list[str], method: str
) -> np.ndarray:
    """The method's result for the rows of a block that begins at a row's number."""
    of_rows = {name: values[:, 0] for name, values in zip(names, columns, strict=True)}
    return model.out_of_fold(Keys(start[0, 0] + np.arange(X.shape[0]), of_rows, X), method)


# How errors spread with x: ridge on the logarithms of errors out of fold.

_LEAST_ERROR = 0.01  # of the median |e|, added to each: the logarithm of 0 would outweigh all others


def with_spread(estimator: Any, model: Model, rows: Dataset, folds: FoldModels) -> Model:
    """The model with a model of log |y − f| on its own features, and its intervals with scores in its units.

    Raises InputError where errors have no models without a fold, and PlanRefused where no Gram fits.
    """
    problem = Problem(
        features=estimator.features_,  # fitted, and so are its widths
        target_kind="numeric",
        seed=estimator.seed_,
        loss=Squared(),
        penalty=Penalty(None, search="cv"),
        folds=folds.folds,
        held_out=folds.folds,
        scale=estimator.scale,
        dtype=model.dtype,
        solver="auto",
    )
    fit = prepare(begin(_with_log_errors(model, rows, folds), problem))
    try:
        solver, plan = choose(fit, fit.targets.n_outputs, fit.specification.n_features)
        result = solver.solve(fit, plan)
        of_folds = result.fold_models
        if of_folds is None and result.grams is not None:
            of_folds = result.grams.kept().fold_models(np.atleast_1d(result.search.alpha))
    finally:
        fit.run.forget_caches()
    if of_folds is None:
        raise InputError("the errors have no models without a fold; fit with solver='auto'")
    spread = result.coef, result.intercept
    return spread_out_of_fold(replace(model, spread=spread), rows, folds, of_folds)


def _with_log_errors(model: Model, rows: Dataset, folds: FoldModels) -> Dataset:
    """The rows with log(|y − f| + c) for y, f out of fold; those that no fold held out have no weight."""
    assert model.intervals is not None and rows.y is not None
    medians = np.array([sketch.quantile(0.5) for sketch in model.intervals.sketches])
    predicted: Any = as_columns(results_out_of_fold(model, folds, rows, "predict"))
    Y: Any = rows.y
    Y = (Y[:, None] if Y.ndim == 1 else Y).rechunk((predicted.chunks[0], -1))
    logs = np.log(abs(Y - predicted) + _LEAST_ERROR * np.where(medians > 0, medians, 1.0))
    known = np.isfinite(logs).all(axis=1)
    s = known.astype(float)
    if rows.sample_weight is not None:
        s = s * rows.sample_weight.rechunk((logs.chunks[0],))
    parts = rows.X, np.where(known[:, None], logs, 0.0), s
    found = as_dataset(*(dask.compute(*parts) if rows.block_rows == 0 else parts))
    return replace(found, id_readers=rows.id_readers, groups=rows.groups, column_names=rows.column_names)
