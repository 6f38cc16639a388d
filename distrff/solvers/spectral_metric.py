"""A metric from the leading eigenvectors of a sample's Gram, in which one step size fits every direction.

The Hessian of an objective per unit of row weight, mean ℓ + (λ/2)·‖w‖², is near h·S + λ·I for the covariance
S of the features and a mean h of ℓ″. The metric keeps q eigenvectors V of S with their eigenvalues e, and
one eigenvalue ε for all other directions (Ma and Belkin 2017, "Diving into the shallows"):

    M = V·diag(h·e + λ)·Vᵀ + (h·ε + λ)·(I − V·Vᵀ).

All D eigenvectors make it the whole matrix; a few make it a metric for D where no D × D array fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from scipy.linalg import eigh

from distrff.errors import InputError
from distrff.objective import RidgeSystem

_ARRAYS = ("directions", "eigenvalues", "rest", "z_mean")
_MOST_BYTES = 2**26
# The lower part of a sample's spectrum follows the sample, not the rows.
_ROWS_PER_DIRECTION = 4
_LEAST_SHARE = 1e-12  # of the largest eigenvalue: below it, rounding


@dataclass(frozen=True, eq=False)
class SpectralMetric:
    """M for any h and λ, as a map of gradients.

    Attributes
    ----------
    directions : ndarray of shape (D, q), float32 or float64
        V, the leading eigenvectors of the covariance of the features, or of their second moments without an
        intercept.
    eigenvalues : ndarray of shape (q,)
        e, falling.
    rest : float
        ε, the largest eigenvalue that is left; the smallest kept one where none is.
    spread : float
        The sum of all eigenvalues that are left.
    unseen : float
        The share of one row in the sample: eigenvalues below it may be of directions that few rows have, and
        that the sample has missed.
    z_mean : ndarray of shape (D,)
        Zeros without an intercept.
    fit_intercept : bool
    """

    directions: np.ndarray
    eigenvalues: np.ndarray
    rest: float
    spread: float
    unseen: float
    z_mean: np.ndarray
    fit_intercept: bool

    @classmethod
    def of_system(
        cls, system: RidgeSystem, n_rows: int, n_directions: int, dtype: np.dtype
    ) -> SpectralMetric:
        """Return the metric of a Gram of `n_rows` rows, all or a sample that stands for them; 9·D³ flops."""
        D = len(system.G)
        q = min(n_directions, D)
        kept = [max(0, D - q - 1), D - 1]
        eigenvalues, V = eigh(system.G / system.weight, subset_by_index=kept, check_finite=False)
        trace = float(np.trace(system.G)) / system.weight
        centre = system.z_mean, system.fit_intercept
        return cls._of(eigenvalues[::-1], V[:, ::-1], trace, trace / n_rows, q, *centre, dtype)

    @classmethod
    def of_rows(
        cls, Z: np.ndarray, sample_weight: np.ndarray | None, n_directions: int, *, fit_intercept: bool
    ) -> SpectralMetric:
        """Return the metric of the features of sampled rows, in their dtype.

        Parameters
        ----------
        Z : ndarray of shape (m, D)
            Features of rows drawn evenly over all; m may be smaller than D.
        sample_weight : ndarray of shape (m,) or None
        n_directions : int
            At most a quarter of m is kept where m < D.

        Notes
        -----
        m²·D + 9·m³ flops through the m × m products of rows if m < D, else m·D² + 9·D³.

        Raises
        ------
        InputError
            If no row has a positive weight.
        """
        s = np.ones(len(Z)) if sample_weight is None else sample_weight
        weight = float(s.sum())
        if not weight > 0:
            raise InputError(
                f"the {len(Z)} sampled rows have the total weight {weight:g}: give rows of positive weight"
            )
        z_mean = s @ Z / weight if fit_intercept else np.zeros(Z.shape[1])
        T = (Z - z_mean.astype(Z.dtype)) * np.sqrt(s / weight).astype(Z.dtype)[:, None]
        norms = np.square(T).sum(axis=1, dtype=np.float64)
        trace = float(norms.sum())
        # Of a row as large as rows are that matter.
        unseen = float(norms @ norms) / trace if trace > 0 else 0.0
        centre = z_mean, fit_intercept
        if len(Z) >= Z.shape[1]:
            q = min(n_directions, Z.shape[1])
            eigenvalues, V = eigh((T.T @ T).astype(np.float64), check_finite=False)
            return cls._of(eigenvalues[::-1], V[:, ::-1], trace, unseen, q, *centre, Z.dtype)
        q = max(1, min(n_directions, len(Z) // _ROWS_PER_DIRECTION))
        eigenvalues, U = eigh((T @ T.T).astype(np.float64), check_finite=False)
        eigenvalues, U = eigenvalues[::-1][: q + 1], U[:, ::-1][:, : q + 1]
        floor = max(_LEAST_SHARE * float(eigenvalues[0]), float(np.finfo(np.float64).tiny))
        V = T.T @ (U / np.sqrt(np.maximum(eigenvalues, floor))).astype(Z.dtype)
        return cls._of(eigenvalues, V, trace, unseen, q, *centre, Z.dtype)

    @classmethod
    def _of(
        cls,
        eigenvalues: np.ndarray,
        V: np.ndarray,
        trace: float,
        unseen: float,
        q: int,
        z_mean: np.ndarray,
        fit_intercept: bool,
        dtype: np.dtype,
    ) -> SpectralMetric:
        spread = max(0.0, trace - float(eigenvalues[:q].sum())) if q < len(V) else 0.0
        eigenvalues = np.maximum(eigenvalues, _LEAST_SHARE * max(0.0, float(eigenvalues[0])))
        return cls(
            directions=np.ascontiguousarray(V[:, :q], dtype=dtype),
            eigenvalues=eigenvalues[:q].copy(),
            rest=float(eigenvalues[min(q, len(eigenvalues) - 1)]),
            spread=spread,
            unseen=unseen,
            z_mean=z_mean.astype(np.float64),
            fit_intercept=fit_intercept,
        )

    @property
    def n_directions(self) -> int:
        """q."""
        return len(self.eigenvalues)

    def dimension(self, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Return d = tr(h·S·M⁻¹) for each h and λ, the effective dimension; with the intercept, one more.

        It is the mean of h·‖z − z̄‖²_{M⁻¹} over the rows: so many rows make one good step.
        """
        bend = self.eigenvalues[:, None] * curvature
        left = curvature * self.spread / (curvature * self.rest + penalty)
        return (bend / (bend + penalty)).sum(axis=0) + left + self.fit_intercept

    def solve(self, gradient: np.ndarray, curvature: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Return M⁻¹g for one gradient per column.

        Parameters
        ----------
        gradient : ndarray of shape (D + 1, k), or (D, k) without an intercept
            Of the objective per unit of row weight, by w and by b.
        curvature, penalty : ndarrays of shape (k,)
            h > 0 and λ > 0.

        Notes
        -----
        4·D·q·k flops, in the dtype of the directions.
        """
        by_w = gradient
        if self.fit_intercept:
            by_w = gradient[:-1] - np.outer(self.z_mean, gradient[-1])
        along = self.directions.T @ by_w.astype(self.directions.dtype)
        elsewhere = 1 / (curvature * self.rest + penalty)
        more = 1 / (self.eigenvalues[:, None] * curvature + penalty) - elsewhere
        W = elsewhere * by_w + self.directions @ (more * along).astype(self.directions.dtype)
        if not self.fit_intercept:
            return W
        return np.vstack([W, gradient[-1] / curvature - self.z_mean @ W])

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs to solve elsewhere."""
        return {name: np.asarray(getattr(self, name)) for name in _ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], *, fit_intercept: bool) -> SpectralMetric:
        """Return a metric that solves; `spread` and `unseen`, which do not travel, are zero."""
        # Bytes off a network may begin anywhere, and NumPy multiplies unaligned arrays without BLAS: slowly,
        # and to other bits.
        V, e, rest, z_mean = (np.require(arrays[name], requirements="A") for name in _ARRAYS)
        return cls(V, e, float(rest), 0.0, 0.0, z_mean, fit_intercept)


def most_directions(n_features: int, dtype: np.dtype) -> int:
    """Return q: all D, fewer where V would be larger than 64 MiB."""
    return max(1, min(n_features, _MOST_BYTES // (n_features * np.dtype(dtype).itemsize)))
