"""The best lower bound that the last candidates of one machine give together.

The conjugate ℓ* is convex, so a convex combination of candidates has −C·Σ s·ℓ* no lower than that of their
own values, and its vector is that of theirs:

    min P ≥ Σ_t θ_t·slope_t − ½‖Σ_t θ_t·vector_t‖²   for θ ≥ 0, Σ θ ≤ 1.

Candidates near the optimum differ from the best one to all sides, and what their vectors are off cancels: the
bound closes some times faster than that of the last candidate alone.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.optimize import minimize

from distrff.objective.certificate import DualCandidate

_MOST_CANDIDATES, _MOST_BYTES = 12, 2**23


class DualBundle:
    """The last candidates of a machine: twelve, or as many as 8 MiB hold, but two at least."""

    def __init__(self) -> None:
        self._kept: deque[DualCandidate] = deque()

    def add(self, candidate: DualCandidate) -> float:
        """Take one more candidate, and return the best bound of all that are kept."""
        self._kept.append(candidate)
        while len(self._kept) > max(2, min(_MOST_CANDIDATES, _MOST_BYTES // candidate.vector.nbytes)):
            self._kept.popleft()
        bounds = [kept.bound for kept in self._kept]
        alone = max(bounds)
        if len(bounds) == 1 or not alone > 0:
            return alone
        candidates = [_moderate(kept, alone / np.finfo(float).eps ** 2) for kept in self._kept]
        slopes = np.array([candidate.slope for candidate in candidates])
        vectors = np.stack([candidate.vector for candidate in candidates])
        theta = _best_shares(slopes / alone, vectors @ vectors.T / alone, int(np.argmax(bounds)))
        together = DualCandidate(float(theta @ slopes), theta @ vectors)
        return max(alone, together.bound)


def _moderate(candidate: DualCandidate, largest: float) -> DualCandidate:
    """Return the candidate, or its best multiple where its terms exceed `largest`.

    With a large C most candidates have a tiny multiple that bounds anything, and terms that overflow
    beside it.
    """
    square = float(candidate.vector @ candidate.vector)
    if max(abs(candidate.slope), square) <= largest:
        return candidate
    t = candidate.slope / square if candidate.slope > 0 else 0.0
    return DualCandidate(t * candidate.slope, t * candidate.vector)


def _best_shares(slopes: np.ndarray, G: np.ndarray, first: int) -> np.ndarray:
    """Return θ of about the largest slopesᵀθ − ½θᵀGθ over θ ≥ 0, Σ θ ≤ 1, from a candidate alone."""
    start = np.zeros(len(slopes))
    start[first] = 1.0
    found = minimize(
        lambda theta: (0.5 * theta @ G @ theta - slopes @ theta, G @ theta - slopes),
        start,
        jac=True,
        bounds=[(0.0, 1.0)] * len(slopes),
        constraints={"type": "ineq", "fun": lambda t: 1 - t.sum(), "jac": lambda t: -np.ones(len(t))},
        method="SLSQP",
        options={"maxiter": 100, "ftol": 1e-9},
    ).x
    theta = np.clip(np.nan_to_num(found), 0, None)
    return theta / max(1.0, theta.sum())
