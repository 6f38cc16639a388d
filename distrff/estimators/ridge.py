"""Kernel ridge regression."""

from __future__ import annotations

from typing import Any

from sklearn.base import RegressorMixin

from distrff.errors import InputError
from distrff.estimators.ridge_base import RidgeMachine


class KernelRidge(RegressorMixin, RidgeMachine):
    r"""Kernel ridge regression on random features, from one Gram of the rows.

    Minimises Σ s_i (y_i − f(x_i))² + alpha‖w‖² over f(x) = ⟨w, z(x)⟩ + b, b unpenalised:
    the primal of kernel ridge regression with the kernel k(x, x') ≈ ⟨z(x), z(x')⟩. The
    rows are read twice: once for column statistics, once for the Gram of [z | 1 | y] per
    fold. Everything else (alpha, cross-validation, the learning curve, standard
    deviations) follows from the Gram.

    Parameters
    ----------
    features : FeatureMap, optional
        Default `FourierFeatures()`: 1024 Fourier features of `Gaussian(1.0)`.
    alpha : float, array-like of shape (n_targets,), "cv" or "gcv"
        Penalty; positive. "cv" takes the best of `alphas` by exact cross-validation over
        held-out folds, "gcv" by generalised cross-validation (Golub, Heath and Wahba 1979). This may
        overfit by far where the features fit rows one by one: for more features than a twentieth of the
        rows "gcv" takes the error of one held-out fold, a fifth of the rows by their hash.
    alphas : array-like, optional
        Grid to choose from. Default: 25 values, geometric from 1e-9 to 1 times Σs·k(0).
        Values below the rounding noise of the products are left out, and reported.
    cv : int, default=5
        Folds, for ``alpha="cv"``.
    fold_by : {"hash", "contiguous"}
        Folds by a hash of the row number, or as runs of consecutive rows.
    fit_intercept : bool, default=True
    scale : {"none", "standard"}
        Whether columns are first brought to mean 0 and deviation 1.
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
        (random binning) are solved for by "sgd", or "cg" with a diagonal, for alpha="cv" with the machines
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
        The frozen machine, which predicts NumPy blocks without a cluster.
    n_features_in_, feature_names_in_, seed_

    Notes
    -----
    n·(2dD + (D+2)²) flops and n·D cosines for the rows, 4/3·D³ a fold for the alphas. By conjugate
    gradients n·(2dD + 4Dk) flops and n·D cosines a light sweep, of which a factor needs about ten; if
    `max_sweeps` or rounding end them first, a `ConvergenceWarning` says so and the best machine is
    kept, as it is when they are interrupted.
    Fits inside Dask workers where a client is active, else by dask's configured
    scheduler. The same rows and seed give the same bits for any number of workers and any
    chunking, on one processor type, with one BLAS thread a task.
    """

    _target_kind = "numeric"

    def predict(self, X: Any, return_std: bool = False) -> Any:
        """Return predictions, lazily for dask arrays.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)
        return_std : bool
            Also return the standard deviation of f(x),
            √(σ̂²·z̃ᵀ(Z̃ᵀSZ̃ + alpha·I)⁻¹z̃ + σ̂²/Σs), with z̃ the centred features and
            σ̂² = weighted RSS / (Σs − effective dimension). It is the spread of the
            weights alone: far from the data, where D ≪ n features cannot tell rows apart,
            it is optimistic. Costs D² flops a row.

        Returns
        -------
        ndarray or dask array of shape (n_samples,) or (n_samples, n_targets)
            With `return_std`, a pair of them.
        """
        prediction = self._output(X, "predict")
        if not return_std:
            return prediction
        self._with_posterior()
        return prediction, self._output(X, "std")

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return r², the share of the targets' variance explained, averaged over targets.

        One light pass over rows of any storage; dask arrays are not brought to memory.
        """
        return self._score_sums(X, y, sample_weight).regression_scores()["r2"]

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
