"""Frequencies for very wide sparse rows: a CountSketch to few columns, then dense frequencies there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError
from distrff.features.frequencies import ByDtype, Projection
from distrff.features.specification import MapCost
from distrff.kernels.base import Kernel
from distrff.utils.jit import compiled, compiles_once, scratch
from distrff.utils.random import PathStreams, stream

SKETCH_COLUMNS = 2048
"""B: a constant, as leading frequencies must be those of the smaller map."""

_SKETCH_BYTES = 2**22


def sketch_arrays(
    kernel: Kernel, n_frequencies: int, n_columns: int, rng_of: PathStreams
) -> dict[str, np.ndarray]:
    """Draw ω = diag(widths)⁻¹ Sᵀg: S the CountSketch to B columns, g of the measure in B dimensions.

    Every column goes to one of B buckets with a random sign (Kapralov, Potluru and Woodruff 2016, "How
    to fake multiply by a Gaussian matrix").
    """
    directions = rng_of("directions").standard_normal((n_frequencies, SKETCH_COLUMNS))
    radii = kernel.radii(n_frequencies, SKETCH_COLUMNS, rng_of)
    directions *= (radii / np.linalg.norm(directions, axis=1))[:, None]
    return {
        "buckets": rng_of("buckets").integers(0, SKETCH_COLUMNS, n_columns, dtype=np.int32),
        "signs": (2 * rng_of("signs").integers(0, 2, n_columns) - 1).astype(np.int8),
        "sketched": np.ascontiguousarray(directions.T),
    }


def sketch_cost(n_columns: int) -> MapCost:
    """Return the cost of a sketch and a product with its columns, for each frequency."""
    return MapCost(
        row_flops=2.0 * n_columns,
        feature_flops=2.0 * SKETCH_COLUMNS,
        fixed_numbers=2.0 * n_columns,  # buckets, and signs by widths
        feature_numbers=2.0 * SKETCH_COLUMNS,  # as drawn and as used
    )


def gaussian_sketch_error(squared_distance: Any) -> Any:
    """Return a bound of |E⟨z(x), z(x')⟩ − k(x − x')| for the Gaussian kernel under a CountSketch.

    `squared_distance` is ‖δ‖², of coordinates divided by their widths, as a number or an array.
    For given S the mean over g is exp(−t/2) with t = ‖Sδ‖². S preserves squared norms on average,
    E t = ‖δ‖², and Var t ≤ 2‖δ‖⁴/B. Taylor's remainder with a second derivative of at most ¼ gives

        |bias| ≤ ¼·½·Var t ≤ ‖δ‖⁴/(4B).

    One S serves all frequencies: the standard deviation due to S, at most ½·√(2/B)·‖δ‖², does not fall
    with their number, and E(k̂ − k)² ≤ 1/(2m) + ‖δ‖⁴/(2B) for m frequencies of form cos_sin.
    """
    return np.square(squared_distance) / (4 * SKETCH_COLUMNS)


def sketched_rows(X: Any, seed: int) -> Any:
    """Return X Sᵀ, in CSR, for a CountSketch S to B columns: distances between rows stay nearly the same."""
    rng, d = stream(seed, "sketched rows"), X.shape[1]
    buckets, signs = rng.integers(0, SKETCH_COLUMNS, d), 2.0 * rng.integers(0, 2, d) - 1.0
    return csr_matrix(X) @ csr_matrix((signs, (np.arange(d), buckets)), shape=(d, SKETCH_COLUMNS))


class CountSketch(Projection):
    """X ↦ (X diag(widths)⁻¹ Sᵀ) G from `sketch_arrays`: O(nonzeros + B·m) a row, CSR or dense."""

    def __init__(self, arrays: Mapping[str, np.ndarray], widths: np.ndarray) -> None:
        buckets = arrays["buckets"]
        inside = buckets.shape == arrays["signs"].shape == widths.shape
        if not inside or (buckets < 0).any() or (buckets >= SKETCH_COLUMNS).any():
            # Those of a forged model: the compiled loops would read and write elsewhere.
            raise InputError("the buckets of a count sketch do not fit its columns")
        _compile_loops()
        self._buckets = np.require(arrays["buckets"], requirements="W")
        self._factors, self._G = ByDtype(arrays["signs"] / widths), ByDtype(arrays["sketched"])
        self.n_frequencies = arrays["sketched"].shape[1]

    def frequencies(self, dtype: Any = np.float64) -> np.ndarray:
        W = self._G[np.float64][self._buckets]
        W *= self._factors[np.float64][:, None]
        return W.astype(dtype, copy=False)

    def project(self, X: Any, theta: np.ndarray) -> None:
        # A strip of few frequencies has many rows, whose sketches would take more than all else of a tile.
        n_rows = _SKETCH_BYTES // (SKETCH_COLUMNS * X.dtype.itemsize)
        for start in range(0, X.shape[0], n_rows):
            strip = slice(start, start + n_rows)
            self._project(X[strip], theta[strip])

    def _project(self, X: Any, theta: np.ndarray) -> None:
        sketch = scratch("sketch", X.shape[0], SKETCH_COLUMNS, X.dtype)
        sketch[...] = 0.0
        if issparse(X):
            _add_sparse(X.data, X.indices, X.indptr, self._buckets, self._factors[X.dtype], sketch)
        else:
            _add_dense(np.ascontiguousarray(X), self._buckets, self._factors[X.dtype], sketch)
        np.matmul(sketch, self._G[X.dtype], out=theta)

    def largest_phases(self, magnitude: np.ndarray) -> np.ndarray:
        largest = np.abs(self._factors[np.float64]) * magnitude
        in_buckets = np.bincount(self._buckets, weights=largest, minlength=SKETCH_COLUMNS)
        return in_buckets @ np.abs(self._G[np.float64])


@compiles_once
def _compile_loops() -> None:
    for dtype in (np.float32, np.float64):
        zeros, bucket, starts = np.zeros((1, 1), dtype), np.zeros(1, np.int32), np.array([0, 1], np.int32)
        _add_dense(zeros, bucket, zeros[0], zeros.copy())
        _add_sparse(zeros[0], bucket, starts, bucket, zeros[0], zeros.copy())


@compiled()
def _add_dense(X, buckets, factors, sketch):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            sketch[i, buckets[j]] += factors[j] * X[i, j]


@compiled()
def _add_sparse(data, indices, starts, buckets, factors, sketch):
    for i in range(sketch.shape[0]):
        for p in range(starts[i], starts[i + 1]):
            j = indices[p]
            sketch[i, buckets[j]] += factors[j] * data[p]
