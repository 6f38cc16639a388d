"""Ridge on a lattice of frequencies with covariates u beside it, from sums: universal kriging.

With M = √w·T(v)·√w + alpha·P, B the right sides of the covariates as of targets, and S_ab = Σ s·a·b,

    M·c + B·beta = b_y,    Bᵀ·c + S_uu·beta = S_uy.

With c_y = M⁻¹b_y, C = M⁻¹B and the Schur complement S = S_uu − Bᵀ·C follow beta = S⁻¹(S_uy − Bᵀ·c_y), the
estimate of generalised least squares, and c = c_y − C·beta (Rasmussen and Williams 2006, Gaussian Processes
for Machine Learning, section 2.7). The inverse of the whole system has the blocks M⁻¹ + C·S⁻¹·Cᵀ, −C·S⁻¹ and
S⁻¹, so that (M^{−½}z − C·delta, delta) is of its covariance where delta is of the covariance S⁻¹.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np

from distrff.errors import InputError
from distrff.solvers.toeplitz import (
    OF_SAMPLE,
    Ending,
    ToeplitzProblem,
    ToeplitzSolution,
    ToeplitzSums,
    at_mode_zero,
    central_part,
    n_real,
    squared_error,
    whole_of,
)
from distrff.utils.linalg import factor, inner, solve_factor

_COLLINEAR = 1e-10  # the least eigenvalue of correlations, which transforms give to this


@dataclass(frozen=True, eq=False)
class TrendSums(ToeplitzSums):
    """The sums over some rows with p covariates.

    Parameters
    ----------
    u : complex128 ndarray of shape (p, 2·m_1 + 1, …, m_d + 1)
        Σ s·u·exp(−i⟨j, x̃⟩).
    products : ndarray of shape (p, n_targets + p)
        Σ s·u·y, then Σ s·u·u.
    """

    u: np.ndarray
    products: np.ndarray

    @classmethod
    def of(cls, sums: ToeplitzSums, Y: np.ndarray, s: np.ndarray, p: int) -> Self:
        """Sums of which the last p targets are covariates."""
        k = len(sums.b) - p
        products = (s[:, None] * Y[:, k:]).T @ Y
        return cls(sums.v, sums.b[:k], sums.squares[:k], sums.n_rows, sums.b[k:], products)

    def central(self, modes: Sequence[int]) -> Self:
        return replace(super().central(modes), u=np.stack([central_part(u, modes) for u in self.u]))

    @property
    def _split(self) -> tuple[np.ndarray, np.ndarray]:
        """S_uy and S_uu."""
        return self.products[:, : len(self.b)], self.products[:, len(self.b) :]

    def least_squares(self) -> np.ndarray:
        """Beta without the lattice but with an intercept, (p, n_targets); raises InputError if not unique."""
        sums = np.array([at_mode_zero(u).real for u in self.u])
        (S_uy, S_uu), W = self._split, self.weight
        S_uy, S_uu = S_uy - np.outer(sums, self.sums) / W, S_uu - np.outer(sums, sums) / W
        d = np.sqrt(np.maximum(np.diag(S_uu), np.finfo(float).tiny))
        if not np.linalg.eigvalsh(S_uu / np.outer(d, d))[0] > _COLLINEAR:
            raise InputError(
                "a covariate of the trend is a linear combination of others, or has one value, in the rows "
                "of the fit or of a fold; leave it out"
            )
        return np.linalg.solve(S_uu, S_uy)

    def residual(self, beta: np.ndarray) -> ToeplitzSums:
        """The sums of the targets y − ⟨beta, u⟩."""
        S_uy, S_uu = self._split
        squares = self.squares + np.einsum("pk,pk->k", beta, S_uu @ beta - 2.0 * S_uy)
        b = self.b - np.tensordot(beta, self.u, (0, 0))
        return ToeplitzSums(self.v, b, np.maximum(squares, 0.0), self.n_rows)


class _Border(NamedTuple):
    """B, C and the factor of S at an alpha, with the largest relative residual and the steps of C."""

    alpha: float
    B: np.ndarray
    C: np.ndarray
    L: np.ndarray
    error: float
    steps: int


@dataclass(frozen=True, eq=False)
class TrendProblem(ToeplitzProblem):
    """The system with covariates; `sums` are `TrendSums`, and the intercept is there."""

    sums: TrendSums

    @cached_property
    def _rest(self) -> tuple[np.ndarray, ToeplitzSums, np.ndarray]:
        """Beta of least squares, and the sums and S_uy of what it leaves, which the solver begins from."""
        beta = self.sums.least_squares()
        S_uy, S_uu = self.sums._split
        return beta, self.sums.residual(beta), S_uy - S_uu @ beta

    def _border(self, alpha: float, ending: Ending) -> _Border:
        if "border" not in self._kept or self._kept["border"].alpha != alpha:
            self._kept["border"] = self._bordered(alpha, ending)
        return self._kept["border"]

    def _bordered(self, alpha: float, ending: Ending) -> _Border:
        S = self.sums._split[1].copy()
        B = np.stack([self.lifted(u) for u in self.sums.u])
        found = [self.solve_for(b, alpha, float(S[i, i]), ending, None) for i, b in enumerate(B)]
        C = np.stack([one.c for one in found])
        rest = B - np.stack([self.product(c, alpha) for c in C])
        # With the residual's part errors of C enter as their square.
        S -= _inners(B, C) + _inners(C, rest)
        try:
            L = factor((S + S.T) / 2)
        except np.linalg.LinAlgError as error:
            raise InputError(
                "a covariate of the trend is a function of the place as smooth as the kernel, and not told "
                "apart from it; leave it out, or use a larger alpha"
            ) from error
        return _Border(alpha, B, C, L, max(one.error for one in found), sum(one.steps for one in found))

    def solve(
        self, target: int, alpha: float, ending: Ending, start: np.ndarray | None = None
    ) -> ToeplitzSolution:
        """c, beta and its standard errors for one target.

        The variance of the noise is J/(Σs − p − 1), J being the least value of the objective: the estimate of
        restricted likelihood for this kernel and alpha.
        """
        border, (line, rest, S_uy) = self._border(alpha, ending), self._rest
        b, squares = self.lifted(rest.b[target]), float(rest.squares[target])
        found = self.solve_for(b, alpha, squares, ending, start)
        r = b - self.product(found.c, alpha)
        gain = S_uy[:, target] - (_inners(border.B, [found.c]) + _inners(border.C, [r]))[:, 0]
        delta = np.linalg.solve(border.L @ border.L.T, gain)
        J = squares - inner(b, found.c) - inner(r, found.c) - gain @ delta
        variance = np.diag(np.linalg.inv(border.L @ border.L.T))
        freedom = max(self.sums.weight - len(delta) - 1, 1.0)
        return replace(
            found,
            c=found.c - np.tensordot(delta, border.C, 1),
            error=max(found.error, border.error),
            steps=found.steps + border.steps,
            beta=line[:, target] + delta,
            beta_error=np.sqrt(variance * max(J, 0.0) / freedom),
        )

    def squared_error(self, target: int, found: ToeplitzSolution) -> float:
        rest = self.sums.residual(np.outer(found.beta, np.ones(len(self.sums.b))))
        return squared_error(rest, self.toeplitz, target, self.functions(found.c))

    def sample(self, alpha: float, rng: np.random.Generator) -> tuple[np.ndarray, float]:
        """As without covariates; their coefficients follow those of the function in a flat array."""
        border = self._border(alpha, Ending(OF_SAMPLE**2, 2000, OF_SAMPLE))
        x = self.root_inverse(self.normal(rng).astype(np.complex64), alpha, OF_SAMPLE).x
        delta = solve_factor(border.L, rng.standard_normal((len(border.B), 1)), transposed=True)[:, 0]
        x = x - np.tensordot(delta, border.C, 1)
        dimension = n_real(self.weights.shape) + len(delta) - alpha * self.norm(x) ** 2
        C = np.concatenate([whole_of(self.functions(x)).ravel(), delta])
        return C.astype(np.complex64), dimension


def _inners(first: Iterable[np.ndarray], second: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    return np.array([[inner(x, y) for y in second] for x in first])
