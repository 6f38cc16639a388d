"""A frozen model as a pipeline of scikit-learn's own estimators, with their fitted attributes set."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import kernels as gp
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from distrff.errors import DataWarning, InputError, warn
from distrff.features.compose import ConcatenatedMap, LinearMap
from distrff.features.fitted import FittedMap, ProjectedMap, arrays_inside
from distrff.features.fourier import FourierMap
from distrff.features.nystroem import NystroemMap
from distrff.features.transformer import TransformerMap
from distrff.kernels.base import Kernel, Polynomial, Product, Scaled, Sum
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern
from distrff.model.model import Model
from distrff.preprocessing.coding import ClassTargets, Scaling


def sklearn_pipeline(model: Model, parameters: Mapping[str, Any]) -> Pipeline:
    """A fitted pipeline that predicts as the model does, with the `parameters` of its estimator.

    A `StandardScaler` if the model scales, the map (`_sklearn_map`), and a linear model: Ridge,
    RidgeClassifier, LinearSVC, LogisticRegression (one per class against the rest) or PCA.

    Raises InputError for a map, or a noise, that scikit-learn does not have.
    """
    if model.kind not in _ESTIMATORS:
        raise InputError(
            f"scikit-learn's linear models have other objectives than a {model.kind}: they penalise the "
            f"intercept, fit a scale, or take other norms; use its model_, which needs NumPy alone"
        )
    map_ = _sklearn_map(model.specification, model.arrays)
    machine = _ESTIMATORS[model.kind](model, _refit(model, parameters))
    steps = [*_scaler(model.scaling, model.n_columns)]
    steps += [("features", map_)] if map_ is not None else []
    if not steps:  # the first step keeps the column names, and the last one expects unnamed features
        steps = [("features", _identity(model.n_columns))]
    if model.column_names is not None:
        _first_leaf(steps[0][1]).feature_names_in_ = np.asarray(model.column_names, dtype=object)
    return Pipeline([*steps, ("machine", machine)])


def _refit(model: Model, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with which scikit-learn minimises what the fit did, alpha and C as found."""
    names = ("fit_intercept", "class_weight")
    found = {name: parameters[name] for name in names if name in parameters}
    # As found, and not as given: "cv" means nothing to scikit-learn.
    if "C" in parameters:
        return found | {"C": float(model.report["C"]), "max_iter": 10_000}
    if "alpha" in parameters:
        alpha = model.report["alpha"]
        return found | {"alpha": np.array(alpha) if isinstance(alpha, list) else alpha}
    return found


def _scaler(scaling: Scaling, n_columns: int) -> list[tuple[str, Any]]:
    if scaling.scale is None:
        return []
    if scaling.warp is not None:
        raise InputError(
            "scikit-learn has no part for columns by their logarithms or ranks; fit with scale='standard'"
        )
    scaler = StandardScaler(with_mean=scaling.shift is not None)
    scaler.mean_, scaler.scale_, scaler.var_ = scaling.shift, scaling.scale, np.square(scaling.scale)
    scaler.n_features_in_ = n_columns
    # Without a shift columns are divided by their root mean square, which StandardScaler would not find.
    return [("scale", scaler if scaling.shift is not None else FrozenEstimator(scaler))]


def _first_leaf(transformer: Any) -> Any:
    """The transformer itself, or the first of a union or pipeline, which keeps the column names."""
    parts = getattr(transformer, "transformer_list", getattr(transformer, "steps", None))
    if parts is not None:
        return _first_leaf(parts[0][1])
    return transformer.estimator if isinstance(transformer, FrozenEstimator) else transformer


def _ridge(model: Model, refit: dict[str, Any]) -> Ridge:
    estimator, coef = Ridge(**refit), model.coef
    flat = model.n_outputs == 1 and model.y_is_1d
    # Ridge has one row of coefficients a target, and a vector for a y that was one.
    estimator.coef_ = coef[:, 0] if flat else coef.T
    estimator.intercept_ = float(model.intercept[0]) if flat else model.intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _ridge_classifier(model: Model, refit: dict[str, Any]) -> RidgeClassifier:
    coef = model.coef
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    classes = np.eye(model.n_outputs, dtype=int) if model.is_multilabel else _classes(model)
    estimator = RidgeClassifier().fit(np.zeros((len(classes), len(coef))), classes)
    estimator.coef_, estimator.intercept_ = coef.T, model.intercept
    return estimator.set_params(**refit)


def _svc(model: Model, refit: dict[str, Any]) -> LinearSVC:
    estimator = LinearSVC(loss=model.report["loss"], **refit)
    return _linear(estimator, _classes(model), model.coef, model.intercept)


def _likelihood_classifier(model: Model, refit: dict[str, Any]) -> Any:
    assert model.likelihood is not None
    noise, sigma = model.likelihood["noise"], model.likelihood["sigma"]
    if noise != "logistic":
        raise InputError(
            f"scikit-learn has no classifier with the probabilities of noise={noise!r}; "
            f"noise='logistic' has one"
        )
    # LogisticRegression knows no σ: f/σ has the same probabilities.
    classes, coef, intercept = _classes(model), model.coef / sigma, model.intercept / sigma
    refit |= {"C": refit["C"] / sigma**2}  # the penalty is that of w, and these coefficients are w/σ
    if model.n_outputs == 1 or model.likelihood["multi_class"] == "softmax":
        return _linear(LogisticRegression(**refit), classes, coef, intercept)
    if refit.pop("class_weight") is not None:
        warn(
            "a clone of this pipeline that is fitted anew has no class_weight, since OneVsRestClassifier has "
            "none; its predictions as it is are those of the model",
            DataWarning,
        )
    # Fitted to one row per class, for the labels; the coefficients are replaced.
    estimator = OneVsRestClassifier(LogisticRegression(**refit)).fit(
        np.zeros((len(classes), len(coef))), classes
    )
    for k, one in enumerate(estimator.estimators_):
        _linear(one, one.classes_, coef[:, [k]], intercept[[k]])
    return estimator


def _linear(estimator: Any, classes: np.ndarray, coef: np.ndarray, intercept: np.ndarray) -> Any:
    estimator.classes_, estimator.coef_, estimator.intercept_ = classes, coef.T, intercept
    estimator.n_features_in_ = len(coef)
    return estimator


def _components(model: Model, refit: dict[str, Any]) -> PCA:
    """The projection Z·coef + intercept as PCA's (Z − mean)·coef."""
    estimator, coef = PCA(n_components=model.n_outputs), model.coef
    estimator.components_ = coef.T
    # (Z − mean)·coef = Z·coef + intercept for each mean with meanᵀ·coef = −intercept; this is the shortest.
    estimator.mean_ = -np.linalg.lstsq(coef.T, model.intercept, rcond=None)[0]
    estimator.n_components_, estimator.n_features_in_ = model.n_outputs, len(coef)
    estimator.explained_variance_ = np.asarray(model.report["explained_variance"])
    estimator.explained_variance_ratio_ = np.asarray(model.report["explained_variance_ratio"])
    return estimator


def _classes(model: Model) -> np.ndarray:
    assert isinstance(model.targets, ClassTargets)
    return model.targets.classes


_ESTIMATORS: dict[str, Callable[[Model, dict[str, Any]], Any]] = {
    "KernelRidge": _ridge,
    "KernelRidgeClassifier": _ridge_classifier,
    "KernelSVC": _svc,
    "KernelLikelihoodClassifier": _likelihood_classifier,
    "KernelPCA": _components,
}


# Its map, as a fitted transformer.

Arrays = Mapping[str, np.ndarray] | None

_HAVE_ONE = (
    "FourierFeatures, NystroemFeatures (of Gaussian, Exponential, Matern and Polynomial kernels, their sums "
    "and products, and of a Laplacian kernel of one width), LinearFeatures, TransformerFeatures, and "
    "ConcatenatedFeatures of these"
)


# A clone of the transformer, fitted anew, has the same kernel and size. So parts get their parameters where
# scikit-learn has them; a part whose own fit would make another kernel is frozen, and clones keep its arrays.


def _sklearn_map(specification: FittedMap, arrays: Arrays) -> Any:
    """The map as a fitted transformer; None for z(x) = x.

    Raises InputError, naming the maps that can be converted, for a map without a transformer in scikit-learn.
    """
    if isinstance(specification, ConcatenatedMap):
        return _union(specification, arrays)
    if isinstance(specification, ProjectedMap):
        return _after_metric(specification, arrays)
    if isinstance(specification, LinearMap):
        return None
    if type(specification) not in _SINGLE:
        raise InputError(
            f"scikit-learn has no transformer for {specification.kind} features; "
            f"maps that have one are {_HAVE_ONE}"
        )
    return _SINGLE[type(specification)](specification.build(arrays))


def _after_metric(specification: ProjectedMap, arrays: Arrays) -> Pipeline:
    """The projection P·x as a PCA of mean 0, and the map of projected rows after it."""
    arrays = specification.checked_arrays() if arrays is None else arrays
    P = arrays["metric"]
    projection = PCA(n_components=len(P))
    projection.components_, projection.mean_ = P, np.zeros(P.shape[1])
    projection.n_components_, projection.n_features_in_ = P.shape
    inner = _sklearn_map(specification.inner, arrays_inside(arrays))
    return Pipeline([("metric", FrozenEstimator(projection)), ("map", inner)])


def _identity(n_columns: int) -> FunctionTransformer:
    """The transformer that returns rows unchanged, after checking their columns."""
    transformer = FunctionTransformer(validate=True, feature_names_out="one-to-one")
    transformer.n_features_in_ = n_columns
    return transformer


def _times(factor: float, transformer: Any) -> Any:
    """The transformer with its features multiplied, which is a union of one."""
    if factor == 1.0:
        return transformer
    return FeatureUnion([("map", transformer)], transformer_weights={"map": factor})


def _sampler(ready: FourierMap) -> Any:
    """√(2/D)·cos(ωx + b): a sine is a cosine with b = −π/2, and pairs come twice, D = 2m."""
    W, offsets = ready.frequencies, ready.prepared.offsets
    b = None if offsets is None else offsets[np.float64]
    if b is None:
        W = np.repeat(W, 2, axis=1)
        b = np.tile([0.0, -np.pi / 2], W.shape[1] // 2)
    kernel, factor = _without_factor(ready.kernel)
    sampler = RBFSampler(n_components=W.shape[1])
    sampler.random_weights_, sampler.random_offset_ = W, b
    sampler.n_features_in_, sampler._n_features_out = W.shape
    if isinstance(kernel, Gaussian) and _has_one_width(kernel):
        return _times(factor, sampler.set_params(gamma=0.5 / float(np.ravel(kernel.length_scale)[0]) ** 2))
    # RBFSampler draws for a Gaussian of one width only: a clone of another kernel's would be fitted to that.
    return _times(math.sqrt(ready.at_zero), FrozenEstimator(sampler))


def _nystroem(ready: NystroemMap) -> Any:
    """k(x, L)·Nᵀ with N = L_c⁻¹, and rows of zeros beyond the rank."""
    landmarks = ready.prepared.rows
    rank = len(landmarks)
    kernel, factor = _without_factor(ready.kernel)
    map_ = Nystroem(n_components=ready.n_components, **_kernel_options(kernel))
    normalization = np.zeros((ready.n_components, rank))
    # Nystroem multiplies by the transpose of its normalization, where ours solves with L_c.
    normalization[:rank] = solve_triangular(ready.prepared.factor, np.eye(rank), lower=True)
    # L_c is the factor of a·K_LL, and Nystroem's kernel is k: one √a goes here, and one to `_times`, which a
    # clone that is fitted anew needs as well.
    map_.components_, map_.normalization_ = landmarks, factor * normalization
    map_.component_indices_ = np.arange(rank)
    map_.n_features_in_, map_._n_features_out = ready.n_columns, ready.n_components
    return _times(factor, map_)


def _transformer(ready: TransformerMap) -> Any:
    # One that was made again from its arrays lacks the parameters that its fit alone takes.
    return ready.prepared if ready.transformer is not None else FrozenEstimator(ready.prepared)


_SINGLE: dict[type, Any] = {FourierMap: _sampler, NystroemMap: _nystroem, TransformerMap: _transformer}


def _without_factor(kernel: Kernel) -> tuple[Kernel, float]:
    """The kernel k of a·k, and the factor √a of its features."""
    if isinstance(kernel, Scaled):
        return kernel.k, math.sqrt(kernel.a)
    return kernel, 1.0


def _has_one_width(kernel: Gaussian | Laplacian) -> bool:
    return bool(np.ptp(kernel.length_scale) == 0)


def _kernel_options(kernel: Kernel) -> dict[str, Any]:
    """The parameters of `Nystroem` for the kernel."""
    if isinstance(kernel, Laplacian) and _has_one_width(kernel):
        return {"kernel": "laplacian", "gamma": 1 / float(np.ravel(kernel.length_scale)[0])}
    return {"kernel": _gp_kernel(kernel)}


_GP_KERNELS: dict[type, Callable[[Any], Any]] = {
    Sum: lambda k: _gp_kernel(k.k1) + _gp_kernel(k.k2),
    Product: lambda k: _gp_kernel(k.k1) * _gp_kernel(k.k2),
    Scaled: lambda k: gp.ConstantKernel(k.a) * _gp_kernel(k.k),
    # DotProduct adds the square of its parameter.
    Polynomial: lambda k: gp.DotProduct(float(np.sqrt(k.bias))) ** k.degree,
    Gaussian: lambda k: gp.RBF(k.length_scale),
    Matern: lambda k: gp.Matern(k.length_scale, nu=k.nu),
    Exponential: lambda k: gp.Matern(k.length_scale, nu=0.5),
}


def _gp_kernel(kernel: Kernel) -> Any:
    if type(kernel) not in _GP_KERNELS:
        raise InputError(f"scikit-learn has no kernel for {kernel!r}; maps that it has are {_HAVE_ONE}")
    return _GP_KERNELS[type(kernel)](kernel)


def _union(specification: ConcatenatedMap, arrays: Arrays) -> FeatureUnion:
    whole = specification
    own = [(part, None) for part in whole.parts] if arrays is None else whole.inside_with(arrays)
    parts = [_sklearn_map(part, of_part) for part, of_part in own]
    steps = [
        (f"map{i}", _identity(specification.n_columns) if part is None else part)
        for i, part in enumerate(parts)
    ]
    factors = np.sqrt(specification.weights).tolist()
    return FeatureUnion(steps, transformer_weights={f"map{i}": factor for i, factor in enumerate(factors)})
