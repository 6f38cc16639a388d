"""The inverse of (curvature · Gram + I) as a map of gradients: what one Gram gives to every other loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from distrff.objective import RidgeSystem
from distrff.solvers.cholesky import cholesky_factor


@dataclass(frozen=True, eq=False)
class _Centred:
    """What a preconditioner with an intercept is made of: the inverse for w alone, in centred features."""

    curvature: float
    z_mean: np.ndarray
    weight: float
    fit_intercept: bool

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        """Return the inverse of (h · centred Gram + I) times a gradient by w."""
        raise NotImplementedError

    def apply(self, gradient: np.ndarray) -> np.ndarray:
        """Return M⁻¹g for g of shape (D + 1,), or (D,) without an intercept.

        A second axis of g is that of several machines.
        """
        if not self.fit_intercept:
            return self._solve(gradient)
        by_w, by_b = gradient[:-1], gradient[-1]
        w = self._solve(by_w - np.multiply.outer(self.z_mean, by_b))
        b = by_b / (self.curvature * self.weight) - self.z_mean @ w
        return np.concatenate([w, np.atleast_1d(b) if w.ndim == 1 else b[None]])


@dataclass(frozen=True, eq=False)
class DiagonalPreconditioner(_Centred):
    """M⁻¹ where no Gram is formed: that of the diagonal, in O(D).

    Attributes
    ----------
    G_diagonal : ndarray of shape (D,)
        Σ s·(z − z̄)²; for the indicators of bins their weights, but for a factor.
    curvature, z_mean, weight, fit_intercept
        As of `Preconditioner`.
    """

    G_diagonal: np.ndarray

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        return (by_w.T / (self.curvature * self.G_diagonal + 1)).T


@dataclass(frozen=True, eq=False)
class Preconditioner(_Centred):
    """M⁻¹ for M = h·Σ s·z̃z̃ᵀ + I, with z̃ = [z | 1] if there is an intercept, whose entry of I is 0.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        Cholesky factor of the centred Gram plus I/h.
    curvature : float
        h: C times a mean or a bound of ℓ″.
    z_mean : ndarray of shape (D,)
    weight : float
    fit_intercept : bool
    """

    L: np.ndarray

    @classmethod
    def of(cls, system: RidgeSystem, curvature: float) -> Preconditioner:
        """Factor the Gram of all rows, or of a sample that stands for them; D³/3 flops."""
        L = cholesky_factor(system.G, 1 / curvature)
        return cls(curvature, system.z_mean, system.weight, system.fit_intercept, L)

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        return cho_solve((self.L, True), by_w, check_finite=False) / self.curvature
