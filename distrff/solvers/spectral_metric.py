"""A metric from the leading eigenvectors of a sample's Gram, in which one step size fits every direction.

The Hessian of an objective per unit of row weight, mean ℓ + (λ/2)·‖w‖², is near h·S + λ·I for the covariance
S of the features and a mean h of ℓ″. The metric keeps q eigenvectors V of S with their eigenvalues e, and
one eigenvalue ε for all other directions (Ma and Belkin 2017, "Diving into the shallows"):

    M = V·diag(h·e + λ)·Vᵀ + (h·ε + λ)·(I − V·Vᵀ).

With all D eigenvectors M is the whole matrix; a few make a metric where no D × D array fits. The eigenvectors
of sparse features are kept as combinations of the sampled rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import eigh
from scipy.sparse import csr_matrix, issparse

from distrff.errors import InputError

_ARRAYS = ("eigenvalues", "rest", "z_mean")
_MAX_BYTES = 2**26
# The smaller eigenvalues of a sample are far from those of all rows.
_ROWS_PER_DIRECTION = 4
_MIN_SHARE = 1e-12  # of the largest eigenvalue: below it, rounding


@dataclass(frozen=True, eq=False)
class SpectralMetric:
    """M for any h and λ, as a map of gradients.

    Attributes
    ----------
    directions : ndarray of shape (D, q), float32 or float64, or RowDirections
        V, the leading eigenvectors of the covariance of the features; without an intercept, of their second
        moments.
    eigenvalues : ndarray of shape (q,)
        e, descending.
    rest : float
        ε, the largest eigenvalue that is left out; the smallest kept one where none is.
    spread : float
        The sum of all eigenvalues that are left out.
    unseen : float
        The share of one row in the trace: directions with smaller eigenvalues may be those of few rows, which
        the sample has missed.
    z_mean : ndarray of shape (D,)
        Zeros without an intercept.
    """

    directions: np.ndarray | RowDirections
    eigenvalues: np.ndarray
    rest: float
    spread: float
    unseen: float
    z_mean: np.ndarray
    fit_intercept: bool

    @classmethod
    def of_rows(
        cls, Z: Any, sample_weight: np.ndarray | None, n_directions: int, *, fit_intercept: bool
    ) -> SpectralMetric:
        """Return the metric of the features of sampled rows, in their dtype; of sparse rows in float64.

        `Z` of shape (m, D) is an array or a scipy CSR matrix; its rows are drawn evenly over all rows. If
        m < D, at most m/4 of the `n_directions` are kept, and the eigenvectors come from the m × m products
        of rows: m²·D + 9·m³ flops, else m·D² + 9·D³.
        """
        n_rows, D = Z.shape
        s = np.ones(n_rows) if sample_weight is None else sample_weight
        weight = float(s.sum())
        if not weight > 0:
            raise InputError(
                f"the {n_rows} sampled rows have the total weight {weight:g}: give rows of positive weight"
            )
        V: np.ndarray | RowDirections
        if issparse(Z) and n_rows < D:
            q, eigenvalues, V, z_mean, norms = _of_sparse_rows(Z, s / weight, n_directions, fit_intercept)
        else:
            Z = Z.toarray() if issparse(Z) else Z
            z_mean = s @ Z / weight if fit_intercept else np.zeros(D)
            T = (Z - z_mean.astype(Z.dtype)) * np.sqrt(s / weight).astype(Z.dtype)[:, None]
            norms = np.square(T).sum(axis=1, dtype=np.float64)
            if n_rows >= D:
                q = min(n_directions, D)
                eigenvalues, U = eigh((T.T @ T).astype(np.float64), check_finite=False)
                eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
            else:
                q, eigenvalues, U = _leading((T @ T.T).astype(np.float64), n_directions)
                U = T.T @ U.astype(Z.dtype)
            V = np.ascontiguousarray(U[:, :q], dtype=Z.dtype)
        trace = max(0.0, float(norms.sum()))
        spread = max(0.0, trace - float(eigenvalues[:q].sum())) if q < D else 0.0
        eigenvalues = np.maximum(eigenvalues, _MIN_SHARE * max(0.0, float(eigenvalues[0])))
        return cls(
            directions=V,
            eigenvalues=eigenvalues[:q].copy(),
            rest=float(eigenvalues[min(q, len(eigenvalues) - 1)]),
            spread=spread,
            # The mean of the squared norms, weighted by themselves: large rows matter.
            unseen=float(norms @ norms) / trace if trace > 0 else 0.0,
            z_mean=z_mean.astype(np.float64),
            fit_intercept=fit_intercept,
        )

    def dimension(self, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Return d = tr(h·S·M⁻¹) for each h and λ, the effective dimension, plus 1 for an intercept.

        It is the mean of h·‖z − z̄‖²_{M⁻¹} over the rows: a batch of d rows gives one good step.
        """
        curved = self.eigenvalues[:, None] * curvature
        left = curvature * self.spread / (curvature * self.rest + penalty)
        return (curved / (curved + penalty)).sum(axis=0) + left + self.fit_intercept

    def solve(self, gradient: np.ndarray, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Return M⁻¹g for gradients of shape (D + 1, k), or (D, k), and h > 0 and λ > 0 of shape (k,).

        Gradients are of the objective per unit of row weight, by w and by b. 4·D·q·k flops, in the dtype of
        the directions; 4·m·(P + q)·k for those of m rows of P entries.
        """
        by_w = gradient
        if self.fit_intercept:
            by_w = gradient[:-1] - np.outer(self.z_mean, gradient[-1])
        V = self.directions
        along = V.along(by_w) if isinstance(V, RowDirections) else V.T @ by_w.astype(V.dtype)
        elsewhere = 1 / (curvature * self.rest + penalty)
        shares = (1 / (self.eigenvalues[:, None] * curvature + penalty) - elsewhere) * along
        combined = V.combined(shares) if isinstance(V, RowDirections) else V @ shares.astype(V.dtype)
        W = elsewhere * by_w + combined
        if not self.fit_intercept:
            return W
        return np.vstack([W, gradient[-1] / curvature - self.z_mean @ W])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that `from_arrays` takes in another process."""
        V = self.directions
        directions = {"directions": V} if isinstance(V, np.ndarray) else V.arrays()
        return directions | {name: np.asarray(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, fit_intercept: bool) -> SpectralMetric:
        """Return a metric for `solve`; `spread` and `unseen`, which are not sent, are zero."""
        # Arrays from a network may be unaligned. NumPy multiplies those without BLAS: slowly, and with other
        # bits.
        e, rest, z_mean = (np.require(arrays[name], requirements="A") for name in _ARRAYS)
        V: np.ndarray | RowDirections
        if "directions" in arrays:
            V = np.require(arrays["directions"], requirements="A")
        else:
            V = RowDirections.from_arrays(arrays, len(z_mean))
        return cls(V, e, float(rest), 0.0, 0.0, z_mean, fit_intercept)


def _of_sparse_rows(
    Z: Any, share: np.ndarray, n_directions: int, fit_intercept: bool
) -> tuple[int, np.ndarray, RowDirections, np.ndarray, np.ndarray]:
    """Return q, the leading eigenvalues, V, z̄ and the squared norms of the centred rows, without D × D."""
    Z = Z.astype(np.float64)
    K = (Z @ Z.T).toarray()
    root, z_mean = np.sqrt(share), np.zeros(Z.shape[1])
    if fit_intercept:
        z_mean, by_row = share @ Z, K @ share
        K += share @ by_row - by_row[:, None] - by_row
    K *= root[:, None] * root
    q, eigenvalues, U = _leading(K, n_directions)
    B = root[:, None] * U[:, :q]
    if fit_intercept:
        B -= np.outer(share, B.sum(axis=0))
    return q, eigenvalues, RowDirections(Z, B), z_mean, K.diagonal()


def _leading(K: np.ndarray, n_directions: int) -> tuple[int, np.ndarray, np.ndarray]:
    """Return q, the leading q + 1 eigenvalues of the m × m products of rows, descending, and U·e^(−½)."""
    q = max(1, min(n_directions, len(K) // _ROWS_PER_DIRECTION))
    leading = [max(0, len(K) - q - 1), len(K) - 1]
    eigenvalues, U = eigh(K, subset_by_index=leading, check_finite=False)
    eigenvalues, U = eigenvalues[::-1], U[:, ::-1]
    floor = max(_MIN_SHARE * float(eigenvalues[0]), float(np.finfo(np.float64).tiny))
    return q, eigenvalues, U / np.sqrt(np.maximum(eigenvalues, floor))


def max_directions(n_features: int, dtype: np.dtype) -> int:
    """Return q: all D, fewer where V would be larger than 64 MiB."""
    return max(1, min(n_features, _MAX_BYTES // (n_features * np.dtype(dtype).itemsize)))


# Orthonormal directions in the space of many features, as combinations of few sparse rows.
#
# V = ZᵀB for m rows Z of P entries each and B of shape (m, q): m·P + m·q numbers in place of D·q, and
# products that cost as little. Eigenvectors of the rows' own covariance are of this form (Ma and Belkin
# 2019, "Kernel machines that adapt to GPUs for effective large batch training", keep those of a kernel so).


@dataclass(frozen=True, eq=False)
class RowDirections:
    """V = ZᵀB.

    Attributes
    ----------
    Z : scipy CSR matrix of shape (m, D)
    B : ndarray of shape (m, q)
    """

    Z: Any
    B: np.ndarray

    @property
    def row_entries(self) -> int:
        """The mean number of entries of a row."""
        return -(-self.Z.nnz // self.Z.shape[0])

    def along(self, X: np.ndarray) -> np.ndarray:
        """Return VᵀX: (D, k) → (q, k)."""
        return self.B.T @ (self.Z @ X)

    def combined(self, shares: np.ndarray) -> np.ndarray:
        """Return V times the shares: (q, k) → (D, k)."""
        return self.Z.T @ (self.B @ shares)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that `from_arrays` takes."""
        return {"indptr": self.Z.indptr, "indices": self.Z.indices, "data": self.Z.data, "B": self.B}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], n_features: int) -> RowDirections:
        """Return the directions of `arrays`."""
        indptr, indices, data, B = (
            np.require(arrays[name], requirements="A") for name in ("indptr", "indices", "data", "B")
        )
        return cls(csr_matrix((data, indices, indptr), shape=(len(B), n_features), copy=False), B)
