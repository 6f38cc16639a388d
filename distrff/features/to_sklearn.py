"""Feature maps as fitted transformers of scikit-learn, where there is one."""

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
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer

from distrff.errors import InputError
from distrff.features.compose import ConcatenatedMap, LinearMap
from distrff.features.fitted import FittedMap, ProjectedMap, arrays_inside
from distrff.features.fourier import FourierMap
from distrff.features.nystroem import NystroemMap
from distrff.features.transformer import TransformerMap
from distrff.kernels.base import Kernel, Polynomial, Product, Scaled, Sum
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern

Arrays = Mapping[str, np.ndarray] | None

_HAVE_ONE = (
    "FourierFeatures, NystroemFeatures (of Gaussian, Exponential, Matern and Polynomial kernels, their sums "
    "and products, and of a Laplacian kernel of one width), LinearFeatures, TransformerFeatures, and "
    "ConcatenatedFeatures of these"
)


# A clone of the transformer, fitted anew, has the same kernel and size. So parts get their parameters where
# scikit-learn has them; a part whose own fit would make another kernel is frozen, and clones keep its arrays.


def sklearn_map(specification: FittedMap, arrays: Arrays) -> Any:
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
    inner = sklearn_map(specification.inner, arrays_inside(arrays))
    return Pipeline([("metric", FrozenEstimator(projection)), ("map", inner)])


def identity(n_columns: int) -> FunctionTransformer:
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
    parts = [sklearn_map(part, of_part) for part, of_part in own]
    steps = [
        (f"map{i}", identity(specification.n_columns) if part is None else part)
        for i, part in enumerate(parts)
    ]
    factors = np.sqrt(specification.weights).tolist()
    return FeatureUnion(steps, transformer_weights={f"map{i}": factor for i, factor in enumerate(factors)})
