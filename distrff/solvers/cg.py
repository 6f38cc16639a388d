"""Preconditioned conjugate gradients as a solver generator: it yields residuals and is sent products.

Several systems are solved in lockstep: one sweep over the rows serves all.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_solve

from distrff.solvers.ridge import GramProblem, cholesky_factor
from distrff.utils.linalg import inner, norm

# (v, A·v) for v = M⁻¹r, the response to the residual r.
Response = tuple[np.ndarray, np.ndarray]

_ROUNDOFF = float(np.finfo(np.float64).eps)


class ConjugateGradients:
    """One system A·x = b, A symmetric positive definite, solved until ‖b − A·x‖ ≤ bound.

    In each step the response to the residual r is v = M⁻¹r, for a preconditioner M, and A·v. The next
    direction is p = v + βp with β = rᵀv/(rᵀv of the last step), and A·p follows by the same recurrence. So a
    step takes one product with A, of a vector that is known as soon as r is (Chronopoulos and Gear,
    J. Comput. Appl. Math. 25, 1989; the steps themselves are algorithm 9.1 of Saad, Iterative Methods for
    Sparse Linear Systems, 2nd edition). Each x minimises ½xᵀAx − bᵀx over all directions so far, so the
    last one is the best.

    Parameters
    ----------
    x, residual : ndarrays of shape (D,), float64
        The starting point, and b − A·x there; both are copied. As attributes, the current iterate and its
        residual, which the next step changes in place.
    bound : float
        Of ‖b − A·x‖; with 0 it ends only at an exact solution or at the rounding of the residual.

    Notes
    -----
    14·D flops a step beside the products, and four vectors of length D. The residual bounds the error:
    ‖x − A⁻¹b‖ ≤ ‖b − A·x‖/λ for the smallest eigenvalue λ of A.
    """

    def __init__(self, x: np.ndarray, residual: np.ndarray, *, bound: float) -> None:
        self.x = np.array(x)
        self.residual = np.array(residual)
        self._size = norm(self.residual)
        self._bound = bound
        self._norm_of_A = 0.0
        self._path = norm(self.x)

    @property
    def error(self) -> float:
        """A bound of ‖b − A·x‖: the norm of the updated residual, plus its rounding error."""
        return self._size + self._rounding

    @property
    def _rounding(self) -> float:
        """About u·‖A‖·(‖start‖ + Σ‖step‖) (van der Vorst and Ye, SIAM J. Sci. Comput. 22, 2000)."""
        return _ROUNDOFF * self._norm_of_A * self._path

    @property
    def is_converged(self) -> bool:
        return self.error <= self._bound

    def solve(self) -> Generator[np.ndarray, Response, None]:
        """Yield residuals until the bound is met, or rounding allows no further step."""
        direction, product = np.zeros_like(self.x), np.zeros_like(self.x)
        # Then β is 0 in the first step, which has no direction before it.
        before = np.inf
        while not (self.is_converged or self._size <= self._rounding):  # or the residual is rounding
            v, Av = yield self.residual
            decrease = inner(self.residual, v)
            beta, before = decrease / before, decrease
            direction *= beta
            direction += v
            product *= beta
            product += Av
            curvature = inner(direction, product)
            # Rounding may leave A without a positive curvature along p; the last iterate stays.
            if not (0 < curvature < np.inf and decrease > 0):
                return
            self._step(decrease / curvature, direction, product)

    def _step(self, length: float, direction: np.ndarray, product: np.ndarray) -> None:
        size = norm(direction)
        # A lower bound of ‖A‖ that the directions bring along, without a product of its own.
        self._norm_of_A = max(self._norm_of_A, norm(product) / size)
        self._path += length * size
        self.x += length * direction
        self.residual -= length * product
        self._size = norm(self.residual)


# The Cholesky factor of a sample's Gram: a preconditioner, and the sample's ridge models as starting points.


@dataclass(frozen=True, eq=False)
class SampledFactor:
    """M = G + alpha·I, for the Gram of a sample, scaled to the weight of all rows.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        L·Lᵀ = M.
    coef : ndarray of shape (D, k)
        The ridge models of the sample.
    intercept : ndarray of shape (k,)
    """

    L: np.ndarray
    coef: np.ndarray
    intercept: np.ndarray


def sampled_factor(total: np.ndarray, alpha: float, problem: GramProblem) -> SampledFactor:
    """The factor of the Gram of a sample, (D + 1 + k, D + 1 + k); D³/3 flops."""
    system = problem.system(total)
    L = cholesky_factor(system.G, alpha)
    coef = cho_solve((L, True), system.B, check_finite=False)
    return SampledFactor(L, coef, system.intercept(coef))


def solution_of_sample(factor: SampledFactor) -> tuple[np.ndarray, np.ndarray]:
    """The small arrays of the factor: coef and intercept."""
    return factor.coef, factor.intercept


def preconditioned(factor: SampledFactor, R: np.ndarray) -> np.ndarray:
    """M⁻¹R for R of shape (D, m), in 2·m·D² flops."""
    return cho_solve((factor.L, True), R, check_finite=False)
