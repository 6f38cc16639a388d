"""What passes over the rows tell of the ridge objective where its Gram is never formed.

Conventions
-----------
With z̄ = Σ s z/Σ s and ȳ likewise (or zeros without an intercept), the normal equations are
(G + alpha·I) w = B, G = Σ s (z − z̄)(z − z̄)ᵀ and B = Σ s (z − z̄)(y − ȳ)ᵀ, and b = ȳ − z̄ᵀw. The intercept
is eliminated rather than solved for, because G + alpha·I is a Schur complement of the matrix of [w | b],
whose condition number is never smaller, and because the residual then bounds the error of w by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from distrff.objective.thin_products import pulled_back, squared


@dataclass(frozen=True, eq=False)
class RidgeMoments:
    """Sums over rows of features z, targets y and what a first machine leaves of them, e = y − wᵀz − b.

    Attributes
    ----------
    weight : float
        Σ s.
    z, zz : ndarrays of shape (D,)
        Σ s·z and Σ s·z², the latter for a diagonal preconditioner.
    y, yy : ndarrays of shape (k,)
    zy : ndarray of shape (D, k)
    e : ndarray of shape (k,)
    ze : ndarray of shape (D, k)
    """

    weight: float
    z: np.ndarray
    zz: np.ndarray
    y: np.ndarray
    yy: np.ndarray
    zy: np.ndarray
    e: np.ndarray
    ze: np.ndarray

    def __add__(self, other: RidgeMoments) -> RidgeMoments:
        return RidgeMoments(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(getattr(self, f.name)).all() for f in fields(self))


def ridge_moments(Z: Any, Y: np.ndarray, E: np.ndarray, s: np.ndarray | None) -> RidgeMoments:
    """Return the sums of one tile, in 4·r·D·k flops.

    Parameters
    ----------
    Z : ndarray of shape (r, D), float64, or OneHotTile
    Y, E : ndarrays of shape (r, k)
    s : ndarray of shape (r,) or None
        Weights; None is all ones.
    """
    s = np.ones(Z.shape[0]) if s is None else s
    sY, sE = s[:, None] * Y, s[:, None] * E
    sums = pulled_back(np.vstack([s, sY.T, sE.T]), Z)
    k = Y.shape[1]
    return RidgeMoments(
        weight=float(s.sum()),
        z=sums[0],
        zz=pulled_back(s[None], squared(Z))[0],
        y=sY.sum(axis=0),
        yy=np.einsum("ij,ij->j", sY, Y),
        zy=sums[1 : 1 + k].T,
        e=sE.sum(axis=0),
        ze=sums[1 + k :].T,
    )


@dataclass(frozen=True, eq=False)
class RidgeEquations:
    """The normal equations (G + alpha·I) w = B as far as one pass tells them: all but the products with G.

    Attributes
    ----------
    B : ndarray of shape (D, k)
    G_diagonal : ndarray of shape (D,)
    descent : ndarray of shape (D, k)
        B − G·w at the first machine's w.
    z_mean, y_mean : ndarrays of shape (D,) and (k,)
        What is subtracted: z̄ and ȳ, or zeros.
    yy : ndarray of shape (k,)
        Σ s (y − ȳ)², or uncentred.
    """

    B: np.ndarray
    G_diagonal: np.ndarray
    descent: np.ndarray
    z_mean: np.ndarray
    y_mean: np.ndarray
    yy: np.ndarray

    @classmethod
    def of(cls, m: RidgeMoments, *, fit_intercept: bool) -> RidgeEquations:
        """Return the equations of rows whose sums are `m`."""
        if not fit_intercept:
            return cls(m.zy, m.zz, m.ze, np.zeros_like(m.z), np.zeros_like(m.y), m.yy)
        z_mean, y_mean = m.z / m.weight, m.y / m.weight
        return cls(
            B=m.zy - np.outer(z_mean, m.y),
            G_diagonal=np.maximum(m.zz - m.weight * z_mean**2, 0),
            descent=m.ze - np.outer(z_mean, m.e),
            z_mean=z_mean,
            y_mean=y_mean,
            yy=np.maximum(m.yy - m.weight * y_mean**2, 0),
        )

    def intercept(self, coef: np.ndarray) -> np.ndarray:
        """Return b = ȳ − wᵀz̄, the minimiser for given w: (D, k) → (k,)."""
        return self.y_mean - self.z_mean @ coef

    def squared_error(self, coef: np.ndarray, residual: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Return Σ s (y − wᵀz − b)² of each target, from the residual B − (G + alpha·I)·w: no pass is needed.

        wᵀGw = wᵀ(B − alpha·w − residual).
        """
        return np.maximum(self.yy - np.einsum("ij,ij->j", coef, self.B + alpha * coef + residual), 0)
