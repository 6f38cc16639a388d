"""Kernel principal component analysis."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from distrff.diagnostics.report import FitReport
from distrff.engine.execution import Workers
from distrff.engine.run import Run, begin_run, check_reading
from distrff.errors import InputError, check_count
from distrff.estimators.base import Machine
from distrff.estimators.fitting.context import Preparation, prepare_fit
from distrff.estimators.fitting.gram import features_dtype, gram_sweep, make_plan
from distrff.estimators.fitting.options import DTYPES, SCALES, FitOptions, checked_map, one_of
from distrff.estimators.fitting.plan import Plan
from distrff.estimators.fitting.reports import (
    data_notes,
    data_values,
    map_values,
    precision_notes,
    thread_notes,
    work_values,
)
from distrff.estimators.fitting.timing import seconds_told
from distrff.features.base import FeatureMap
from distrff.features.fourier import FourierFeatures
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.model.model import Model
from distrff.model.persistence import save_model
from distrff.preprocessing.targets import NumericTargets
from distrff.solvers.pca import PrincipalComponents, principal_components
from distrff.solvers.status import Status
from distrff.utils.random import resolve_seed


class KernelPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Machine):
    r"""Principal components in the space of a kernel, from one Gram of random features.

    The leading eigenvectors v of Σ s_i (z_i − z̄)(z_i − z̄)ᵀ, z̄ the weighted mean of the features
    z_i = z(x_i): kernel PCA with the kernel ⟨z(x), z(x')⟩ ≈ k(x, x') (Schölkopf, Smola and Müller 1998).
    The rows are read twice: once for column statistics, once for the Gram. A target is not looked at.

    Parameters
    ----------
    features : FeatureMap, optional
        Default `FourierFeatures()`: 1024 Fourier features of `Gaussian(1.0)`.
    n_components : int, default=2
        Components to keep, at most as many as there are features.
    scale : {"none", "standard"}
        Whether columns are first brought to mean 0 and deviation 1.
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
    model_ : Model
        The frozen machine, which transforms NumPy blocks without a cluster.
    n_features_in_, feature_names_in_, seed_

    Notes
    -----
    n·(2dD + (D+1)²) flops and n·D cosines for the rows, 4/3·D³ in one task for the components. Float32
    products leave rounding of about 10⁻⁶ of the largest eigenvalue: components below are noise.
    """

    _target_kind = "none"

    def __init__(
        self,
        features: FeatureMap | None = None,
        n_components: int = 2,
        *,
        scale: str = "none",
        dtype: str = "auto",
        random_state: int | None = None,
    ) -> None:
        self.features = features
        self.n_components = n_components
        self.scale = scale
        self.dtype = dtype
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the components of rows of any storage.

        Parameters
        ----------
        X : Dataset, array-like, DataFrame, scipy sparse matrix, dask array or dask DataFrame
            Of shape (n_samples, n_columns).
        y : ignored
        sample_weight : array-like of shape (n_samples,), optional

        Raises
        ------
        InputError
            For parameters or data that cannot be used.
        PlanRefused
            If it would not fit in the workers' memory; before the first task.
        """
        options = self._options()
        dataset = self._rows_to_fit(X, None, sample_weight)
        run, dtype = begin_run(), features_dtype(dataset, options.dtype)
        plan = self._presumed_plan(run.execution, dataset, options)
        preparation = prepare_fit(run, dataset, options, target_kind=self._target_kind, dtype=dtype)
        run.begin_phase("Gram")
        (gram,) = gram_sweep(run, dataset, preparation, plan, folds=None)
        run.begin_phase("components")
        found = run.gather([run.submit(principal_components, gram, int(self.n_components))])[0]
        self.seed_ = options.seed
        self._keep_columns(dataset.n_columns, dataset.column_names)
        self._keep(found, preparation)
        self.plan_ = plan.with_seconds(seconds_told(self._planned, plan))
        self.report_ = self._report(run, dataset, preparation)
        self.model_ = self._frozen(run, dataset, preparation)
        return self

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
        T = self._output(X, "decision")
        return T.astype(np.float32) if getattr(X, "dtype", None) == np.float32 else T

    def save(
        self, url: str, *, overwrite: bool = False, storage_options: dict[str, Any] | None = None
    ) -> None:
        """Write the fitted machine; `distrff.load_model` reads it back, to `transform` NumPy blocks."""
        check_is_fitted(self, "model_")
        save_model(self.model_, url, overwrite=overwrite, storage_options=storage_options)

    def _options(self) -> FitOptions:
        one_of("scale", self.scale, SCALES)
        one_of("dtype", self.dtype, DTYPES)
        if self.features is not None and checked_map(self.features).sparse_entries:
            raise InputError(
                "features of random binning are too many for a Gram, from which components are found; "
                "use FourierFeatures or NystroemFeatures"
            )
        k = self.n_components
        check_count("n_components", k)
        return FitOptions(
            features=FourierFeatures() if self.features is None else clone(self.features),
            fit_intercept=True,
            scale=self.scale,
            dtype=self.dtype,
            seed=resolve_seed(self.random_state),
        )

    def _dataset(self, X: Any, y: Any, sample_weight: Any) -> Dataset:
        return as_dataset(X, None, sample_weight)

    def _presumed_plan(self, workers: Workers, dataset: Dataset, options: FitOptions) -> Plan:
        check_reading(workers, dataset)
        n_features = options.features.n_features_for(dataset.n_columns)
        if self.n_components > n_features:
            raise InputError(
                f"n_components={self.n_components}, but the map has {n_features} features; "
                f"ask for fewer components, or for more features"
            )
        plan = make_plan(
            workers,
            dataset,
            n_features=n_features,
            n_outputs=0,
            n_folds=1,
            n_alphas=1,
            dtype=features_dtype(dataset, options.dtype),
            map_cost=options.features.cost_for(dataset.n_columns),
            n_map_passes=options.features.n_passes,
            n_eigensystems=1,
        )
        # Only now, for it draws a small map of all columns.
        options.features.check_shape(dataset.n_rows, dataset.n_columns)
        return plan

    def _keep(self, found: PrincipalComponents, preparation: Preparation) -> None:
        self.features_ = preparation.features
        self.components_ = found.components
        self.eigenvalues_ = found.eigenvalues
        self.mean_ = found.mean
        self.explained_variance_ = found.eigenvalues / preparation.weight
        self.explained_variance_ratio_ = found.eigenvalues / (found.total if found.total > 0 else 1.0)

    def _frozen(self, run: Run, dataset: Dataset, preparation: Preparation) -> Model:
        k = len(self.components_)
        return Model(
            kind=type(self).__name__,
            specification=preparation.specification.without_arrays(),
            scaling=preparation.scaling,
            targets=NumericTargets(np.zeros(k), np.ones(k)),
            coef=self.components_.T,
            intercept=-self.components_ @ self.mean_,
            dtype=self.plan_.shape.dtype,
            y_is_1d=False,
            column_names=dataset.column_names,
            steps=dataset.steps,
            arrays=preparation.specification.arrays_to_keep(derived=run.sends_derived),
            report=self.report_.to_dict(),
        )

    def _report(self, run: Run, dataset: Dataset, preparation: Preparation) -> FitReport:
        dtype = self.plan_.shape.dtype
        notes = data_notes(dataset) + precision_notes(preparation, dtype) + thread_notes(run)
        return FitReport(
            {
                "model": type(self).__name__,
                "status": Status.CONVERGED.name,
                "n_samples": dataset.n_rows,
                "n_components": preparation.specification.n_features,
                "n_outputs": len(self.components_),
                "dtype": dtype,
                "seed": self.seed_,
                **data_values(dataset),
                "explained_variance": self.explained_variance_,
                "explained_variance_ratio": self.explained_variance_ratio_,
                **map_values(preparation),
                **work_values(run, self.plan_),
                "notes": notes,
            }
        )

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
