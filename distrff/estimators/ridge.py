"""Kernel ridge regression."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from distrff.errors import InputError
from distrff.estimators.base import KernelClassifier, KernelEstimator
from distrff.estimators.fitting.cg import fit_by_conjugate_gradients
from distrff.estimators.fitting.gram import Grams, fit_by_gram, fit_statistics
from distrff.estimators.fitting.options import RidgeOptions, ridge_options
from distrff.estimators.fitting.result import FitResult
from distrff.estimators.fitting.sgd import fit_ridge_by_sgd
from distrff.estimators.fitting.toeplitz import Sums, fit_by_toeplitz, fit_toeplitz_statistics
from distrff.features.base import FeatureMap
from distrff.io.dataset import Dataset
from distrff.model.folds import FoldModels
from distrff.model.model import Model, std_of
from distrff.model.persistence import save_model
from distrff.reductions.equispaced import ToeplitzStatistics
from distrff.reductions.gram import GramStatistics

# What ridge models for numbers and for classes share.


class RidgeEstimator(KernelEstimator):
    """Ridge on random features; see `KernelRidge` for the parameters."""

    _solvers = MappingProxyType(
        {
            "gram": fit_by_gram,
            "cg": fit_by_conjugate_gradients,
            "sgd": fit_ridge_by_sgd,
            "toeplitz": fit_by_toeplitz,
        }
    )
    _not_pickled = (*KernelEstimator._not_pickled, "_grams")

    def __init__(
        self,
        features: FeatureMap | None = None,
        alpha: Any = "cv",
        *,
        alphas: Any = None,
        cv: int = 5,
        fold_by: str = "hash",
        fit_intercept: bool = True,
        scale: str = "auto",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
        callbacks: Any = None,
    ) -> None:
        self.features = features
        self.alpha = alpha
        self.alphas = alphas
        self.cv = cv
        self.fold_by = fold_by
        self.fit_intercept = fit_intercept
        self.scale = scale
        self.dtype = dtype
        self.solver = solver
        self.tol = tol
        self.max_sweeps = max_sweeps
        self.random_state = random_state
        self.callbacks = callbacks

    def fit_gram(self, statistics: GramStatistics | ToeplitzStatistics) -> Self:
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
        options = self._options()
        if options.solver == "cg" and not isinstance(statistics, ToeplitzStatistics):
            raise InputError("solver='cg' passes over rows, and a Gram has none; use solver='gram' or 'auto'")
        if getattr(self, "class_weight", None) is not None:
            raise InputError(
                "class_weight cannot be applied to a Gram, whose rows are already weighted; "
                "give sample_weight to gram(...), or fit the rows"
            )
        for name in self._not_pickled:
            self.__dict__.pop(name, None)
        if isinstance(statistics, ToeplitzStatistics):
            result = fit_toeplitz_statistics(statistics, options)
            assert result.features is not None
            statistics = replace(statistics, specification=result.features.specification_)
        else:
            result = fit_statistics(statistics, options)
        self.__dict__.pop("features_", None)
        model = Model(
            kind=type(self).__name__,
            specification=statistics.specification,
            scaling=statistics.scaling,
            targets=statistics.targets,
            coef=result.coef,
            intercept=result.intercept,
            dtype=statistics.dtype,
            y_is_1d=statistics.y_is_1d,
        )
        self._store(result, model, options.seed, None)
        return self

    def _options(self) -> RidgeOptions:
        return ridge_options(self)

    def save(
        self,
        url: str,
        *,
        include_std: bool = False,
        overwrite: bool = False,
        storage_options: dict[str, Any] | None = None,
    ) -> None:
        """Write the fitted model; `distrff.load_model` reads it back.

        Parameters
        ----------
        url : str
        include_std : bool
            Store what `return_std` needs as well, a D × D matrix.
        overwrite : bool
        storage_options : dict, optional
            For fsspec.
        """
        check_is_fitted(self, "model_")
        model = self._with_posterior() if include_std else replace(self.model_, posterior=None)
        save_model(model, url, overwrite=overwrite, storage_options=storage_options)

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        return {"y_is_1d": dataset.y_is_1d}

    def _keep(self, result: FitResult, model: Model) -> None:
        search, norms = result.search, np.linalg.norm(result.coef, axis=0)
        one = model.n_outputs == 1 and (model.y_is_1d or model.is_classifier)
        flat = one and not model.is_classifier
        self.coef_ = result.coef[:, 0] if flat else result.coef.T
        self.intercept_ = float(result.intercept[0]) if flat else result.intercept
        self.alpha_ = float(search.alpha[0]) if len(search.alpha) == 1 else search.alpha
        self.rkhs_norm_ = float(norms[0]) if one else norms
        self.cv_score_ = search.score
        self.cv_results_ = search.results
        if result.grams is not None:
            self._grams = result.grams.kept()

    def _with_posterior(self) -> Model:
        """Return the model with its posterior, which is computed at first use, where the Gram is."""
        if self.model_.posterior is not None:
            return self.model_
        grams: Grams | Sums | None = getattr(self, "_grams", None)
        if self.model_.specification.is_sparse:
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
        alphas = np.unique(self.alpha_)
        if len(alphas) > 1:
            raise InputError("return_std needs one alpha for all targets; fit with a single alpha")
        self.model_ = replace(self.model_, posterior=grams.posterior(float(alphas[0])))
        return self.model_

    def _out_of_fold_models(self) -> FoldModels | None:
        sums = getattr(self, "_grams", None)
        if self._fold_models is None and isinstance(sums, Sums):
            self._fold_models = sums.fold_models(np.atleast_1d(self.alpha_))
        return self._fold_models


class KernelRidge(RegressorMixin, RidgeEstimator):
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
        Penalty; positive. "cv" takes the best of `alphas` by exact cross-validation over
        held-out folds, "gcv" by generalised cross-validation (Golub, Heath and Wahba 1979). This may
        overfit by far where the features fit rows one by one: for more features than a twentieth of the
        rows "gcv" takes the error of one held-out fold, a fifth of the rows by their hash.
    alphas : array-like, optional
        Grid to choose from. Default: 25 values, geometric from 1e-9 to 1 times Σs·k(0), and more beyond an
        end that is the best, down to 1e-18 and up to 1e3.
        Values below the rounding noise of the products are left out, and reported.
    cv : int, default=5
        Folds, for ``alpha="cv"``.
    fold_by : {"hash", "contiguous"}
        Folds by a hash of the row number, or as runs of consecutive rows.
    fit_intercept : bool, default=True
    scale : {"auto", "standard", "none"}
        "standard" brings columns to mean 0 and deviation 1 first. "auto" does so for dense columns; those of
        sparse rows are only divided, by √(Σs·x²/Σs), and stay sparse.
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
    random_state : int or None
        Seed of features (unless they have their own), folds and samples; None is fresh
        entropy, kept as `seed_`.
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
        `alphas` (m,), `mean_score` (m,) and, by "cv", `fold_scores` (m, n_folds).
    features_ : FeatureMap
        The fitted map; its kernel's widths are numbers.
    rkhs_norm_ : float or ndarray of shape (n_targets,)
        ‖w‖₂, the norm of f in the space of the approximate kernel.
    report_ : FitReport
    plan_ : Plan
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

    _target_kind = "numeric"

    def predict(self, X: Any, return_std: Any = False, *, outside: str = "nan") -> Any:
        """Return predictions, lazily for dask arrays.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)
        return_std : bool or "observation"
            Also return the standard deviation of f(x),
            √(σ̂²·z̃ᵀ(Z̃ᵀSZ̃ + alpha·I)⁻¹z̃ + σ̂²/Σs), with z̃ the centred features and
            σ̂² = weighted RSS / (Σs − effective dimension). It is the spread of the
            weights alone: far from the data, where D ≪ n features cannot tell rows apart,
            it is optimistic. Costs D² flops a row. "observation" is that of a new observation of
            weight 1, √(std² + σ̂²). Of `EquispacedFourierFeatures` it is estimated by 64 samples of
            the model, to 9 %; at first use these take another pass over the rows, which must be as
            they were at the fit.
        outside : {"nan", "error"}
            What becomes of rows outside the bounds of `EquispacedFourierFeatures`: NaN, with a warning
            that counts them, or an InputError.

        Returns
        -------
        ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)
            With `return_std`, a pair of them.
        """
        of = std_of(return_std)
        prediction = self._output(X, "predict", outside=outside)
        if not return_std:
            return prediction
        self._with_posterior()
        return prediction, self._output(X, "std", of=of)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> tuple[Any, Any]:
        """Return the lower and the upper ends of intervals for new targets, lazily for dask arrays.

        f(x) ± r, where r is the ⌈(n + 1)·coverage⌉-th smallest |y − f(x)| of n rows, target by target.

        Parameters
        ----------
        X : array-like, DataFrame, Dataset or dask array of shape (n_samples, n_columns)
        coverage : float
            In (0, 1): the share of new rows that should lie within.

        Returns
        -------
        lower, upper : ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)
            As predictions. Infinite, with a DataWarning, where there are too few rows for the coverage.

        Raises
        ------
        InputError
            Without calibration, for a fit without folds, or whose rows are not at hand.

        Notes
        -----
        After `calibrate`, a new row that is exchangeable with the calibration rows lies within with
        probability at least `coverage`, on average over calibration sets; not for each x (split conformal
        prediction; Vovk, Gammerman and Shafer 2005, Lei et al. 2018). Without it the errors are those of the
        fit's own rows out of fold, from one more pass at first use, which carries no guarantee: the models of
        the folds saw fewer rows, and all rows chose map and alpha. All intervals of a target have the
        same width, also where the model is less sure; see `return_std` of `predict` for that.
        """
        intervals = self._with_intervals("predict_interval").checked_intervals("predict_interval")
        return intervals.around(self._output(X, "predict"), coverage)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return r², the share of the targets' variance explained, averaged over targets.

        One light pass over rows of any storage; dask arrays are not brought to memory.
        """
        return self._errors(X, y, sample_weight).scores()["r2"]

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> Any:
        dataset = super()._dataset(X, y, sample_weight)
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


# Classification by kernel ridge regression on ±1.


class KernelRidgeClassifier(KernelClassifier, RidgeEstimator):
    """Classifier by kernel ridge regression on labels coded as ±1.

    Two classes are one regression on −1 (first class) and +1; more are one against the
    rest each, all from the same Gram and the same features. See `KernelRidge` for the
    objective and for the parameters not listed here.

    Parameters
    ----------
    class_weight : None, "balanced" or dict of label to weight
        Multiplies the weights of the rows of each class, the same in all the
        one-against-the-rest problems. "balanced": Σs / (n_classes · weight of the class).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    coef_ : ndarray of shape (1 or n_classes, n_features)
    intercept_ : ndarray of shape (1 or n_classes,)
    cv_score_ : float or None
        Weighted held-out mean squared error on the ±1 targets.

    Notes
    -----
    Labels may be of any type that sorts; numbers and strings can be stored.
    """

    _target_kind = "classes"

    def __init__(
        self,
        features: FeatureMap | None = None,
        alpha: Any = "cv",
        *,
        alphas: Any = None,
        cv: int = 5,
        fold_by: str = "hash",
        fit_intercept: bool = True,
        scale: str = "auto",
        dtype: str = "auto",
        solver: str = "auto",
        tol: float = 1e-3,
        max_sweeps: int | None = None,
        random_state: int | None = None,
        class_weight: Any = None,
        callbacks: Any = None,
    ) -> None:
        super().__init__(
            features,
            alpha,
            alphas=alphas,
            cv=cv,
            fold_by=fold_by,
            fit_intercept=fit_intercept,
            scale=scale,
            dtype=dtype,
            solver=solver,
            tol=tol,
            max_sweeps=max_sweeps,
            random_state=random_state,
            callbacks=callbacks,
        )
        self.class_weight = class_weight
