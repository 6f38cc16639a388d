"""The base of all kernel estimators: rows of any storage in, a fitted model, predictions and scores out."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Self

import dask
import numpy as np
from dask.utils import is_dataframe_like
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from distrff.diagnostics.report import FitReport
from distrff.engine.progress import FitLine, Observer, callbacks_of_fit
from distrff.engine.run import Run, begin_run
from distrff.engine.tasks import Workers
from distrff.errors import ColumnError, DataWarning, FitStopped, InputError, PlanRefused, warn
from distrff.features.fitted import Trait
from distrff.fitting.cost import Plan
from distrff.fitting.fit import begin, choose, expected_plan, likely_plan, prepare, within_memory
from distrff.fitting.problem import (
    AnySplitter,
    FitContext,
    PreparedFit,
    Problem,
    WarmStart,
    check_sparse_rows,
    takes_sparse_rows,
)
from distrff.fitting.result import FitResult, fit_report, quality_of_fit
from distrff.io.arrays import (
    as_dataset,
    as_frame,
    frame_dtype,
    holds_more_than_numbers,
)
from distrff.io.dataset import Dataset, check_known, check_label_types, check_rows
from distrff.io.storage import Location, saving_buffer_bytes
from distrff.model.intervals import CALIBRATED
from distrff.model.model import FoldModels, Model
from distrff.model.rows import (
    ROWS_UNKNOWN,
    check_columns,
    check_target,
    is_raw,
    rows_to_predict,
    through_steps,
)
from distrff.preprocessing.coding import NumericTargets, Targets
from distrff.preprocessing.folds import Folds
from distrff.utils.serialize import described
from distrff.utils.text import listed


@dataclass(eq=False, repr=False)
class SolverParameters:
    """Parameters of all estimators with a choice of solvers; see `KernelRidge`."""

    # As fields of dataclasses they are written once. The constructors do nothing but store them, as
    # scikit-learn's `clone` and `get_params` expect.

    features: Any = None
    _: KW_ONLY
    cv: Any = "auto"
    fold_by: str = "hash"
    fit_intercept: bool = True
    scale: str = "auto"
    dtype: str = "auto"
    solver: str = "auto"
    tol: float = 1e-3
    max_sweeps: int | None = None
    keep_features: Any = "auto"
    random_state: int | None = None
    warm_start: bool = False
    callbacks: Any = None


def open_rows(X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Dataset:
    """The user's data as a `Dataset`; frames that hold more than numbers are encoded by steps."""
    X = as_frame(X)
    if is_dataframe_like(X) and holds_more_than_numbers(X):
        from distrff.io.open import encoded_frame  # with the readers of all storages

        return encoded_frame(X, y, sample_weight, groups)
    return as_dataset(X, y, sample_weight, groups=groups)


def with_raw_columns(dataset: Dataset, X: Any, folds: Folds) -> Dataset:
    """The dataset with the columns of a frame that folds go by: encoded they may be several, or left out."""
    frame = as_frame(X)
    if not is_dataframe_like(frame):
        return dataset
    known = {*dataset.id_dtypes, *(dataset.column_names or ())}
    named = [name for name in folds.names if isinstance(name, str)]
    raw = tuple(name for name in named if name not in known and name in frame.columns)
    if not raw:
        return dataset
    # With the readers of all storages, which rows in arrays come without.
    from distrff.io.tables import frame_table, with_beside
    from distrff.preprocessing.profile import TableOptions

    table = replace(frame_table(frame), is_paired=True).loaded((), raw, None)
    return with_beside(dataset, table, TableOptions(extra=raw))


class KernelEstimator(BaseEstimator):
    """An estimator whose fit leaves a frozen model in `model_`."""

    features: Any
    scale: str
    model_: Model
    _target_kind: str
    _forgotten: tuple[str, ...] = ()
    """Attributes that only some fits set; each fit deletes those of the one before."""
    _planned: Plan | None = None
    _map_of_fit: Mapping[str, str] = MappingProxyType({})
    _fold_models: FoldModels | None = None
    """Models that left out a fold each, where the fit made them; not pickled."""
    _fit_rows: Dataset | None = None
    """The rows of the fit, for later passes over them; not pickled. None where they were blocks of
    a dask array, which would stay in memory with the estimator."""
    _not_pickled: tuple[str, ...] = ("_fold_models", "_fit_rows")

    def fit(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | None = None,
        checkpoint_every: float | None = None,
        storage_options: dict[str, Any] | None = None,
    ) -> Self:
        """Fit the model to rows of any storage.

        Parameters
        ----------
        X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
            Of shape (n_samples, n_columns); frames of pandas, polars or pyarrow, too. Text and categories in
            a frame become columns of 0 and 1, times sine and cosine of year, weekday and hour; `open_dataset`
            has other ways. A `Dataset` brings its own y.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
            Numbers; for classifiers one column of labels, which are numbers, booleans or text, in arrays,
            categories or objects, for `KernelRidgeClassifier` also several columns of 0 and 1. `KernelPCA`
            ignores it.
        sample_weight : array-like of shape (n_samples,), optional
        groups : array-like of shape (n_samples,), optional
            The person, place or batch that each row belongs to, of any type, where new rows will come from
            others: `cv` then holds out whole groups. A `Dataset` brings its own.
        checkpoint : str, optional
            Path or URL of a folder, which workers must see too, for the finished parts of the fit. If the
            process, the scheduler or the machine dies, the same call goes on from there, and ends with the
            bits of a fit that nothing disturbed. Rows in memory are compared as a whole with those of the
            first call, stored ones by the sizes and times of their files and a few rows (of web servers and
            lazy arrays, these alone). It stays after the fit; delete it once the model is saved.
            The search for a map, its widths or its metric is made again; passes over all rows are not.
            SIGTERM during the fit, which batch systems send before they kill, writes the finished parts and
            ends the process with exit code 143 (of a fit in the main thread).
        checkpoint_every : float, optional
            Seconds between two writes of a process. Default: forty times as long as its last write took, at
            least ten, which bounds the share of writing. On the disk there are at most 3·W·(⌈log₂ S⌉ + 1)
            sums of a pass, for W workers and S segments (``plan(...).n_segments``): sums that wait for their
            neighbours, and smaller ones until the next write finds that a larger one covers them. Each has
            4·(D + 1 + k)² bytes a fold for a Gram. Beside these there are the Grams of all folds, and the
            value that each light pass returned.
        storage_options : dict, optional
            For fsspec, where `checkpoint` is a URL.

        Raises
        ------
        InputError
            For parameters or data that cannot be used, or the checkpoint of another fit, naming what
            differs; for a checkpoint inside a search or a Dask task, where several fits would write to it,
            and one on a local disk that another process works with now, naming that.
        PlanRefused
            If it would not fit in the workers' memory: before the first task, or once many
            classes are counted.
        KeyboardInterrupt
            In light sweeps after the best model so far was kept, with the status INTERRUPTED.
        """
        dataset, problem = self._rows_and_problem(X, y, sample_weight, groups)
        start = self._start(problem, dataset)
        if start is not None:
            if checkpoint is not None:
                raise InputError(
                    "a checkpoint is of a fit that begins anew, and warm_start=True goes on from this "
                    "estimator's model; use one of them"
                )
            assert self.features_ is not None
            problem = replace(problem, features=self.features_)
        # Only now: wrong parameters or rows leave the earlier fit as it was.
        self._forget(*self._forgotten, *self._not_pickled)
        if checkpoint is None and checkpoint_every is not None:
            raise InputError(f"checkpoint_every={checkpoint_every!r} needs a checkpoint")
        callbacks = callbacks_of_fit(getattr(self, "callbacks", None))
        observer = Observer(callbacks, FitLine())
        fit = replace(begin(dataset, problem, checkpoint, observer), start=start)
        run = fit.run
        assert run is not None
        expected = expected_plan(fit)  # refuses before the first task
        kept: AbstractContextManager[FitContext] = nullcontext(fit)
        if checkpoint is not None:
            from distrff.fitting.checkpoint import checkpointed  # with files and fingerprints, for few fits

            place = Location.of(checkpoint, storage_options)
            kept = checkpointed(fit, self, expected, place, checkpoint_every)
        with kept as fit:
            try:
                # Where a cluster is lost the fit begins again, and meets the values that the run remembers.
                run.surviving(lambda: self._fit(fit, expected))
            finally:
                run.forget_caches()
                observer.close()
        return self

    def _forget(self, *names: str) -> None:
        """Delete attributes, where they are set."""
        for name in names:
            self.__dict__.pop(name, None)

    def _start(self, problem: Problem, dataset: Dataset) -> WarmStart | None:
        """The model to go on from by ``warm_start=True``; None where the fit begins anew.

        Raises InputError where it cannot go on: for other columns, or parameters of another map.
        """
        is_warm = getattr(self, "warm_start", False)
        if not isinstance(is_warm, bool | np.bool_):
            raise InputError(f"warm_start must be True or False, got {is_warm!r}")
        if not is_warm or self.has_grown or "model_" not in self.__dict__ or "features_" not in self.__dict__:
            return None
        if not problem.goes_on:
            return None
        check_columns(self.model_, dataset)
        # As text, since maps are mutable and the earlier fit kept no copy of their parameters.
        changed = [name for name, text in self._of_map().items() if self._map_of_fit.get(name) != text]
        if changed:
            raise InputError(
                f"warm_start=True keeps the map of the earlier fit, but {', '.join(changed)} changed; use "
                f"warm_start=False, or fit a clone"
            )
        model = self.model_
        return WarmStart(model.scaling, model.targets, model.coef, model.intercept)

    def _of_map(self) -> dict[str, str]:
        """Parameters that decide map and scaling, as text."""
        return described(self.features, "features") | {"scale": self.scale}

    def _fit(self, fit: FitContext, expected: Plan) -> None:
        """Fit the model, which was planned as `expected` before the first pass."""
        fit = prepare(fit)
        solver, plan = choose(fit, fit.targets.n_outputs, fit.specification.n_features)
        planned = self._planned
        # The report shows the seconds that `plan` predicted, if that was for this fit, or a later prediction.
        if planned is not None and planned.with_seconds(None) == expected:
            plan = plan.with_seconds(planned.seconds)
            assert fit.features is not None
            if Trait.CHOOSES in fit.features.traits:
                plan = plan.with_seconds(self._recounted(fit, plan))
        observer = fit.run.observer
        # Callbacks see a whole model after each sweep, which is made of the coefficients only where they ask.
        observer.model_of = partial(self._model, fit, plan.size.dtype)
        # Only a direct solution knows its number of passes; that of iterations is for the progress line to
        # find out.
        if plan.is_direct:
            observer.n_passes = plan.n_sweeps
        result = solver.solve(fit, plan)
        observer.passes(fit.run.sweeps)
        observer.close()  # before warnings
        # Also the memory of what the solver did after its last pass, such as a factorisation.
        fit.run.measure_peaks()
        if result.features is not None:
            features: Any = fit.features
            chooses = Trait.CHOOSES in features.traits
            # A solver chose the kernel, as of equispaced features; AutoFeatures keeps its search around the
            # new map.
            features = features.with_map(result.features) if chooses else result.features
            fit = replace(fit, features=features, specification=features.specification_)
        self.features_, self._map_of_fit = fit.features, self._of_map()
        self._fold_models = result.fold_models
        # Stored rows are a handle of some bytes; those in memory are the caller's own, or a copy of a frame.
        self._fit_rows = fit.dataset if fit.dataset.block_rows in (None, 0) else None
        model = self._model(fit, result.dtype, result.coef, result.intercept, result.targets)
        self._store(result, model, fit.problem.seed, fit)

    @staticmethod
    def _recounted(fit: PreparedFit, plan: Plan) -> float:
        """The seconds of a fit whose map is chosen: those so far, and predicted ones."""
        from distrff.fitting.timing import predicted_seconds  # where seconds were asked for

        rest = replace(plan, size=replace(plan.size, search_flops=0.0))
        # A run of its own: what this one remembers must not depend on whether seconds were asked for.
        left = predicted_seconds(replace(fit, run=Run(fit.run.execution)), rest)
        fit.run.observer.between_passes(f"{plan.size.n_features:,} features: about {left:.0f} s are left")
        return fit.run.seconds + left

    def _model(
        self, fit: PreparedFit, dtype: str, coef: np.ndarray, intercept: np.ndarray, targets: Targets
    ) -> Model:
        """Frozen model of the coefficients of a fit, without its report."""
        dataset = fit.dataset
        return Model(
            kind=type(self).__name__,
            # The arrays go into `arrays` alone, where workers would derive others; a second copy would be
            # pickled, too.
            specification=fit.specification.without_arrays(),
            scaling=fit.scaling,
            targets=targets,
            coef=coef,
            intercept=intercept,
            dtype=dtype,
            column_names=dataset.column_names,
            steps=dataset.steps,
            arrays=fit.specification.arrays_to_keep(derived=fit.run.sends_derived),
            **self._of_model(dataset),
        )

    def _store(self, result: FitResult, model: Model, seed: int, fit: PreparedFit | None) -> None:
        """Set the fitted attributes; then raise what interrupted the fit, or warn that it fell short."""
        self.seed_ = seed
        self.n_features_in_ = model.n_columns
        # scikit-learn takes its absence for a fit without names; the fit before this one may have had some.
        self.__dict__.pop("feature_names_in_", None)
        if model.column_names is not None:
            self.feature_names_in_ = np.asarray(model.column_names, dtype=object)
        self.plan_ = result.plan
        self.n_iter_ = max(1, result.n_iter)  # 0 where it was interrupted before the first
        self._keep(result, model)
        quality = self._quality(result, model, fit)
        self.report_ = FitReport(fit_report(self, result, fit, quality))
        self.model_ = replace(model, report=self.report_.to_dict())
        # Raised only now that the attributes are set: whoever catches Ctrl-C has the best model so far.
        if isinstance(result.interruption, FitStopped):
            return
        if result.interruption is not None:
            raise result.interruption
        if result.shortfall is not None:
            warn(result.shortfall, ConvergenceWarning)

    def _quality(self, result: FitResult, model: Model, fit: PreparedFit | None) -> dict[str, Any] | None:
        """Quality of the model, for the report; None for a fit to sums, which do not tell it."""
        return None if fit is None else quality_of_fit(fit, result, model)

    def _keep(self, result: FitResult, model: Model) -> None:
        """Set the attributes of this kind of estimator."""
        raise NotImplementedError

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        """Fields that only models of this kind have."""
        return {}

    def _out_of_fold_models(self) -> FoldModels | None:
        """Models that left out a fold each; None where the fit held no folds out."""
        return self._fold_models

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        kept = {name: value for name, value in state.items() if name not in self._not_pickled}
        # Functions of a session may not be picklable, and mean nothing to another one.
        return kept | {"callbacks": None} if "callbacks" in kept else kept

    def check_parameters(self) -> None:
        """Raise InputError for the first parameter that is wrong for any data."""
        self._problem()

    def _problem(self) -> Problem:
        raise NotImplementedError

    def plan(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | None = None,
    ) -> Plan:
        """Plan of a `fit` to these rows: its cost, with seconds from a short measurement.

        The report of a fit with the same plan shows them beside the seconds that it took. The number of light
        sweeps of a margin loss is known only after the fit: ten are planned, and ten for each C of a grid.
        Where a map chooses its number of features, memory is that of the most, and seconds are those of a
        number that is likely. A fit of this estimator predicts them again once it has chosen, in a line on
        the terminal and in its report.

        Only the first few thousand rows are checked, and the columns that are known to lack values; the
        first pass of a fit checks all rows. With the `checkpoint` of the fit, the memory that its copies of
        sums take is counted; nothing is written there.

        Raises
        ------
        InputError
            For parameters or data that cannot be used.
        PlanRefused
            If it would not fit in the workers' memory; the message names the smallest
            changes that fit.
        """
        fit = begin(*self._rows_and_problem(X, y, sample_weight, groups), checkpoint)
        dataset, run, plan = fit.dataset, fit.run, expected_plan(fit)
        assert run is not None
        first = dataset.rows(0, min(dataset.n_rows, plan.tile_rows))
        try:
            run.map(check_rows, [(first, fit.problem.target_kind)])
        except ColumnError as error:
            raise error.named(dataset.column_names) from None
        # Loaded here: few fits are measured, and no choice of a fit follows from times.
        from distrff.fitting.timing import predicted_seconds

        self._planned = plan.with_seconds(predicted_seconds(fit, likely_plan(fit)))
        return self._planned

    def plan_for(
        self,
        workers: Workers,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        groups: Any = None,
        checkpoint: str | None = None,
    ) -> Plan:
        """Plan of a `fit` to these rows on workers that need not exist yet.

        The plan is counted alone: no task runs, and nothing is measured. `checkpoint` is as for `plan`.

        Raises
        ------
        PlanRefused
            If it would not fit in their memory; the message names the smallest changes that fit.
        """
        dataset, problem = self._rows_and_problem(X, y, sample_weight, groups)
        problem = problem.for_dataset(dataset)
        buffer = None if checkpoint is None else saving_buffer_bytes(checkpoint)
        fit = FitContext(dataset, problem, workers, saving_buffer=buffer)
        return expected_plan(within_memory(fit))

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the fitted model; `distrff.load_model` reads it back, to be used on NumPy blocks.

        `storage_options` are for fsspec.
        """
        from distrff.model.persistence import save_model  # with its checks of stored parts

        save_model(self._frozen(), url, overwrite=overwrite, storage_options=storage_options)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        # A shift by the mean would fill the zeros of sparse rows.
        tags.input_tags.sparse = takes_sparse_rows(self.features) and self.scale != "standard"
        return tags

    def _dataset(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Dataset:
        dataset = open_rows(X, y, sample_weight, groups)
        if not dataset.n_targets:
            raise InputError(
                f"{type(self).__name__} requires y to be passed, but the target y is None; "
                f"give y, or open the dataset with target=…"
            )
        return dataset

    def _rows_and_problem(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> tuple[Dataset, Problem]:
        """Rows to fit with the columns that the folds take, and the parameters; both are checked."""
        problem = self._problem()
        dataset = self._rows_to_fit(X, y, sample_weight, groups)
        dataset = with_raw_columns(dataset, X, problem.held_out)
        if isinstance(problem.held_out, AnySplitter) and dataset.block_rows == 0:
            dataset, split = problem.held_out.split(dataset)
            problem = problem.with_folds(lambda folds: split if isinstance(folds, AnySplitter) else folds)
        return dataset, problem

    def _rows_of_folds(self, X: Any, y: Any, sample_weight: Any, groups: Any) -> Dataset:
        """Rows with the columns that the folds take."""
        dataset = self._dataset(X, y, sample_weight, groups)
        return with_raw_columns(dataset, X, self._problem().held_out)

    def _rows_to_fit(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Dataset:
        dataset = self._dataset(X, y, sample_weight, groups)
        if (name := getattr(groups, "name", None)) in dataset.raw_features:
            words = "of which new groups have other values; leave it out of X unless that is meant"
            warn(f"the groups are a feature, too: column {name!r}, {words}", DataWarning)
        check_sparse_rows(dataset.is_sparse, self.features, self.scale)
        check_known(dataset, self._target_kind)
        if self._target_kind == "classes":
            check_label_types(dataset)
        return dataset

    def _answer(self, X: Any, method: str, *values: Any, **options: Any) -> Any:
        """A method of the frozen model for rows, lazily where these are not in memory.

        Of rows in memory it warns that some are outside of the bounds of the model.
        """
        model, rows = self._frozen(), self._rows_to_predict(X)
        found = getattr(model, method)(rows, *values, **options)
        # A lazy result has no rows yet that could be outside.
        if isinstance(rows, np.ndarray) and (n := np.count_nonzero(model.outside(rows))):
            warn(f"{n} of {len(rows)} rows are outside the bounds of the model: NaN", DataWarning)
        return found

    def _frozen(self) -> Model:
        """The frozen model; raises NotFittedError where there is none."""
        check_is_fitted(self, "model_")
        return self.model_

    def _rows_to_predict(self, X: Any) -> Any:
        """Rows in memory as an array or CSR, after scikit-learn's checks of them; others as a dask array."""
        X = as_frame(X)
        is_lazy = dask.is_dask_collection(X)
        if is_lazy and is_dataframe_like(X) and not is_raw(self.model_.steps, X):
            X = as_dataset(X)  # whose columns are checked by name
        # Rows in blocks are not brought to memory for scikit-learn's checks.
        if is_lazy or isinstance(X, Dataset) or is_raw(self.model_.steps, X):
            return rows_to_predict(self.model_, X)
        # scikit-learn's own checks, for their messages and names of columns, which `check_estimator` asks
        # for.
        sparse = "csr" if self.model_.specification.takes_sparse_rows else False
        # A model whose fit dropped rows without some value answers these with NaN.
        finite = not self.model_.skips_missing or "allow-nan"
        return validate_data(
            self, X, dtype="numeric", accept_sparse=sparse, ensure_all_finite=finite, reset=False
        )

    def calibrate(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """Take intervals, or prediction sets, from rows that the fit did not see; return the estimator.

        See `predict_interval` and `predict_set` for the guarantee, and `distrff.calibrate` for the parameters
        and the cost.

        Raises
        ------
        InputError
            As `distrff.calibrate`, and for the rows of the fit.
        """
        dataset = self._rows_to_judge(X, y, sample_weight, groups)
        if self._saw(dataset):
            raise InputError(
                "these are the rows of the fit, whose errors are too small for any guarantee; calibrate on "
                "rows that it did not see"
            )
        from distrff.diagnostics.evaluate import calibrated  # passes that judge models: no part of a fit

        self.model_ = calibrated(self._to_calibrate(), dataset)
        return self

    def _to_calibrate(self) -> Model:
        """The frozen model, with what its intervals can take account of."""
        return self._frozen()

    def _with_intervals(self, method: str | None = None) -> Model:
        """Model with its intervals, which are computed at first use from the rows of the fit."""
        model = self._frozen()
        if model.intervals is None:
            model.check_intervals_belong(method)
            # The pass over the rows of the fit waits until somebody asks: most fits never need intervals.
            folds = self._out_of_fold_models()
            if folds is None or self._fit_rows is None:
                raise InputError(
                    f"there are no errors of rows that the model did not see: {self._why_no_folds(folds)}; "
                    f"call calibrate with rows that the fit did not see"
                )
            from distrff.diagnostics.evaluate import out_of_fold  # as above

            self.model_ = out_of_fold(model, self._fit_rows, folds)
        return self.model_

    @property
    def has_grown(self) -> bool:
        """Whether the rows of the fit came by `partial_fit`, which keeps none of them."""
        return False

    def _why_no_folds(self, folds: FoldModels | None) -> str:
        if self.has_grown:
            return "its rows came by partial_fit, which keeps none of them"
        if folds is None:
            return "this fit held no folds out (alpha='cv' or C='cv' do)"
        return "the rows of the fit were lazy arrays, or stayed where it was fitted"

    def to_sklearn(self) -> Any:
        """A fitted scikit-learn pipeline of stock parts that predicts as this model does.

        A StandardScaler where the model scales, then the map as an RBFSampler, a Nystroem or what it is
        made of, then Ridge, RidgeClassifier, LinearSVC, LogisticRegression or PCA, all with their fitted
        arrays set. It works in float64 where the rows do. Of a model of a table it takes the encoded columns.

        A clone of it that is fitted anew, as grids and `cross_val_score` do, has the same kernel, size and
        penalty: `gamma` is 1/(2ℓ²) of a Gaussian of width ℓ, and 1/ℓ of a Laplacian; `alpha` and `C` are as
        the fit found them. It draws frequencies of a Gaussian of one width, and landmarks, anew; the other
        Fourier maps are a FrozenEstimator, whose clone keeps its frequencies. LinearSVC penalises its
        intercept, and takes no ``C=inf``.

        Raises
        ------
        InputError
            For a map or noise that scikit-learn has no part for, naming those that it has.

        Warns
        -----
        DataWarning
            Where `class_weight` of several logistic models is lost to a clone.

        Notes
        -----
        Structured draws of frequencies become dense matrices. The decision values of
        a `KernelLikelihoodClassifier` are divided by its `sigma`, as probabilities take them.
        """
        from distrff.model.to_sklearn import sklearn_pipeline  # with all maps and their equals

        return sklearn_pipeline(self._frozen(), self.get_params(deep=False))

    def _errors(self, X: Any, y: Any, sample_weight: Any) -> Any:
        from distrff.diagnostics.evaluate import errors_of  # as above

        errors = errors_of(self._frozen(), self._rows_to_judge(X, y, sample_weight))
        if errors.n_outside:
            what = "are left out" if self.model_.measure == "r2" else "count as wrong"
            warn(f"{errors.n_outside} rows are outside the bounds of the model and {what}", DataWarning)
        return errors

    def _rows_to_judge(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Dataset:
        """Rows with targets, of the columns of the fit or of a raw table."""
        X, y, sample_weight, groups = through_steps(self.model_.steps, X, y, sample_weight, groups)
        if is_dataframe_like(X):
            frame_dtype(X.dtypes.items())  # text is refused: this model has no steps for it
        if isinstance(X, Dataset):  # first: of a raw table a target would be half the remedy
            check_columns(self.model_, X)
        dataset = self._dataset(X, y, sample_weight, groups)
        check_columns(self.model_, dataset, with_target=True)
        check_target(self.model_, dataset)
        return dataset

    def _judged_rows(self, data: Any, y: Any, sample_weight: Any) -> tuple[Dataset, FoldModels | None, str]:
        """Rows to judge the model on, by default those of the fit; models that did not see them; which rows
        they are, in words."""
        if data is not None:
            dataset = self._rows_to_judge(data, y, sample_weight)
        elif y is not None or sample_weight is not None:
            raise InputError("y and sample_weight go with data; give the rows, too")
        elif self._fit_rows is not None:
            # They are read again, from where they are stored.
            dataset = self._fit_rows
        elif self.has_grown:
            raise InputError("partial_fit keeps no rows to judge; give data, best rows that it never saw")
        else:
            raise InputError(ROWS_UNKNOWN)
        # It kept no row, so nobody can tell whether it saw these.
        if self.has_grown:
            return dataset, None, "rows that partial_fit may have seen"
        if self._fit_rows is None or not self._saw(dataset):
            return dataset, None, "other rows"
        folds = self._out_of_fold_models()
        # As the fit had them: beside their X are the columns that say which fold they are in.
        return self._fit_rows, folds, "the rows of the fit" if folds is None else "out of fold"

    def _saw(self, dataset: Dataset) -> bool:
        """Whether these are the rows of the fit, as far as it keeps them."""
        from distrff.fitting.checkpoint import same_rows

        return self._fit_rows is not None and same_rows(begin_run(), self._fit_rows, dataset)


# The base of regressors: numbers, R².


class NumberEstimator(RegressorMixin, KernelEstimator):
    """A kernel estimator whose targets are numbers."""

    _target_kind = "numeric"

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """r², the share of the targets' variance explained, averaged over targets.

        Targets that are equal in all rows have none to explain. Without others the result is NaN, with a
        DataWarning. One light pass over rows of any storage; dask arrays are not brought to memory.
        """
        score = self._errors(X, y, sample_weight).scores()[self.model_.measure]
        measure = "R²" if self.model_.measure == "r2" else "D²"
        if np.isnan(score):
            warn(
                f"{measure} is not defined, since the targets of all rows are equal; take the errors of "
                "distrff.evaluate",
                DataWarning,
            )
        return score

    def _with_intervals(self, method: str | None = None, *, how: str = "auto") -> Model:
        """The model with its intervals, and what those of a method (`how`) take; "auto" what can be had."""
        super()._with_intervals(method)
        if how in ("auto", "deviation"):
            self._with_deviations(required=how == "deviation")
        if how == "residual" or (how == "auto" and self._tries_spread):
            self._with_spread(required=how == "residual")
        return self.model_

    def _with_deviations(self, *, required: bool) -> None:
        """Give the model intervals in standard deviations, where it has these or they are `required`."""

    @property
    def _tries_spread(self) -> bool:
        """Whether a model of errors is fitted that nobody asked for by name."""
        return True

    def _with_spread(self, *, required: bool) -> None:
        """Give the model a model of log |y − f| and scores in its units, from rows out of fold, at first use.

        Raises InputError where there is none, if it is `required`.
        """
        model, folds, rows = self.model_, self._out_of_fold_models(), self._fit_rows
        assert model.intervals is not None
        is_calibrated = model.intervals.source == CALIBRATED
        if model.intervals.residual or model.has_band or (is_calibrated and not required):
            return
        if folds is None or rows is None or is_calibrated:
            if required:
                why = "calibrate was called before" if is_calibrated else self._why_no_folds(folds)
                raise InputError(
                    f"method='residual' needs errors of rows of the fit that the model did not see: {why}; "
                    f"ask for it once after a fit with folds, and calibrate after that"
                )
            return
        from distrff.estimators.held_out import with_spread  # with a fit of its own

        try:
            self.model_ = with_spread(self, model, rows, folds)
        except (InputError, PlanRefused):
            if required:
                raise

    def _dataset(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Any:
        dataset = super()._dataset(X, y, sample_weight, groups)
        if dataset.y_dtype is not None and dataset.y_dtype.kind not in "biufO":  # objects: in the first sweep
            raise InputError(
                f"y must hold numbers for a regressor, got dtype {dataset.y_dtype}; "
                f"use KernelRidgeClassifier for class labels"
            )
        return dataset

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


# The base of classifiers: labels, decision values, accuracy.


class KernelClassifier(ClassifierMixin, KernelEstimator):
    """A kernel estimator whose targets are classes."""

    _takes_labels = False
    """Whether several columns of y are several labels of a row."""

    @property
    def classes_(self) -> np.ndarray:
        targets = self.model_.targets
        assert not isinstance(targets, NumericTargets)
        return targets.classes

    def predict(self, X: Any) -> Any:
        """Predicted labels, lazily for dask arrays.

        A row that may have several labels has 0 or 1 for each. One that lacks a value, where the fit dropped
        such rows, has None if labels are text; else such rows are refused by an InputError.
        """
        return self._answer(X, "predict")

    def decision_function(self, X: Any) -> Any:
        """f(x): (n_samples,) for two classes, positive for the second, else (n_samples, n_classes).

        Of several labels of a row a column each, positive where the row is predicted to have it.
        """
        F = self._answer(X, "decision")
        # scikit-learn's contract for two classes.
        return F[:, 0] if F.shape[1] == 1 else F

    def predict_set(self, X: Any, coverage: float = 0.9) -> Any:
        """Classes in each row's prediction set, lazily for dask arrays.

        A class is in the set if it fits at least as well as the true classes of other rows mostly do: its
        score, 1 − p of a likelihood, else minus the margin, is at most the ⌈(n + 1)·coverage⌉-th smallest of
        those of n rows.

        Parameters
        ----------
        X : array-like, DataFrame, Dataset or dask array of shape (n_samples, n_columns)
        coverage : float
            In (0, 1): the share of new rows whose class should be in the set.

        Returns
        -------
        bool ndarray or dask array of shape (n_samples, n_classes)
            In the order of `classes_`. A set may be empty, or hold all classes.

        Raises
        ------
        InputError
            Without calibration, for a fit without folds, or whose rows are not at hand.

        Notes
        -----
        After `calibrate` the class of a new row that is exchangeable with the calibration rows is in its set
        with probability at least `coverage`, on average over calibration sets and classes (Sadinle, Lei and
        Wasserman 2019, JASA 114). Calibrated with groups, and without calibration, it is as for
        `KernelRidge.predict_interval`.
        """
        self._with_intervals("predict_set")
        return self._answer(X, "predict_set", coverage)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy, in one light pass over rows of any storage.

        Of several labels of a row it is the share of the rows with all of them right.
        """
        return self._errors(X, y, sample_weight).scores()["accuracy"]

    def _errors(self, X: Any, y: Any, sample_weight: Any) -> Any:
        errors = super()._errors(X, y, sample_weight)
        if errors.n_unseen:
            warn(
                f"{errors.n_unseen:,} of {errors.n_rows:,} rows have labels that the model never saw, such "
                f"as {errors.unseen.labels.tolist()[0]!r}, and count as wrong; its classes are "
                f"{listed([*map(repr, self.classes_.tolist())])}",
                DataWarning,
            )
        return errors

    def _dataset(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Any:
        dataset = super()._dataset(X, y, sample_weight, groups)
        if dataset.n_targets > 1 and not self._takes_labels:
            raise InputError(f"y must be one column of class labels, got {dataset.n_targets} columns")
        if dataset.n_targets > 1 and dataset.y_dtype is not None and dataset.y_dtype.kind not in "biufO":
            raise InputError(
                f"several columns of y are several labels of a row, 0 or 1 each, got dtype "
                f"{dataset.y_dtype}; give one column of class labels"
            )
        # scikit-learn's classifiers warn of a column, and `check_estimator` looks for its words.
        if not dataset.y_is_1d and dataset.n_targets == 1:
            warn(
                f"A column-vector y was passed when a 1d array was expected: shape ({dataset.n_rows}, 1); "
                f"use y.ravel()",
                DataConversionWarning,
            )
        return dataset


# Checks of scikit-learn that estimators and maps with default parameters fail by design. Automatic widths,
# alphas and C are judged on held-out rows, which are drawn by row numbers, and so are the landmarks of
# `NystroemFeatures`: a row of weight 2 and the same row twice then give different draws. With given widths,
# penalties and landmarks both give the same model.

_DRAWN_BY_NUMBER = "rows are held out, or landmarks, by row numbers, which differ where rows are repeated"

EXPECTED_FAILED_CHECKS: dict[str, str] = {
    "check_sample_weight_equivalence_on_dense_data": _DRAWN_BY_NUMBER,
    "check_sample_weight_equivalence_on_sparse_data": _DRAWN_BY_NUMBER,
}
"""Names and reasons, as scikit-learn's ``check_estimator(..., expected_failed_checks=...)`` takes them."""
