"""The inverse of (curvature · Gram + I) as a map of gradients: what one Gram gives to every other loss."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from distrff.objective import RidgeSystem
from distrff.solvers.cholesky import cholesky_factor


@dataclass(frozen=True, eq=False)
class Preconditioner:
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
    curvature: float
    z_mean: np.ndarray
    weight: float
    fit_intercept: bool

    @classmethod
    def of(cls, system: RidgeSystem, curvature: float) -> Preconditioner:
        """Factor the Gram of all rows, or of a sample that stands for them; D³/3 flops."""
        L = cholesky_factor(system.G, 1 / curvature)
        return cls(L, curvature, system.z_mean, system.weight, system.fit_intercept)

    def apply(self, gradient: np.ndarray) -> np.ndarray:
        """Return M⁻¹g for g of shape (D + 1,), or (D,) without an intercept; 2·D² flops.

        A second axis of g is that of several machines.
        """
        if not self.fit_intercept:
            return cho_solve((self.L, True), gradient, check_finite=False) / self.curvature
        by_w, by_b = gradient[:-1], gradient[-1]
        w = (
            cho_solve((self.L, True), by_w - np.multiply.outer(self.z_mean, by_b), check_finite=False)
            / self.curvature
        )
        b = by_b / (self.curvature * self.weight) - self.z_mean @ w
        return np.concatenate([w, np.atleast_1d(b) if w.ndim == 1 else b[None]])
