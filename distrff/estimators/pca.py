"""Kernel principal component analysis."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin

from distrff.estimators.base import KernelEstimator, open_rows
from distrff.features.base import FeatureMap
from distrff.fitting.fit import solvable
from distrff.fitting.problem import Problem, map_parameters
from distrff.fitting.result import FitResult
from distrff.io.dataset import Dataset
from distrff.model.model import Model
from distrff.utils.validation import check_count


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
    scale, dtype, random_state
        As those of `KernelRidge`.

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
    features_, report_, plan_, n_iter_, model_, n_features_in_, feature_names_in_, seed_
        As those of `KernelRidge`.

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

    def transform(self, X: Any) -> Any:
        """Coordinates of rows along the components, lazily for dask arrays.

        Parameters
        ----------
        X : array-like, DataFrame or dask array of shape (n_samples, n_columns)

        Returns
        -------
        ndarray or dask array of shape (n_samples, n_components)
            float32 for float32 rows, else float64.
        """
        # Transformers of scikit-learn keep the dtype of their rows.
        T = self._answer(X, "transform")
        return T.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else T

    def _problem(self) -> Problem:
        check_count("n_components", self.n_components)
        return solvable(Problem(**map_parameters(self), n_components=int(self.n_components)))

    def _dataset(self, X: Any, y: Any, sample_weight: Any, groups: Any = None) -> Dataset:
        # Pipelines pass a target to all of their steps.
        return open_rows(X, None, sample_weight, groups)

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
