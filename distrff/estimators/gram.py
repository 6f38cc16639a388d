"""The Gram of a dataset: as a value of its own, of which maps are fitted, and its leading components."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from numbers import Integral
from reprlib import repr as short
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin, clone
from sklearn.utils.validation import check_is_fitted

from distrff.engine.progress import FitLine, Observer
from distrff.errors import InputError
from distrff.estimators.base import KernelEstimator, open_rows, with_raw_columns
from distrff.features.base import FeatureMap
from distrff.features.fitted import Trait
from distrff.features.fourier import cosine_frequencies
from distrff.features.search.metric import gradient_outer
from distrff.fitting.equispaced import ToeplitzStatistics
from distrff.fitting.fit import begin, prepare, solvable
from distrff.fitting.problem import (
    DTYPES,
    SCALES,
    PreparedFit,
    Problem,
    check_sparse_rows,
    checked_folds,
    checked_map,
    map_for_gram,
    map_parameters,
)
from distrff.fitting.result import FitResult
from distrff.fitting.running import prepared_like, sums_of
from distrff.fitting.sums import GramStatistics
from distrff.io.arrays import as_dataset
from distrff.io.dataset import Dataset
from distrff.model.model import Model
from distrff.model.rows import through_steps
from distrff.preprocessing.folds import NO_FOLDS, folds_by
from distrff.utils.random import resolve_seed
from distrff.utils.validation import check_count, one_of


def gram(
    data: Any,
    features: FeatureMap | None = None,
    y: Any = None,
    sample_weight: Any = None,
    *,
    groups: Any = None,
    like: GramStatistics | ToeplitzStatistics | None = None,
    targets: str = "auto",
    cv: Any = None,
    fold_by: str = "hash",
    scale: str = "auto",
    dtype: str = "auto",
    random_state: int | None = None,
) -> GramStatistics | ToeplitzStatistics:
    """Gram of all rows, from which ridge models follow without the rows.

    Of `EquispacedFourierFeatures` these are the sums that make its Toeplitz matrix: `ToeplitzStatistics`.

    Parameters
    ----------
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
    features : FeatureMap, optional
        Fitted (then taken as it is) or not (then a clone is fitted on a sample).
    y, sample_weight, groups : array-like, optional
        Unless `data` brings them.
    like : GramStatistics or ToeplitzStatistics, optional
        Take map, scaling, targets and folds from it, so that both can be added or
        subtracted; then `features`, `targets`, `cv`, `scale` and `dtype` are not used.
    targets : {"auto", "numeric", "classes"}
        "auto": numbers are numbers, everything else is a class label. Several columns of classes are several
        labels of a row, 0 or 1 each.
    cv : int, "auto" or folds, optional
        Keep the sums apart that these folds take, as for `KernelRidge`; ``alpha="cv"`` needs them.
    fold_by : {"hash", "contiguous"}
    scale : {"auto", "standard", "log", "quantile", "none"}
    dtype : {"auto", "float32", "float64"}
    random_state : int or None

    Raises
    ------
    InputError
        For data or parameters that cannot be used.
    PlanRefused
        If it would not fit in the workers' memory.

    Notes
    -----
    Two passes over the rows. The client receives the Gram, 8·(D + 1 + k)² bytes a fold.
    """
    # A Gram of 10⁶ columns of bins would have 10¹² entries.
    if features is not None and Trait.SPARSE in checked_map(features).traits:
        raise InputError(
            "features of random binning are too many for a Gram; use FourierFeatures or NystroemFeatures, or "
            "fit a KernelRidge on these, which forms none"
        )
    seed, steps = resolve_seed(random_state), None if like is None else like.steps
    dataset = open_rows(*through_steps(steps, data, y, sample_weight, groups))
    if not dataset.n_targets:
        raise InputError("the Gram needs y; give it, or open the dataset with target=…")
    if like is not None:
        # Not ignored: whoever gives another number expects other folds.
        if cv is not None and not (isinstance(cv, Integral) and cv == like.n_folds):
            raise InputError(
                f"cv={short(cv)}, but the Gram to be like has {like.n_folds} fold(s) of its own; leave cv out"
            )
        # Files of earlier versions do not hold the rule.
        folds = folds_by(fold_by, like.n_folds, seed) if like.folds is None else like.folds
        dataset = with_raw_columns(dataset, data, folds)
        with _observed() as observer:
            return sums_of(prepared_like(dataset, like, folds, seed=seed, observer=observer), like)
    if features is None:
        raise InputError("features is None; give a feature map, or `like` an earlier Gram")
    one_of("targets", targets, ("auto", "numeric", "classes"))
    one_of("scale", scale, SCALES)
    one_of("dtype", dtype, DTYPES)
    check_sparse_rows(dataset.is_sparse, features, scale)
    is_equispaced = Trait.SUMS in checked_map(features).traits
    # Sums of equispaced features are free of the kernel, which is chosen when they are solved; other maps are
    # fitted before they are summed.
    features = clone(checked_map(features)) if is_equispaced else map_for_gram(checked_map(features))
    held_out = checked_folds("auto" if cv is None else cv, fold_by, seed)
    dataset = with_raw_columns(dataset, data, held_out)
    problem = Problem(
        solver="toeplitz" if is_equispaced else "gram",
        features=features,
        target_kind=_kind(dataset, targets),
        folds=NO_FOLDS if cv is None else held_out,
        held_out=held_out,
        scale=scale,
        dtype=dtype,
        seed=seed,
        grows=True,
    )
    with _observed() as observer:
        return sums_of(prepare(begin(dataset, problem, observer=observer)))


@contextmanager
def _observed() -> Iterator[Observer]:
    """Show how far the passes are, as fits do."""
    observer = Observer((), FitLine())
    try:
        yield observer
    finally:
        observer.close()


def fit_features(
    features: FeatureMap, data: Any, y: Any = None, *, scale: str = "auto", random_state: int | None = None
) -> FeatureMap:
    """A clone of the map, fitted to a dataset of any storage in one pass over its rows.

    Parameters
    ----------
    features : FeatureMap
    data : Dataset, array-like, DataFrame, dask array or dask DataFrame
    y : array-like, optional
        Targets, unless `data` brings them; an automatic length scale is better with them.
    scale : {"auto", "standard", "log", "quantile", "none"}
        As the rows will be scaled before they meet the map.
    random_state : int or None
        Seed, unless the map has its own.
    """
    fitted = prepare_map(features, as_dataset(data, y), scale=scale, random_state=random_state).features
    assert fitted is not None
    return fitted


def prepare_map(
    features: FeatureMap, dataset: Dataset, *, scale: str, random_state: int | None = None
) -> PreparedFit:
    """A clone of the map, fitted to a dataset, with the scaling of its rows."""
    one_of("scale", scale, SCALES)
    features.check_parameters()
    check_sparse_rows(dataset.is_sparse, features, scale)
    problem = Problem(
        features=clone(features),
        target_kind=_kind(dataset, "auto") if dataset.n_targets else "none",
        scale=scale,
        seed=resolve_seed(random_state),
    )
    return prepare(begin(dataset, problem))


def _kind(dataset: Dataset, targets: str) -> str:
    """Kind of the targets; "auto" takes numbers as numbers, and all else as labels."""
    if targets == "auto":
        # Booleans are labels: whoever fits True and False asks for classes.
        is_number = dataset.y_dtype is not None and dataset.y_dtype.kind in "fiu"
        targets = "numeric" if is_number else "classes"
    return "multilabel" if targets == "classes" and dataset.n_targets > 1 else targets


# How a model varies, from its Gram.


def gradient_outer_product(model: Any, gram: GramStatistics) -> np.ndarray:
    """Average outer product of a model's gradients, M = Σ s ∇f ∇fᵀ/Σs, without any row.

    Its eigenvectors of large eigenvalues are the directions along which f varies, and the roots of its
    diagonal say how much it varies with each column (Radhakrishnan, Beaglehole, Pandit and Belkin 2024,
    "Mechanism for feature learning in neural networks and backpropagation-free machine learning models"). It
    is added up over the outputs, each divided by the variance of its target. Gradients are by the scaled
    columns, as the map sees them.

    Parameters
    ----------
    model : fitted estimator or Model
        On `FourierFeatures` with form="cos_sin", with or without a metric.
    gram : GramStatistics
        Made of the same map, for the rows to be averaged over: those of the fit, or others.

    Returns
    -------
    ndarray of shape (n_columns, n_columns), symmetric

    Raises
    ------
    InputError
        If an argument is of another type, if the model is on other features, or if the Gram is of another
        map, scaling or number of targets.

    Notes
    -----
    D²·k + n_columns·D²/2 flops.
    """
    if not isinstance(gram, GramStatistics) or not isinstance(model, Model | BaseEstimator):
        raise InputError(
            f"gradient_outer_product takes a fitted estimator or a Model, and then a GramStatistics, "
            f"got {type(model).__name__} and {type(gram).__name__}"
        )
    if not isinstance(model, Model):
        check_is_fitted(model, "model_")
        model = model.model_
    if model.specification != gram.specification or not model.scaling.equals(gram.scaling):
        raise InputError(
            "this Gram is of another map, or scales its columns differently than the model; make it with "
            "gram(features=model.features_, …) and the model's scale, or fit the model by fit_gram"
        )
    A, D, k = gram.whole, gram.specification.n_features, gram.targets.n_outputs
    if model.coef.shape[1] != k:
        raise InputError(
            f"the model has {model.coef.shape[1]} outputs, the Gram {k}; make one of the same targets"
        )
    W = cosine_frequencies(gram.specification)
    weight = A[D, D]
    # A is the Gram of [Z | 1 | Y]: column D of ones has Σs, Σs·y beside the targets' own squares.
    means, squares = A[D, D + 1 :] / weight, np.diagonal(A)[D + 1 :] / weight
    variance = np.square(gram.targets.scale) * np.maximum(squares - np.square(means), 0.0)
    # Or a target in small units would hardly count.
    coef = model.coef / np.sqrt(np.where(variance > 0, variance, 1.0))
    return gradient_outer(W, coef, A[:D, :D], weight)


# The leading components of a Gram.


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
