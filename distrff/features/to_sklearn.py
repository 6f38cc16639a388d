"""Feature maps as fitted transformers of scikit-learn, where there is one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import solve_triangular
from sklearn.decomposition import PCA
from sklearn.gaussian_process import kernels as gp
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer

from distrff.errors import InputError
from distrff.features.compose import ConcatenatedSpecification, LinearSpecification
from distrff.features.fourier import FourierBlockMap, FourierSpecification
from distrff.features.nystroem import NystroemBlockMap, NystroemSpecification
from distrff.features.projected import ProjectedSpecification, arrays_inside
from distrff.features.specification import MapSpecification
from distrff.features.transformer import TransformerSpecification
from distrff.kernels.base import Kernel, Product, Scaled, Sum
from distrff.kernels.polynomial import Polynomial
from distrff.kernels.stationary import Exponential, Gaussian, Laplacian, Matern

Arrays = Mapping[str, np.ndarray] | None

_HAVE_ONE = (
    "FourierFeatures, NystroemFeatures (of Gaussian, Exponential, Matern and Polynomial kernels, their sums "
    "and products, and of a Laplacian kernel of one width), LinearFeatures, TransformerFeatures, and "
    "ConcatenatedFeatures of these"
)


class SklearnMap(NamedTuple):
    """A fitted transformer t and a factor a with z(x) = a·t(x); None for t(x) = x."""

    transformer: Any
    factor: float = 1.0


def sklearn_map(specification: MapSpecification, arrays: Arrays) -> SklearnMap:
    """Return the map as a transformer.

    Raises InputError, naming the maps that can be converted, for a map without a transformer in scikit-learn.
    """
    if isinstance(specification, ConcatenatedSpecification):
        return _union(specification, arrays)
    if isinstance(specification, ProjectedSpecification):
        return _after_metric(specification, arrays)
    if isinstance(specification, LinearSpecification):
        return SklearnMap(None)
    block_map: Any = specification.build(arrays)
    if isinstance(specification, TransformerSpecification):
        return SklearnMap(block_map.transformer)
    if isinstance(specification, FourierSpecification):
        return _sampler(block_map, specification)
    if isinstance(specification, NystroemSpecification):
        return _nystroem(block_map, specification)
    raise InputError(
        f"scikit-learn has no transformer for {specification.kind} features; "
        f"maps that have one are {_HAVE_ONE}"
    )


def _after_metric(specification: ProjectedSpecification, arrays: Arrays) -> SklearnMap:
    """Return the projection P·x as a PCA of mean 0, and the map of projected rows after it."""
    arrays = specification.checked_arrays() if arrays is None else arrays
    inner = sklearn_map(specification.inner, arrays_inside(arrays))
    P = arrays["metric"]
    projection = PCA(n_components=len(P))
    projection.components_, projection.mean_ = P, np.zeros(P.shape[1])
    projection.n_components_, projection.n_features_in_ = P.shape
    return SklearnMap(Pipeline([("metric", projection), ("map", inner.transformer)]), inner.factor)


def identity(n_columns: int) -> FunctionTransformer:
    """Return the transformer that returns rows unchanged, after checking their columns."""
    transformer = FunctionTransformer(validate=True)
    transformer.n_features_in_ = n_columns
    return transformer


def _sampler(block_map: FourierBlockMap, specification: FourierSpecification) -> SklearnMap:
    """Return √(2/D)·cos(ωx + b): a sine is a cosine with b = −π/2, and pairs come twice, D = 2m."""
    W, b = block_map.projection.frequencies(), block_map.phases
    if b is None:
        W = np.repeat(W, 2, axis=1)
        b = np.tile([0.0, -np.pi / 2], W.shape[1] // 2)
    sampler = RBFSampler(n_components=W.shape[1])
    sampler.random_weights_, sampler.random_offset_ = W, b
    sampler.n_features_in_ = specification.n_columns
    return SklearnMap(sampler, float(np.sqrt(specification.at_zero)))


def _nystroem(block_map: NystroemBlockMap, specification: NystroemSpecification) -> SklearnMap:
    """Return k(x, L)·Nᵀ with N = L_c⁻¹, and rows of zeros beyond the rank."""
    landmarks = block_map.landmarks
    rank = len(landmarks)
    options, factor = _kernel_options(specification.kernel)
    map_ = Nystroem(n_components=specification.n_components, **options)
    normalization = np.zeros((specification.n_components, rank))
    normalization[:rank] = solve_triangular(block_map.factor, np.eye(rank), lower=True)
    map_.components_, map_.normalization_ = landmarks, normalization
    map_.component_indices_ = np.arange(rank)
    map_.n_features_in_ = specification.n_columns
    return SklearnMap(map_, factor)


def _kernel_options(kernel: Kernel) -> tuple[dict[str, Any], float]:
    """Return the parameters of `Nystroem` for the kernel, and a factor that they cannot hold."""
    factor = 1.0
    if isinstance(kernel, Scaled) and isinstance(kernel.k, Laplacian):
        factor, kernel = kernel.a, kernel.k
    if isinstance(kernel, Laplacian) and np.ptp(kernel.length_scale) == 0:
        return {"kernel": "laplacian", "gamma": 1 / float(np.ravel(kernel.length_scale)[0])}, factor
    return {"kernel": _gp_kernel(kernel)}, factor


def _gp_kernel(kernel: Kernel) -> Any:
    if isinstance(kernel, Sum):
        return _gp_kernel(kernel.k1) + _gp_kernel(kernel.k2)
    if isinstance(kernel, Product):
        return _gp_kernel(kernel.k1) * _gp_kernel(kernel.k2)
    if isinstance(kernel, Scaled):
        return gp.ConstantKernel(kernel.a) * _gp_kernel(kernel.k)
    if isinstance(kernel, Polynomial):
        return gp.DotProduct(float(np.sqrt(kernel.bias))) ** kernel.degree
    if isinstance(kernel, Gaussian):
        return gp.RBF(kernel.length_scale)
    if isinstance(kernel, Matern):
        return gp.Matern(kernel.length_scale, nu=kernel.nu)
    if isinstance(kernel, Exponential):
        return gp.Matern(kernel.length_scale, nu=0.5)
    raise InputError(f"scikit-learn has no kernel for {kernel!r}; maps that it has are {_HAVE_ONE}")


def _union(specification: ConcatenatedSpecification, arrays: Arrays) -> SklearnMap:
    own = (
        ((part, None) for part in specification.parts) if arrays is None else specification.parts_with(arrays)
    )
    parts = [sklearn_map(part, of_part) for part, of_part in own]
    names = [f"map{i}" for i in range(len(parts))]
    steps = [
        (name, identity(specification.n_columns) if part.transformer is None else part.transformer)
        for name, part in zip(names, parts, strict=True)
    ]
    factors = np.sqrt(specification.weights) * [part.factor for part in parts]
    union = FeatureUnion(steps, transformer_weights=dict(zip(names, factors.tolist(), strict=True)))
    return SklearnMap(union)
