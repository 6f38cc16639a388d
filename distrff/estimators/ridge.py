"""Kernel ridge regression."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import dask
import numpy as np
from sklearn.utils.validation import validate_data

from distrff.engine.progress import FitLine, Observer, callbacks_of_fit
from distrff.errors import DataWarning, InputError, warn
from distrff.estimators.base import (
    KernelClassifier,
    KernelEstimator,
    NumberEstimator,
    SolverParameters,
    with_raw_columns,
)
from distrff.features.fitted import Trait
from distrff.fitting.fit import solvable
from distrff.fitting.problem import Penalty, PreparedFit, Problem, growing_problem, ridge_problem
from distrff.fitting.result import FitResult, quality_of_numbers
from distrff.io.dataset import Dataset
from distrff.model.intervals import CALIBRATED, INTERVAL_METHODS
from distrff.model.model import FoldModels, Model, std_of
from distrff.model.rows import through_steps
from distrff.preprocessing.coding import ClassTargets, NumericTargets, checked_classes
from distrff.utils.validation import one_of

if TYPE_CHECKING:
    from distrff.fitting.running import RunningSums, Statistics

# The base of ridge models for numbers and for classes.

_SOLVED = (
    "coef_", "intercept_", "alpha_", "rkhs_norm_", "cv_score_", "cv_results_", "report_", "model_", "plan_",
    "n_iter_",
)  # fmt: skip
"""Attributes of a solution, which the rows of `partial_fit` may be too few for."""


@dataclass(eq=False, repr=False)
class RidgeParameters(SolverParameters):
    """Parameters of all ridge models; see `KernelRidge`."""

    alpha: Any = "cv"
    _: KW_ONLY
    alphas: Any = None


class RidgeEstimator(RidgeParameters, KernelEstimator):
    """Ridge on random features."""

    _not_pickled = (*KernelEstimator._not_pickled, "_grams")
    _unsolved: InputError | None = None
    """Why the sums of `partial_fit` do not suffice for a model yet."""
    _growth: RunningSums | None = None
    """The sums of the calls of `partial_fit`. They are pickled, since no row is kept from which they could be
    made again: without them an estimator that was sent or stored could not grow, nor be solved."""

    def fit_gram(self, statistics: Statistics) -> Self:
        """Fit the model to a Gram, without any row.

        The map, its features' dtype, the scaling and the folds are those of the Gram; `features`, `dtype`,
        `scale`, `fold_by` and the number `cv` are not used.

        Parameters
        ----------
        statistics : GramStatistics or ToeplitzStatistics
            Made by `distrff.gram`; ``alpha="cv"`` needs one with folds, and ``alpha="gcv"`` holds the
            first of them out where features are more than a twentieth of the rows. Without folds it warns
            there if the model may be overfitted.
        """
        problem = self._problem()
        # Sums of equispaced features are themselves solved by conjugate gradients, without rows.
        if problem.solver == "cg" and statistics.kind != "toeplitz":
            raise InputError("solver='cg' passes over rows, and a Gram has none; use solver='gram' or 'auto'")
        if getattr(self, "class_weight", None) is not None:
            raise InputError(
                "class_weight cannot be applied to a Gram, whose rows are already weighted; "
                "give sample_weight to gram(...), or fit the rows"
            )
        from distrff.fitting.running import solved  # with sums of all kinds, which fits to rows do without

        result = solved(statistics, problem)
        if result.features is not None:  # sums whose kernel was chosen now
            statistics = replace(statistics, specification=result.features.specification_)
        self._forget("features_", "_growth", "_unsolved", *self._not_pickled)
        self._store(result, self._model_of_sums(statistics, result), problem.seed, None)
        return self

    def _store(self, result: FitResult, model: Model, seed: int, fit: PreparedFit | None) -> None:
        if fit is not None:  # only now: what `partial_fit` summed outlives a fit that fails
            self._forget("_growth", "_unsolved")
        super()._store(result, model, seed, fit)

    def _model_of_sums(self, sums: Statistics, result: FitResult) -> Model:
        return Model(
            kind=type(self).__name__,
            specification=sums.specification,
            scaling=sums.scaling,
            targets=sums.targets,
            coef=result.coef,
            intercept=result.intercept,
            dtype=sums.dtype,
            y_is_1d=sums.y_is_1d,
            column_names=sums.column_names,
            steps=sums.steps,
        )

    # Rows that come in several calls.

    def _grow(self, X: Any, y: Any, sample_weight: Any, groups: Any, classes: Any = None) -> Self:
        """Add the sums of some rows to those of earlier calls; nothing changes if this fails."""
        if self._growth is None and "model_" in self.__dict__:
            warn(
                "this model has no sums to add to, as it came by another way than partial_fit, which begins "
                "anew, with these rows alone",
                DataWarning,
            )
        before, given = self._growth, checked_classes(classes)
        rows: tuple[Any, ...] = X, y, sample_weight, groups
        if before is None:
            problem = replace(growing_problem(self), classes=given)
        else:
            problem, rows = before.problem, self._later_rows(before.sums, *rows)
            _check_classes(before.sums, given)
        dataset = with_raw_columns(self._rows_to_fit(*rows), X, problem.held_out)
        observer = Observer(callbacks_of_fit(self.callbacks), FitLine())
        try:
            if before is None:
                from distrff.fitting.running import RunningSums  # as above

                growth = RunningSums.first(dataset, problem, observer)
            else:
                growth = before.with_rows(dataset, observer)
        finally:
            observer.close()
        # Only now: a call that fails leaves sums and model as they were.
        self._forget(*_SOLVED, *self._not_pickled, "_unsolved", "feature_names_in_")
        # Known before there is a model: later calls take map and seed from here.
        self._growth, self.features_, self.seed_ = growth, growth.features, growth.problem.seed
        self.n_features_in_ = dataset.n_columns
        if growth.sums.column_names is not None:
            self.feature_names_in_ = np.asarray(growth.sums.column_names, dtype=object)
        self._solve_sums()
        return self

    def _later_rows(self, sums: Statistics, *given: Any) -> tuple[Any, ...]:
        """X, y, weights and groups of a later call: raw tables go through the steps of the first one."""
        X, *others = through_steps(sums.steps, *given)
        if not isinstance(X, Dataset) and not dask.is_dask_collection(X):
            try:
                validate_data(self, X, reset=False, skip_check_array=True)
            except ValueError as error:  # in scikit-learn's own words, which its checks expect
                raise InputError(str(error)) from None
        return X, *others

    def _solve_sums(self) -> None:
        """Set the fitted attributes from the sums, or remember why these do not suffice yet."""
        assert self._growth is not None
        now = solvable(ridge_problem(self))
        # These count at each call; all other parameters are those of the first one.
        changed = {name: getattr(now, name) for name in ("fit_intercept", "tol", "penalty")}
        problem = replace(self._growth.problem, **changed)
        try:
            result = self._growth.solved(problem)
        except InputError as error:  # such as too few rows or classes: later calls may bring more
            self._unsolved = error
            return
        assert result.features is not None
        sums = replace(self._growth.sums, specification=result.features.specification_)
        # Kept only where it could be solved: a call with a wrong alpha leaves that of the last model.
        self._growth = replace(self._growth, problem=problem)
        self.features_ = result.features
        self._store(result, self._model_of_sums(sums, result), problem.seed, None)

    def _frozen(self) -> Model:
        if self._unsolved is not None:
            raise self._unsolved
        return super()._frozen()

    def _quality(self, result: FitResult, model: Model, fit: PreparedFit | None) -> dict[str, Any] | None:
        if fit is None and self._growth is not None:
            # Labels have no quality from sums: how many rows are right is not among them.
            if not isinstance(result.targets, NumericTargets):
                return None
            columns, sums = self._growth.columns, self._growth.sums
            assert columns.targets is not None
            if result.search.score is not None and (folds := result.grams.folds).may_lack:
                # As of a fit to rows: the linear model is one of all rows.
                columns = replace(columns, together=None, targets=sums.judged(columns.targets, folds))
            return quality_of_numbers(columns, result)
        return super()._quality(result, model, fit)

    @property
    def has_grown(self) -> bool:
        return self._growth is not None

    def _problem(self) -> Problem:
        return solvable(ridge_problem(self))

    def save(
        self,
        url: str,
        *,
        include_std: bool = False,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Write the fitted model; `distrff.load_model` reads it back.

        With `include_std` what `return_std` needs as well, a D × D matrix. `storage_options` are for fsspec.
        """
        model = self._with_posterior() if include_std else replace(self._frozen(), posterior=None)
        from distrff.model.persistence import save_model  # with its checks of stored parts

        save_model(model, url, overwrite=overwrite, storage_options=storage_options)

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        return {"y_is_1d": dataset.y_is_1d}

    def _keep(self, result: FitResult, model: Model) -> None:
        search, norms = result.search, np.atleast_1d(result.entries["rkhs_norm"])
        one = model.n_outputs == 1 and (model.y_is_1d or model.is_classifier)  # labels are several
        flat = one and not model.is_classifier
        self.coef_ = result.coef[:, 0] if flat else result.coef.T
        self.intercept_ = float(result.intercept[0]) if flat else result.intercept
        # A penalty that all targets share is one number, whatever their number.
        self.alpha_ = float(search.alpha[0]) if len(search.alpha) == 1 else search.alpha
        self.rkhs_norm_ = float(norms[0]) if one else norms
        self.cv_score_ = search.score
        self.cv_results_ = search.results
        if result.grams is not None:
            # Handles of sums that stay where they are, on a cluster too: posterior and models of folds may be
            # asked for later.
            self._grams = result.grams.kept()

    def _with_posterior(self) -> Model:
        """The model with its posterior, which is computed at first use, where the Gram is."""
        model = self._frozen()
        if model.posterior is not None:
            return model
        if self._growth is not None and "_grams" not in self.__dict__:  # after pickling
            # The sums were pickled, what their solution made of them was not.
            # The alpha that was found, and no search: the model must stay the one that was pickled.
            chosen = replace(self._growth.problem, penalty=Penalty(np.atleast_1d(self.alpha_)))
            again = self._growth.solved(chosen)
            assert again.grams is not None
            self._grams = again.grams.kept()
        grams = getattr(self, "_grams", None)
        if Trait.SPARSE in model.specification.traits:
            raise InputError(
                "standard deviations need a Gram of the features, and those of random binning are too many "
                "for one; use FourierFeatures or NystroemFeatures"
            )
        if grams is None and (solver := self.report_["solver"]) not in ("gram", "toeplitz"):
            raise InputError(
                f"standard deviations need the Gram of all rows, which solver={solver!r} does not form; "
                "fit with solver='gram'"
            )
        if grams is None:
            raise InputError(
                "the sums that standard deviations need stayed with the fit and are not part of a pickled "
                "model; ask for return_std once before pickling, or fit again"
            )
        found = [grams.posterior(alpha) for alpha in self._distinct_alphas.tolist()]
        self.model_ = replace(model, posterior=self._of_each(found))
        return self.model_

    @property
    def _distinct_alphas(self) -> np.ndarray:
        return np.unique(self.alpha_)

    def _of_each(self, posteriors: Sequence[Any]) -> Any:
        """The posterior of all targets, from one for each distinct alpha."""
        if len(posteriors) == 1:
            return posteriors[0]
        from distrff.solvers.posterior import PosteriorOfEach  # which few models have

        part_of = np.searchsorted(self._distinct_alphas, np.asarray(self.alpha_))
        return PosteriorOfEach.of(posteriors, np.atleast_1d(part_of))

    def _out_of_fold_models(self) -> FoldModels | None:
        sums = getattr(self, "_grams", None)
        if self._fold_models is None and sums is not None:
            # At first use: a factor of D³ for each fold, where the search kept none.
            self._fold_models = sums.fold_models(np.atleast_1d(self.alpha_))
        return self._fold_models


def _check_classes(sums: Statistics, classes: np.ndarray | None) -> None:
    targets = sums.targets
    if (
        classes is not None
        and isinstance(targets, ClassTargets)
        and classes.tolist() != targets.classes.tolist()
    ):
        raise InputError(
            f"classes are {classes.tolist()[:20]}, but those of the first call were "
            f"{targets.classes.tolist()[:20]}; they cannot change"
        )


@dataclass(eq=False, repr=False)
class KernelRidge(NumberEstimator, RidgeEstimator):
    r"""Kernel ridge regression on random features, from one Gram of the rows.

    Minimises Σ s_i (y_i − f(x_i))² + alpha‖w‖² over f(x) = ⟨w, z(x)⟩ + b, b unpenalised:
    the primal of kernel ridge regression with the kernel k(x, x') ≈ ⟨z(x), z(x')⟩. The
    rows are read twice: once for column statistics, once for the Gram of [z | 1 | y] per
    fold. Everything else (alpha, cross-validation, the learning curve, standard
    deviations) follows from the Gram.

    Parameters
    ----------
    features : FeatureMap, optional
        Default `AutoFeatures()`, which chooses map, kernel and widths. Where it may choose random binning,
        standard deviations need `AutoFeatures(maps=("fourier", "nystroem"))`.
    alpha : float, array-like of shape (n_targets,), "cv" or "gcv", default="cv"
        Penalty, positive, or one for each target; "cv" and "gcv" choose it by cross-validation. "cv" takes
        the best of `alphas` by exact cross-validation over held-out folds, "gcv" by generalised
        cross-validation (Golub, Heath and Wahba 1979). This may
        overfit by far where the features fit rows one by one: for more features than a twentieth of the
        rows "gcv" takes the error of one held-out fold, a fifth of the rows by their hash.
    alphas : array-like, optional
        Grid to choose from. Default: 25 values, geometric from 1e-9 to 1 times Σs·k(0), and more beyond an
        end that is the best, down to 1e-18 and up to 1e3.
        Values below the rounding noise of the products are left out, and reported.
    alpha_per_target : bool, default=False
        Whether ``alpha="cv"`` takes the best alpha of each target for itself, by its own held-out error.
        Where targets are more than features, a Gram leaves out their products with each other, so that 10,000
        of them are no matter. Deviations of the predictions take a factor of D² numbers for each alpha
        that is the best of some target.
    cv : "auto", int, folds, or splitter of scikit-learn
        Which rows are held out, and so stand for new ones, wherever the fit judges: for ``alpha="cv"``, a map
        that is chosen, the report. An integer: so many folds of rows at random, or of whole groups where
        `fit` was given groups. "auto": 5 such folds, but where equispaced features are taken or tried, in
        two or three columns and 10,000 rows or more, `BlockFolds` like the gaps of the map. Or `GroupFolds`,
        `BlockFolds`, `ForwardFolds`, `HashFolds`, `ContiguousFolds`. For rows in memory also any splitter of
        scikit-learn, or a list of (rows to fit, rows to judge); for others KFold, GroupKFold,
        LeaveOneGroupOut and TimeSeriesSplit.
    fold_by : {"hash", "contiguous"}
        With a number of folds: rows at random, or runs of consecutive rows.
    fit_intercept : bool, default=True
    scale : {"auto", "standard", "log", "quantile", "none"}
        "standard" brings columns to mean 0 and deviation 1 first, "log" and "quantile" after they were bent
        for heavy tails: by sign(x − m)·log(1 + |x − m|/u) with the median m and the median u of the |x − m|
        above 0, or by the normal scores Φ⁻¹ of their ranks, of new values between those of the fit's sample
        (not of sparse rows). "auto" is "standard" for dense columns, unless `AutoFeatures` finds that one of
        the others has a smaller held-out error; columns of sparse rows are only divided, by √(Σs·x²/Σs), and
        stay sparse.
        After either a dense column of one value, or a sparse one of zeros, has no effect in later rows.
    dtype : {"auto", "float32", "float64"}
        Of features and products; their sums are float64. "auto" takes float32 if all
        columns are float32 or integers of at most 16 bits, and float64 products whenever
        a given alpha is below float32's rounding noise.
    solver : {"auto", "gram", "cg", "sgd"}
        "gram" is the direct solution from the Gram, in D² memory. "cg" is conjugate gradients by
        light sweeps, for a given alpha: preconditioned by the factor of the Gram of a sample of
        the rows, or where D² does not fit by a diagonal, in O(D) memory. "sgd", for one given alpha and
        rows in no order, comes close in few passes. "auto" is the Gram, unless it does not fit in the
        workers' memory and alpha is given: then conjugate gradients; the report says so. Sparse features
        (random binning) are solved for by "sgd", or "cg" with a diagonal, for alpha="cv" with the models
        of all folds side by side, from the largest alpha down until the error has risen twice.
    tol : float
        For conjugate gradients, the relative residual ‖B − (G + alpha·I)w‖/‖B‖ of each target's
        normal equations; w is then at most tol·‖B‖/alpha away from the solution. For "sgd", the least
        relative fall of the objective.
    max_sweeps : int, optional
        Light sweeps of conjugate gradients, or passes of SGD, at most; default 200.
    keep_features : {"auto", True, False}
        Whether light sweeps, conjugate gradients and SGD keep the features of the rows in the workers' memory
        from pass to pass; the results are the same bits. "auto" keeps what there is room for, if features
        take longer to make than to read: up to 0.6 of a worker's memory limit, nothing where it has none; a
        quarter of the machine's memory without a cluster; nothing with dask's scheduler of processes, nor
        inside a Dask task or a child process, since other fits of a search may run beside it. Of further rows
        it keeps the decoded columns. `plan_` says how much. True keeps all, or refuses the fit; where some
        workers have more threads than others, a part is made again all the same. False reads and makes all
        again in each pass.
    random_state : int or None
        Seed of features (unless they have their own), folds and samples; None is fresh
        entropy, kept as `seed_`.
    warm_start : bool, default=False
        Go on from the model of the earlier `fit`, whatever its rows: map, scaling and classes stay, and the
        solver begins at its coefficients. That is for ``solver="cg"`` and "sgd", and random binning; a fit
        by a Gram needs no start, and begins anew. A search for alpha or C keeps the map alone, since the
        earlier model saw the rows of all folds. Other columns, classes, `features` or `scale` are an error,
        and so is a checkpoint.
    callbacks : list of functions, optional
        Each is called in this process after every pass of a fit, with a `SweepProgress`; returning True
        ends the fit, with the status STOPPED, as soon as there is a model: after a light sweep, or where the
        penalty is searched by light sweeps once one is judged. A direct solution has nothing left to stop.
        What it raises ends the fit. A fit that resumes a checkpoint calls them again for the stored sweeps.
        They are in no stored model, report, checkpoint or pickle. `EarlyStopping` is one that is shipped.

    Attributes
    ----------
    coef_ : ndarray of shape (n_features,) or (n_targets, n_features)
    intercept_ : float or ndarray of shape (n_targets,)
    alpha_ : float or ndarray of shape (n_targets,)
    cv_score_ : float or None
        Criterion at `alpha_`: weighted held-out mean squared error, averaged over targets.
    cv_results_ : dict
        `alphas` (m,), `mean_score` (m,) and, by "cv", `fold_scores` (m, n_folds). With `alpha_per_target`
        both scores have a last axis of n_targets, and NaN where an alpha was tried for others alone.
    features_ : FeatureMap
        The fitted map; its kernel's widths are numbers.
    rkhs_norm_ : float or ndarray of shape (n_targets,)
        ‖w‖₂, the norm of f in the space of the approximate kernel.
    report_ : FitReport
    plan_ : Plan
    n_iter_ : int
        Light sweeps of conjugate gradients, or passes of SGD; 1 of a direct solution.
    model_ : Model
        The frozen model, which predicts NumPy blocks without a cluster.
    n_features_in_, feature_names_in_, seed_

    Notes
    -----
    n·(2dD + (D+2)²) flops and n·D cosines for the rows, 4/3·D³ a fold for the alphas. By conjugate
    gradients n·(2dD + 4Dk) flops and n·D cosines a light sweep, of which a factor needs about ten; if
    `max_sweeps` or rounding end them first, a `ConvergenceWarning` says so and the best model is
    kept, as it is when they are interrupted.
    Fits inside Dask workers where a client is active, else by dask's configured
    scheduler. The same rows and seed give the same bits for any number of workers and any
    chunking, on one processor type, with one BLAS thread a task.
    """

    _: KW_ONLY
    alpha_per_target: bool = False

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, groups: Any = None) -> Self:
        """Add rows to the Gram, and solve for the model of all rows so far.

        The first call fits map, scaling and a chosen width to its rows, and these stay: rows like the later
        ones should be among them. All calls together give the model of one `fit` to all their rows with that
        map and scaling, up to rounding: row numbers go on, and so do folds at random; groups, cells and spans
        are those of the first call, and groups that come later are dealt by a hash.
        `alpha`, `alphas`, `alpha_per_target`, `fit_intercept` and `tol` count at each call, all other
        parameters at the first. `fit` forgets these sums and keeps none, so that a call after it begins
        anew, with a `DataWarning`. A call that fails changes nothing, nor does a `fit` that fails. Of
        `EquispacedFourierFeatures`, alpha is searched by sums that are rounded otherwise.

        Parameters
        ----------
        X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
            Of shape (n_samples, n_columns). A `Dataset` brings its own y.
        y : array-like of shape (n_samples,) or (n_samples, n_targets)
        sample_weight : array-like of shape (n_samples,), optional
        groups : array-like of shape (n_samples,), optional
            As for `fit`; at each call or at none.

        Raises
        ------
        InputError
            For rows that cannot be used, or of other columns, targets or table steps than the first ones, or
            outside the bounds of `EquispacedFourierFeatures`; for random binning, ``solver="cg"`` or "sgd"
            (equispaced features take "cg"), and folds that follow from the number of all rows. Where all rows
            so far are too few for a model, predictions raise it.

        Notes
        -----
        Two passes over the rows of a call, as for `gram`; a map that is chosen takes more at the first. The
        estimator holds 8·(D + 1 + k)² bytes a fold ("gcv" keeps two), which are pickled with it, since no row
        is kept from which they could be made again. So intervals take `calibrate`, and `evaluate` needs data.
        """
        return self._grow(X, y, sample_weight, groups)

    def predict(self, X: Any, return_std: Any = False, *, outside: str = "nan") -> Any:
        """Predictions, lazily for dask arrays.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)
            Or a raw table, where the fit was to one: of pandas, polars, pyarrow, Dask or xarray. A row that
            lacks a value, where the fit dropped such rows, has NaN.
        return_std : bool or "observation"
            Also return the standard deviation of f(x),
            √(σ̂²·z̃ᵀ(Z̃ᵀSZ̃ + alpha·I)⁻¹z̃ + σ̂²/Σs), with z̃ the centred features and
            σ̂² = weighted RSS / (Σs − effective dimension). It is the spread of the
            weights alone: far from the data, where D ≪ n features cannot tell rows apart,
            it is optimistic. Costs D² flops a row. "observation" is that of a new observation of
            weight 1, √(std² + σ̂²). Of `EquispacedFourierFeatures` it is estimated by 64 samples of
            the model, to 9 %; where nearly all rows are explained, with
            σ̂² = (weighted RSS + alpha·‖w‖²) / (Σs − p − 1), p being the covariates of a trend.
            Weights count rows: divide weights that are 1/variance by their mean, m, or deviations
            will be √m times too small.
        outside : {"nan", "error"}
            What becomes of rows outside the bounds of `EquispacedFourierFeatures`: NaN, with a warning
            that counts them, or an InputError.

        Returns
        -------
        ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)
            With `return_std`, a pair of them.
        """
        if return_std:
            std_of(return_std)
            self._with_posterior()
        return self._answer(X, "predict", return_std, outside=outside)

    def sample(self, X: Any, n_draws: int = 1, *, random_state: int | None = 0) -> Any:
        """Functions drawn from the posterior (conditional simulations) at rows, lazily for dask arrays.

        A draw is f + σ̂·L⁻ᵀζ in the features, L·Lᵀ = Z̃ᵀSZ̃ + alpha·I and ζ standard normal, with σ̂²/Σs for the
        intercept: so its standard deviation is that of `predict(X, return_std=True)`, and places vary
        together. Means over places, differences and maxima are as sure as those of draws, which have no noise
        of observations.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)
        n_draws : int
            `EquispacedFourierFeatures` have 64 at most.
        random_state : int or None
            The same seed gives the same functions, at any rows, and on rasters; None gives others each time.

        Returns
        -------
        ndarray or dask array of shape (n_samples, n_draws) or (n_samples, n_targets, n_draws)
            Targets are drawn independently of each other. NaN outside the bounds of the model.

        Raises InputError for more draws than there are, and a model without standard deviations.
        """
        self._with_posterior()
        return self._answer(X, "sample", n_draws, random_state=random_state)

    def predict_interval(self, X: Any, coverage: float = 0.9, method: str = "auto") -> tuple[Any, Any]:
        """Lower and upper ends of intervals for new targets, lazily for dask arrays.

        f(x) ± r·u(x), where r is the ⌈(n + 1)·coverage⌉-th smallest |y − f(x)|/u(x) of n rows, target by
        target, and u = √(a + std²/σ̂²), with std and σ̂ of `predict`: intervals are wider where rows of the
        fit are few. With a = 1 that is the deviation of a new observation in units of the noise's.

        Parameters
        ----------
        X : array-like, DataFrame, Dataset or dask array of shape (n_samples, n_columns)
        coverage : float
            In (0, 1): the share of new rows that should lie within.
        method : {"auto", "constant", "deviation", "residual"}
            "deviation" is as above; "constant" has u = 1, and one width for all rows. "residual" has
            u = exp g(x), where g is ridge on the same features for log(|e| + 0.01·median |e|) of the errors e
            out of fold: intervals are wider where errors are larger (Lei et al. 2018, section 5.2).
            "auto" is the one of these whose intervals of 90 % have the least interval score on the rows out
            of fold, width plus 20 times the distance outside; of equispaced features "residual" is not tried.

        Returns
        -------
        lower, upper : ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)
            As predictions. Infinite, with a DataWarning, where there are too few rows, or groups, for the
            coverage.

        Raises
        ------
        InputError
            Without calibration, for a fit without folds, or whose rows are not at hand; by "deviation" where
            `return_std` of `predict` does.

        Notes
        -----
        After `calibrate`, a new row that is exchangeable with the calibration rows lies within with
        probability at least `coverage`, on average over calibration sets; not for each x (split conformal
        prediction; Vovk, Gammerman and Shafer 2005, Lei et al. 2018). Calibrated with groups, so does a row
        of a new group that is exchangeable with these (Lee, Barber and Willett 2023). Without calibration the
        errors are those of the fit's own rows out of fold, from one more pass at first use. This carries no
        guarantee, whatever the folds are: their models saw fewer rows, all rows chose map and alpha, and
        times to come are not exchangeable with those before.

        By "deviation" errors and u are those of the model without the row's fold, and a is 1, 0.1, 0.01 or
        0.001, whichever makes these errors likeliest (less than 1 where errors grow with u even beside the
        rows, since features are too few for the function). At first use this takes a pass for the Gram or
        the sums again, then for each fold a factor of D³/3 flops, or 32 samples, and a pass of D² flops a
        row, or 16 transforms. `calibrate` takes the `a` that is known by then, else 1. A model saved without
        `include_std` has no deviations. "residual" takes a fit of ridge to the errors at first use, and then
        a pass a fold; a model that has it by then keeps it, and `calibrate` takes account of it.
        """
        one_of("method", method, [one for one in INTERVAL_METHODS if one != "quantile"])
        self._with_intervals("predict_interval", how=method)
        return self._answer(X, "predict_interval", coverage, method)

    @property
    def _tries_spread(self) -> bool:
        # Maps have deviations for their gaps, and another fit of theirs may take minutes.
        return bool(self.report_["solver"] == "gram")

    def _with_deviations(self, *, required: bool) -> None:
        intervals = self.model_.intervals
        assert intervals is not None
        if intervals.scaled or intervals.source == CALIBRATED:
            if required:
                self._with_posterior()
            return
        if len(self._distinct_alphas) > 1 and not required:
            return
        try:
            self._with_scaled_intervals(self._with_posterior())
        except InputError:  # other solvers have no deviations, nor have sums that are gone, or tiny alphas
            if required:
                raise

    def _with_scaled_intervals(self, model: Model) -> Model:
        folds, grams = self._out_of_fold_models(), getattr(self, "_grams", None)
        if folds is not None and grams is not None and self._fit_rows is not None:
            from distrff.diagnostics.evaluate import scaled_out_of_fold  # as in `calibrate`

            posteriors = map(self._of_each, grams.fold_posteriors(self._distinct_alphas.tolist()))
            self.model_ = scaled_out_of_fold(model, self._fit_rows, folds, posteriors)
        return self.model_

    def _to_calibrate(self) -> Model:
        if len(self._distinct_alphas) == 1:  # as above
            with suppress(InputError):
                return self._with_posterior()
        return self._frozen()


# Classification by kernel ridge regression on ±1.


@dataclass(eq=False, repr=False)
class KernelRidgeClassifier(KernelClassifier, RidgeEstimator):
    """Classifier by kernel ridge regression on labels coded as ±1.

    Two classes are one regression on −1 (first class) and +1; more are one against the
    rest each, all from the same Gram and the same features. Several columns of 0 and 1 are
    several labels of a row, of which it may have any number: one regression each. See
    `KernelRidge` for the objective and for the parameters not listed here.

    Parameters
    ----------
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all the
        one-against-the-rest problems. "balanced": Σs / (n_classes · weight of the class).
        Not for several labels.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Of several labels the numbers of their columns.
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    cv_score_ : float or None
        Weighted held-out mean squared error on the ±1 targets.
    """

    _: KW_ONLY
    class_weight: Any = None

    _target_kind = "classes"
    _takes_labels = True

    @property
    def classes_(self) -> np.ndarray:
        if self._growth is not None:  # known before the model is solved
            targets = self._growth.sums.targets
            assert not isinstance(targets, NumericTargets)
            return targets.classes
        return super().classes_

    def partial_fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, classes: Any = None, *, groups: Any = None
    ) -> Self:
        """Add rows to the Gram, and solve for the model of all rows so far.

        The report has no accuracy of such a fit, whose rows are gone.

        Parameters
        ----------
        X, y, sample_weight, groups
            As for `KernelRidge.partial_fit`; y of labels, or of 0 and 1 of shape (n_samples, n_labels).
        classes : array-like of shape (n_classes,), optional
            At the first call: all labels that any call may bring. Default: those of its rows.

        Raises
        ------
        InputError
            As `KernelRidge.partial_fit`; for labels that are not among the classes, other classes than at the
            first call, and ``class_weight="balanced"``, which follows from all rows (a dict does not).
        """
        return self._grow(X, y, sample_weight, groups, classes)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
