"""The Cholesky factor of a Gram of some rows, standing for all of them: a preconditioner and a start."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from distrff.objective import ridge_system
from distrff.solvers.cholesky import cholesky_factor
from distrff.solvers.ridge_gram import GramProblem


@dataclass(frozen=True, eq=False)
class SampledFactor:
    """M = G + alpha·I, for the Gram of a sample that is scaled to the weight of all rows.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        L·Lᵀ = M.
    coef : ndarray of shape (D, k)
        The ridge machines of the sample.
    intercept : ndarray of shape (k,)
    """

    L: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray


def sampled_factor(total: np.ndarray, alpha: float, problem: GramProblem) -> SampledFactor:
    """Return the factor of the Gram of a sample, (D + 1 + k, D + 1 + k); D³/3 flops."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    L = cholesky_factor(system.G, alpha)
    coef = cho_solve((L, True), system.B, check_finite=False)
    return SampledFactor(L, coef, system.intercept(coef))


def machine_of_sample(factor: SampledFactor) -> tuple[np.ndarray, np.ndarray]:
    """Return the small arrays of the factor: coef and intercept."""
    return factor.coef, factor.intercept


def preconditioned(factor: SampledFactor, R: np.ndarray) -> np.ndarray:
    """Return M⁻¹R for R of shape (D, m), in 2·m·D² flops."""
    return cho_solve((factor.L, True), R, check_finite=False)
