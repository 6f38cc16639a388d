"""The final ridge machine by Cholesky, and the posterior spread of its predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, cholesky, solve_triangular
from scipy.linalg.lapack import dtrtri

from distrff.errors import InputError
from distrff.layout import lay_out
from distrff.objective import RidgeSystem


@dataclass(frozen=True, eq=False)
class PosteriorFactor:
    """What the standard deviation of f(x) needs.

    std² = σ̂²·‖L⁻¹(z − z̄)‖² + σ̂²/W, with L Lᵀ = G + alpha·I; without an intercept the second term is absent
    and z̄ = 0. It is the spread of the weights alone: far from the data, where few features
    can tell rows apart (D ≪ n), it is too small.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        Lower triangular.
    z_mean : ndarray of shape (D,)
    noise : ndarray of shape (k,)
        σ̂² = RSS / (W − effective dimension), per target.
    intercept_variance : float
        1/W, or 0 without an intercept; in units of σ̂².
    effective_dimension : float
        tr G (G + alpha·I)⁻¹, plus 1 for an intercept.
    """

    L: np.ndarray
    z_mean: np.ndarray
    noise: np.ndarray
    intercept_variance: float
    effective_dimension: float

    def __post_init__(self) -> None:
        lay_out(self, "L", "z_mean", "noise")

    def std(self, Z: np.ndarray) -> np.ndarray:
        """Return the standard deviation of f at feature rows, (r, D) → (r, k); D² flops a row."""
        U = solve_triangular(self.L, (Z - self.z_mean).T, lower=True, check_finite=False)
        spread = np.einsum("ij,ij->j", U, U) + self.intercept_variance
        return np.sqrt(np.outer(spread, self.noise))


def cholesky_factor(G: np.ndarray, alpha: float) -> np.ndarray:
    """Return lower triangular L with L Lᵀ = G + alpha·I, in one new D × D array."""
    M = np.array(G, order="F")
    M[np.diag_indices_from(M)] += alpha
    try:
        return cholesky(M, lower=True, overwrite_a=True, check_finite=False)
    except LinAlgError as error:
        raise InputError(
            f"alpha={alpha:g} is below the rounding noise of the Gram: G + alpha*I is not positive definite; "
            "use dtype='float64' or a stronger penalty"
        ) from error


def solve_ridge(system: RidgeSystem, alpha: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the ridge machine at one alpha, or at one per target.

    Parameters
    ----------
    system : RidgeSystem
        Not changed.
    alpha : float or ndarray of shape (k,)
        Targets of equal alpha share a factorisation.

    Returns
    -------
    coef : ndarray of shape (D, k)
    intercept : ndarray of shape (k,)

    Raises
    ------
    InputError
        If G + alpha·I is not positive definite to working precision.

    Notes
    -----
    D³/3 flops for each distinct alpha; one D × D array live beside the system.
    """
    n_targets = system.B.shape[1]
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), (n_targets,))
    coef = np.empty_like(system.B)
    for value in np.unique(alphas):
        group = alphas == value
        coef[:, group] = cho_solve(
            (cholesky_factor(system.G, value), True), system.B[:, group], check_finite=False
        )
    return coef, system.intercept(coef)


def posterior_factor(system: RidgeSystem, alpha: float) -> PosteriorFactor:
    """Return what the standard deviation of predictions needs, for the machine at one alpha.

    Raises
    ------
    InputError
        If G + alpha·I is not positive definite, or the weight sum does not exceed the effective
        dimension, so that the noise cannot be estimated.

    Notes
    -----
    The effective dimension is D − alpha·tr(G + alpha·I)⁻¹ = D − alpha·‖L⁻¹‖²_F. 2/3·D³ flops; two D × D
    arrays live beside the system.
    """
    L = cholesky_factor(system.G, alpha)
    coef = cho_solve((L, True), system.B, check_finite=False)
    dimension = len(L) - alpha * float(np.linalg.norm(dtrtri(L, lower=1)[0])) ** 2 + system.fit_intercept
    freedom = system.weight - dimension
    if not freedom > 0:
        raise InputError(
            f"the noise cannot be estimated: the sample weights sum to {system.weight:g}, not above "
            f"the machine's effective dimension {dimension:.6g}; give more rows, weights that count rows, "
            "or a larger alpha"
        )
    noise = system.residual(coef) / freedom
    intercept_variance = 1 / system.weight if system.fit_intercept else 0.0
    return PosteriorFactor(L, system.z_mean, noise, intercept_variance, dimension)
