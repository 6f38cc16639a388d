"""The ridge objective as moments of the rows.

Conventions
-----------
A *Gram* is A = Σ s_i t_i t_iᵀ over rows t = [z | 1 | y], symmetric float64 of shape (p, p), p = D + 1 + k:

* D features z, then the constant 1, then k targets y; s_i ≥ 0 are the sample weights;
* W = A[D, D] = Σ s_i, the weight sum; z̄ = A[:D, D] / W and ȳ = A[D+1:, D] / W, the weighted means.

A nested machine uses the leading D' features times a `feature_scale` c (√(D/D') for Fourier features,
1 for Nyström), so its feature row is c·z[:D']; its coefficients refer to those scaled features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg.blas import dger

from distrff.errors import InputError


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The normal equations (G + alpha·I) w = B of Σ s_i ‖y_i − wᵀz_i − b‖² + alpha‖w‖², b eliminated.

    Attributes
    ----------
    G : ndarray of shape (D, D), Fortran order
        Σ s_i (z_i − z̄)(z_i − z̄)ᵀ with an intercept, Σ s_i z_i z_iᵀ without.
    B : ndarray of shape (D, k)
        Σ s_i (z_i − z̄)(y_i − ȳ)ᵀ, or uncentred.
    z_mean, y_mean : ndarrays of shape (D,) and (k,)
        What was subtracted: z̄ and ȳ, or zeros.
    weight : float
        W = Σ s_i.
    yy : ndarray of shape (k,)
        Σ s_i (y_i − ȳ)², or uncentred.
    fit_intercept : bool
    """

    G: np.ndarray
    B: np.ndarray
    z_mean: np.ndarray
    y_mean: np.ndarray
    weight: float
    yy: np.ndarray
    fit_intercept: bool

    def intercept(self, coef: np.ndarray) -> np.ndarray:
        """Return b = ȳ − wᵀz̄, the minimiser for given w: (..., D, k) → (..., k)."""
        return self.y_mean - self.z_mean @ coef

    def residual(self, coef: np.ndarray) -> np.ndarray:
        """Return the weighted residual sum of squares per target, (D, k) → (k,).

        yy − 2·wᵀB + wᵀGw has no first-order term in the error of w at the solution, where the
        shorter yy − wᵀB − alpha‖w‖² has one.
        """
        quadratic = np.einsum("ij,ij->j", coef, self.G @ coef - 2 * self.B)
        return np.maximum(self.yy + quadratic, 0)


def ridge_system(
    A: np.ndarray,
    n_targets: int,
    *,
    fit_intercept: bool,
    n_features: int | None = None,
    feature_scale: float = 1.0,
) -> RidgeSystem:
    """Return the ridge system of a Gram, or of the nested machine of its leading features.

    Parameters
    ----------
    A : ndarray of shape (D + 1 + n_targets, D + 1 + n_targets)
        A symmetric Gram; not changed.
    n_features : int, optional
        D' ≤ D leading features; all by default.
    feature_scale : float
        c, multiplied onto the features.

    Raises
    ------
    InputError
        If the rows have no weight in total, or `n_features` is not in 1..D.

    Notes
    -----
    Allocates one D' × D' array, G. The rank-one centring is done in place as −v vᵀ with v = z̄·√W,
    which keeps G exactly symmetric.
    """
    D = A.shape[0] - 1 - n_targets
    size = D if n_features is None else n_features
    if not 1 <= size <= D:
        raise InputError(f"n_features={size} is not between 1 and the {D} features of the Gram")
    weight = float(A[D, D])
    if not weight > 0:
        raise InputError(
            f"the rows to fit have the total weight {weight:g}: all are in one fold or have zero weight; "
            "give more rows, fewer folds or positive sample weights"
        )
    G = np.array(A[:size, :size].T, order="F")
    B = A[:size, D + 1 :] * feature_scale
    yy = np.diagonal(A)[D + 1 :].copy()
    z_mean, y_mean = np.zeros(size), np.zeros(n_targets)
    if feature_scale != 1:
        G *= feature_scale**2
    if fit_intercept:
        z_mean = A[:size, D] * (feature_scale / weight)
        y_mean = A[D + 1 :, D] / weight
        v = z_mean * np.sqrt(weight)
        G = dger(-1.0, v, v, a=G, overwrite_a=1)
        B -= np.outer(z_mean, y_mean * weight)
        yy = np.maximum(yy - weight * y_mean**2, 0)
    return RidgeSystem(G, B, z_mean, y_mean, weight, yy, fit_intercept)


def held_out_error(
    A: np.ndarray, coef: np.ndarray, intercept: np.ndarray, *, feature_scale: float = 1.0
) -> np.ndarray:
    """Return Σ s_i (y_ij − w_jᵀz_i − b_j)² over the rows of a Gram, for m machines of k targets at once.

    The residual of target j is −tᵀv with v = [c·w_j; b_j; −e_j], so its sum of squares is vᵀAv.

    Parameters
    ----------
    A : ndarray of shape (D + 1 + k, D + 1 + k)
        The Gram of the held-out rows (or of any others).
    coef : ndarray of shape (m, D', k)
        Coefficients of the leading D' ≤ D features times `feature_scale`. NaN gives NaN.
    intercept : ndarray of shape (m, k)

    Returns
    -------
    ndarray of shape (m, k)
        Never negative: rounding below zero is clipped.

    Notes
    -----
    2·m·k·p² flops; two arrays of shape (m·k, p) live.
    """
    m, size, k = coef.shape
    p = A.shape[0]
    D = p - 1 - k
    V = np.zeros((m, k, p))
    V[:, :, :size] = coef.transpose(0, 2, 1)
    V[:, :, :size] *= feature_scale
    V[:, :, D] = intercept
    V[:, np.arange(k), D + 1 + np.arange(k)] = -1
    rows = V.reshape(m * k, p)
    return np.maximum(np.einsum("ij,ij->i", rows @ A, rows), 0).reshape(m, k)
