"""How far a machine is from the best one: a lower bound of the objective from weights on the rows.

For P(w, b) = C·Σ s_i ℓ(f_i, y_i) + ½‖w‖² every a with Σ s_i a_i = 0 (any a, without an intercept) gives

    D(a) = −C·Σ s_i ℓ*(−a_i, y_i) − ½‖C·Σ s_i a_i z_i‖² ≤ min P.

Candidates rarely meet the constraint. The side of larger sum is multiplied by r = (smaller sum)/(larger sum).
Since ℓ*(−r·a) ≤ r·ℓ*(−a) for r in [0, 1] (convexity, and ℓ*(0) ≤ 0), the bound needs only each side's sums.
For the same reason the whole may be multiplied by any t in [0, 1], and the best t is known in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from distrff.objective.margin_sums import MarginSums


@dataclass(frozen=True)
class Certificate:
    """The best primal and the best dual value of one machine.

    Attributes
    ----------
    primal, dual : float
        Objective of the best machine so far, and the highest lower bound so far.
    """

    primal: float = np.inf
    dual: float = -np.inf

    @property
    def gap(self) -> float:
        """(P − D)/max(|P|, |D|), infinite before anything is known; 0 where rounding makes it negative."""
        if not (np.isfinite(self.primal) and np.isfinite(self.dual)):
            return np.inf
        scale = max(abs(self.primal), abs(self.dual))
        return max(0.0, (self.primal - self.dual) / scale) if scale else 0.0

    def improved(self, primal: float, dual: float) -> Certificate:
        """Return the better of each."""
        return replace(self, primal=min(self.primal, primal), dual=max(self.dual, dual))


def primal_value(C: float, sums: MarginSums, machine: int, w: np.ndarray) -> float:
    """Return C·Σ s·ℓ + ½‖w‖²."""
    return C * float(sums.value[machine]) + 0.5 * float(w @ w)


@dataclass(frozen=True, eq=False)
class DualCandidate:
    """A candidate a that meets the constraint, by what the bound needs of it.

    Attributes
    ----------
    slope : float
        −C·Σ s·ℓ*(−a), or something below it.
    vector : ndarray of shape (D,)
        C·Σ s·a·z.
    """

    slope: float
    vector: np.ndarray

    @classmethod
    def of(cls, C: float, sums: MarginSums, machine: int, *, fit_intercept: bool) -> DualCandidate:
        """Return the candidate of a sweep, its sides brought into balance where there is an intercept."""
        sided = sums.sided
        r = _balance(sided.weight[machine]) if fit_intercept else np.ones(2)
        return cls(-C * float(r @ sided.dual[machine]), C * (r @ sided.vector[machine]))

    @property
    def bound(self) -> float:
        """The best t·slope − ½t²·‖vector‖² over t in [0, 1]; t = 0 bounds every objective by 0."""
        if not self.slope > 0:
            return 0.0
        square = float(self.vector @ self.vector)
        t = min(1.0, self.slope / square) if square else 1.0
        return t * self.slope - 0.5 * t**2 * square


def _balance(weight: np.ndarray) -> np.ndarray:
    """Return the factors of the two sides after which their sums cancel."""
    above, below = float(weight[0]), -float(weight[1])
    least = min(above, below)
    return np.array([least / above if above > 0 else 0.0, least / below if below > 0 else 0.0])
