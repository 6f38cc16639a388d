"""Kernel principal component analysis."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from distrff.errors import InputError
from distrff.estimators.base import KernelEstimator
from distrff.features.base import FeatureMap
from distrff.fitting.context import PreparedFit
from distrff.fitting.cost import Plan
from distrff.fitting.gram import gram_passes
from distrff.fitting.options import FitOptions, map_options
from distrff.fitting.result import FitResult
from distrff.io.dataset import Dataset
from distrff.io.open import open_rows
from distrff.model.model import Model
from distrff.preprocessing.coding import NumericTargets
from distrff.solvers.pca import PrincipalComponents, principal_components
from distrff.utils.validation import check_count


@dataclass(frozen=True, eq=False, kw_only=True)
class ComponentOptions(FitOptions):
    """Parameters of principal components."""

    n_components: int

    def work(self, n_rows: int, n_features: int, n_outputs: int) -> dict[str, Any]:
        return super().work(n_rows, n_features, n_outputs) | {"n_eigensystems": 1}

    def check_dataset(self, dataset: Dataset) -> None:
        n_features = self.features.n_features_for(dataset.n_columns, dataset.n_rows)
        if self.n_components > n_features:
            raise InputError(
                f"n_components={self.n_components}, but the map has {n_features} features; "
                f"ask for fewer components, or for more features"
            )


def fit_components(fit: PreparedFit, plan: Plan) -> FitResult:
    """Return the leading eigenvectors of the Gram, after one pass over the rows."""
    options, run = fit.options, fit.run
    assert isinstance(options, ComponentOptions)
    run.begin_phase("Gram")
    (gram,) = gram_passes(fit, plan, folds=None)
    run.begin_phase("components")
    found: PrincipalComponents = run.compute(principal_components, gram, options.n_components)
    k = len(found.components)
    return FitResult(
        run=run,
        plan=plan,
        n_rows=fit.dataset.n_rows,
        dtype=plan.size.dtype,
        targets=NumericTargets(np.zeros(k), np.ones(k)),
        coef=found.components.T,
        intercept=-found.components @ found.mean,
        search=found,
        entries={
            "explained_variance": found.eigenvalues / fit.weight,
            "explained_variance_ratio": found.eigenvalues / (found.total if found.total > 0 else 1.0),
        },
    )


@dataclass(eq=False, repr=False)
class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, KernelEstimator):
    r"""Principal components in the space of a kernel, from one Gram of random features.

    The leading eigenvectors v of Σ s_i (z_i − z̄)(z_i − z̄)ᵀ, z̄ the weighted mean of the features
    z_i = z(x_i): kernel PCA with the kernel ⟨z(x), z(x')⟩ ≈ k(x, x') (Schölkopf, Smola and Müller 1998).
    The rows are read twice: once for column statistics, once for the Gram. A target is not looked at.

    Parameters
    ----------
    features : FeatureMap, optional
        Default: 1024 Fourier features of `Gaussian("auto")`, as `AutoFeatures` takes without a target.
    n_components : int, default=2
        Components to keep, at most as many as there are features.
    scale : {"auto", "standard", "none"}
        "standard" brings columns to mean 0 and deviation 1 first. "auto" does so for dense columns; those of
        sparse rows are only divided, by √(Σs·x²/Σs), and stay sparse.
    dtype : {"auto", "float32", "float64"}
        Of features and products; their sums are float64. "auto" takes float32 if all columns are float32
        or integers of at most 16 bits.
    random_state : int or None
        Seed of the features, unless they have their own, and of samples.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal; the entry of largest magnitude of each is positive.
    eigenvalues_ : ndarray of shape (n_components,)
        Of the centred Gram of the rows, descending.
    explained_variance_ : ndarray of shape (n_components,)
        `eigenvalues_` / Σs: the weighted variance of the rows along each component.
    explained_variance_ratio_ : ndarray of shape (n_components,)
        Its share of the variance along all components.
    mean_ : ndarray of shape (n_features,)
        z̄.
    features_ : FeatureMap
        The fitted map; its kernel's widths are numbers.
    report_ : FitReport
    plan_ : Plan
    n_iter_ : int
        1, of a direct solution.
    model_ : Model
        The frozen model, which transforms NumPy blocks without a cluster.
    n_features_in_, feature_names_in_, seed_

    Notes
    -----
    n·(2dD + (D+1)²) flops and n·D cosines for the rows, 4/3·D³ in one task for the components. Float32
    products leave rounding of about 10⁻⁶ of the largest eigenvalue: components below are noise.
    """

    features: FeatureMap | None = None
    n_components: int = 2
    _: KW_ONLY
    scale: str = "auto"
    dtype: str = "auto"
    random_state: int | None = None

    _target_kind = "none"
    _solvers = MappingProxyType({"gram": fit_components})

    def transform(self, X: Any) -> Any:
        """Return the coordinates of rows along the components, lazily for dask arrays.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)

        Returns
        -------
        ndarray or dask array of shape (n_samples, n_components)
            float32 for float32 rows, else float64.
        """
        T = self._answer(X, "transform")
        return T.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else T

    def _options(self) -> ComponentOptions:
        shared = map_options(self)
        if shared["features"].sparse_entries:
            raise InputError(
                "features of random binning are too many for a Gram, from which components are found; "
                "use FourierFeatures or NystroemFeatures"
            )
        check_count("n_components", self.n_components)
        return ComponentOptions(**shared, n_components=int(self.n_components))

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        return open_rows(X, None, sample_weight)

    def _of_model(self, dataset: Dataset) -> dict[str, Any]:
        return {"y_is_1d": False}

    def _keep(self, result: FitResult, model: Model) -> None:
        found = result.search
        self.components_ = found.components
        self.eigenvalues_ = found.eigenvalues
        self.mean_ = found.mean
        self.explained_variance_ = result.entries["explained_variance"]
        self.explained_variance_ratio_ = result.entries["explained_variance_ratio"]

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
