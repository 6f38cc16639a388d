"""What rows tell that a model did not see: results out of fold, spreads that follow x, and when to stop."""

from __future__ import annotations

import math
import warnings
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import dask
import numpy as np
from dask.base import tokenize
from sklearn.base import clone

from distrff.diagnostics.evaluate import errors_of, spread_out_of_fold
from distrff.engine.progress import SweepProgress
from distrff.engine.run import Run, begin_run
from distrff.errors import DataWarning, InputError, warn
from distrff.fitting.fit import begin, choose, prepare
from distrff.fitting.problem import Penalty, Problem, WarmStart
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.model.model import FoldModels, Model
from distrff.model.rows import block_by_block
from distrff.preprocessing.coding import NumericTargets
from distrff.preprocessing.folds import Keys
from distrff.solvers.objective import Squared
from distrff.utils.arrays import as_columns
from distrff.utils.random import group_of
from distrff.utils.validation import check_count, is_finite

# Predictions of rows by models that did not see them, from one fit.


METHODS = ("predict", "decision_function", "predict_proba")


def cross_val_predict(
    estimator: Any,
    data: Any,
    y: Any = None,
    sample_weight: Any = None,
    *,
    groups: Any = None,
    method: str = "predict",
) -> Any:
    """Each row's prediction by a model that did not see the row.

    A clone of the estimator is fitted once, with folds (`cv` and `fold_by` are its own); scaling, map and
    penalty, where it is searched, are those of all rows, and the models without a fold come from the same
    sums. A row that several folds hold out has the mean of their values of f; one that none holds out, as of
    the first span of `ForwardFolds`, has NaN, and a `DataWarning` counts these. A given `alpha` or `C` stays
    as it is; ``alpha="gcv"`` is searched by the folds instead.

    Parameters
    ----------
    estimator : any but `KernelPCA`
        Fitted or not; it is not changed. A `KernelRegressor` of counts predicts rates: give y/e, and the
        weights that its `fit` would take.
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
        Of shape (n_samples, n_columns), of any storage.
    y, sample_weight, groups : array-like, optional
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
    if not hasattr(estimator, "_rows_of_folds"):
        raise InputError(f"expected one of distrff's estimators, got {estimator!r}")
    if not hasattr(estimator, method):
        raise InputError(f"a {type(estimator).__name__} has no {method}; choose another method")
    dataset = estimator._rows_of_folds(data, y, sample_weight, groups)
    # A clone is fitted to the dataset that is judged below: row numbers, and so folds, are the same in both.
    fitted = _with_folds(estimator).fit(dataset)
    folds = fitted._out_of_fold_models()
    if folds is None:
        raise InputError(f"this fit of {type(estimator).__name__} held no folds out; use solver='auto'")
    if n_nan := fitted.report_["folds"]["n_never_held_out"]:
        warn(
            f"{n_nan:,} of {dataset.n_rows:,} rows are held out by no fold, not counting rows of weight 0: "
            f"their results are NaN",
            DataWarning,
        )
    # Those of the fit have the columns by which rows were held out.
    dataset = dataset if fitted._fit_rows is None else fitted._fit_rows
    found = results_out_of_fold(
        fitted.model_, folds, dataset, {"decision_function": "decision"}.get(method, method)
    )
    if method == "decision_function" and found.shape[1] == 1:
        found = found[:, 0]
    in_memory = not isinstance(data, Dataset) and not dask.is_dask_collection(data)
    return found.compute() if in_memory else found


def _with_folds(estimator: Any) -> Any:
    """A clone that holds folds out; a given penalty is the only one of its grid."""
    copy: Any = clone(estimator)
    if copy.solver == "sgd":
        raise InputError("solver='sgd' holds no folds out; use solver='auto'")
    if hasattr(copy, "C"):
        if copy.C != "cv":
            if not np.isfinite(copy.C):
                raise InputError("C=inf has no models without a fold; give a finite C")
            # A grid of one value: its search makes the models of the folds, from the same sums.
            copy.set_params(C="cv", Cs=[copy.C])
    elif isinstance(copy.alpha, str):
        copy.set_params(alpha="cv")
    elif np.ndim(copy.alpha):
        raise InputError("folds share one alpha; give one number in the place of one per target")
    else:
        copy.set_params(alpha="cv", alphas=[copy.alpha])
    return copy


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
        dtype=model.dtype,
        solver="auto",
    )
    with warnings.catch_warnings():  # the rows have told of themselves, and their errors are no user's
        warnings.simplefilter("ignore", DataWarning)
        fit = begin(_with_log_errors(model, rows, folds), problem)
        # Scaled as the model scales: rows without an error have no weight here.
        k = model.n_outputs
        as_model = NumericTargets(np.zeros(k), np.ones(k))
        start = WarmStart(model.scaling, as_model, np.zeros_like(model.coef), np.zeros(k))
        fit = prepare(replace(fit, start=start))
    try:
        solver, plan = choose(fit, fit.targets.n_outputs, fit.specification.n_features)
        result = solver.solve(fit, plan)
        if result.interruption is not None:
            raise result.interruption
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


# A callback of fits: early stopping.


@dataclass(eq=False, repr=False)
class EarlyStopping:
    """Ends a fit once the score of held-out rows has not improved for some light sweeps.

    After each light sweep the best model so far is scored on the held-out rows, in one light pass over them
    where the fit runs: by its accuracy if it is a classifier, else by R². If the best score of the last
    `patience` sweeps is not above the best one before them by more than `min_delta`, the fit ends with the
    status STOPPED.

    The fit keeps the model of the last light sweep, which has the least objective so far; that is the
    point at which held-out rows no longer gain from more sweeps. The model of the best held-out score
    is `best_model_`. In a search for C or alpha, whose models leave out folds, no score is taken. A fit that
    needs no light sweeps, such as one by a Gram alone, is not affected.

    Parameters
    ----------
    X, y, sample_weight
        Held-out rows of any storage, as for `fit`; a `Dataset` brings its own y. With the columns that the
        fit has.
    patience : int
        Light sweeps without a better score.
    min_delta : float
        By how much a score must rise to be better.

    Attributes
    ----------
    scores_ : list of (int, float)
        Number and score of each light sweep, of the last fit.
    best_score_ : float
    best_sweep_ : int
    best_model_ : Model
        The frozen model of the best score, without a report.

    Raises
    ------
    InputError
        At the beginning of a fit, for parameters or rows that cannot be used.

    Notes
    -----
    Each fit starts afresh. Passes over held-out rows are no sweeps of the fit, but take their time; its
    measured peak memory counts them where they share a worker. Copies, such as those of
    `sklearn.base.clone`, share the rows.

    Examples
    --------
    >>> import distrff as drf
    >>> stopping = drf.EarlyStopping(held_out, patience=2)  # doctest: +SKIP
    >>> drf.KernelSVC(C=100, callbacks=[stopping]).fit(rows)  # doctest: +SKIP
    """

    X: Any
    y: Any = None
    _: KW_ONLY
    sample_weight: Any = None
    patience: int = 3
    min_delta: float = 1e-4

    def begin_fit(self) -> Self:
        """Forget the scores of an earlier fit, and check the parameters and rows."""
        check_count("patience", self.patience)
        if not is_finite(self.min_delta) or self.min_delta < 0:
            raise InputError(f"min_delta must be a finite number of at least 0, got {self.min_delta!r}")
        self._rows = as_dataset(self.X, self.y, self.sample_weight)
        if not self._rows.n_targets:
            raise InputError("EarlyStopping scores held-out rows, which need targets; give y")
        self._run: Run | None = None
        self._n_worse, self._to_beat = 0, -math.inf
        self.scores_: list[tuple[int, float]] = []
        for name in ("best_score_", "best_sweep_", "best_model_"):
            self.__dict__.pop(name, None)
        return self

    def __call__(self, progress: SweepProgress) -> bool:
        """Score the model of one sweep; return whether the score has not improved for long."""
        if "_rows" not in self.__dict__:  # called outside of a fit
            self.begin_fit()
        model = progress.model
        # Of a search by folds, or before the first step of a solver: there is no model of all rows.
        if model is None or progress.error is None:
            return False
        score = self._score(model)
        self.scores_.append((progress.sweep, score))
        # A first score of NaN, of targets that are all equal, has a model too.
        if score > getattr(self, "best_score_", -math.inf) or len(self.scores_) == 1:
            self.best_score_, self.best_sweep_, self.best_model_ = score, progress.sweep, model
        # The mark stays while scores rise by less than min_delta: slow gains count once they add up to it.
        if score > self._to_beat + self.min_delta:
            self._to_beat, self._n_worse = score, 0
        else:
            self._n_worse += 1
        return self._n_worse >= self.patience

    def _score(self, model: Model) -> float:
        # At the first score, as the columns of a fit are not known when it begins.
        if self._rows.n_columns != model.n_columns:
            raise InputError(
                f"EarlyStopping has held-out rows of {self._rows.n_columns} columns, but the fit has "
                f"{model.n_columns}; give the same columns"
            )
        # At the first score, in the fit's own environment, and once: a run asks for the workers and their
        # memory.
        self._run = self._run or begin_run()
        return errors_of(model, self._rows, run=self._run).scores()[model.measure]

    def __deepcopy__(self, memo: Any) -> Self:
        return replace(self)  # shares the rows, which clones of estimators would copy
