"""L-BFGS from a preconditioner, as a conversation: it yields points and is sent what a sweep says of them.

The two loops are algorithm 7.4 of Nocedal and Wright, Numerical Optimization, 2nd edition. Several machines
talk at the same time, so that one sweep answers all of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator

import numpy as np

from distrff.objective.evaluation import Evaluation
from distrff.solvers.line_search import line_search

Precondition = Callable[[np.ndarray], np.ndarray]

_N_PAIRS = 12
_RENEWED_BEYOND = 3.0


class _Pairs:
    """The last steps s and gradient changes y, with M⁻¹y for the preconditioner M."""

    def __init__(self) -> None:
        self._kept: deque[tuple[np.ndarray, np.ndarray, np.ndarray, float]] = deque(maxlen=_N_PAIRS)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, s: np.ndarray, y: np.ndarray, solved_y: np.ndarray) -> None:
        curvature = float(s @ y)
        if curvature > 0:
            self._kept.append((s, y, solved_y, curvature))

    def clear(self) -> None:
        self._kept.clear()

    def solve_again(self, precondition: Precondition) -> None:
        """Take another preconditioner."""
        renewed = [(s, y, precondition(y), curvature) for s, y, _, curvature in self._kept]
        self._kept.clear()
        self._kept.extend(renewed)

    def direction(self, gradient: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """Return −Hg by the two loops; `solved` is M⁻¹g, and no other solve is needed."""
        q, r = gradient.copy(), solved.copy()
        shares = []
        for s, y, solved_y, curvature in reversed(self._kept):
            share = float(s @ q) / curvature
            shares.append(share)
            q -= share * y
            r -= share * solved_y
        if self._kept:
            s, y, solved_y, curvature = self._kept[-1]
            r *= curvature / float(y @ solved_y)
        for (s, y, _, curvature), share in zip(self._kept, reversed(shares), strict=True):
            r += (share - float(y @ r) / curvature) * s
        return -r


def lbfgs(
    start: Evaluation,
    preconditioner: Callable[[float], Precondition],
    finished: Callable[[Evaluation], bool],
) -> Generator[np.ndarray, Evaluation, Evaluation]:
    """Yield points x to be evaluated, and return the last evaluation: of a point that is finished,
    or from which rounding allows no further descent.

    Parameters
    ----------
    start : Evaluation
    preconditioner : callable
        From a curvature, a mean of C·ℓ″ over the rows, to g ↦ M⁻¹g. Asked again when that of the
        rows has become another, as it does where margins grow a lot.
    finished : callable
        Whether a point that was just answered is good enough.
    """
    at, pairs, curvature = start, _Pairs(), start.curvature
    if finished(at):
        return at
    precondition = preconditioner(curvature)
    solved = precondition(at.gradient)
    while not finished(at):
        if not curvature / _RENEWED_BEYOND < at.curvature < curvature * _RENEWED_BEYOND:
            curvature = at.curvature
            precondition = preconditioner(curvature)
            pairs.solve_again(precondition)
            solved = precondition(at.gradient)
        direction = pairs.direction(at.gradient, solved)
        found = yield from line_search(at, direction, finished)
        if found is None:
            if not pairs:
                return at
            pairs.clear()
            continue
        solved_there = precondition(found.gradient)
        pairs.add(found.x - at.x, found.gradient - at.gradient, solved_there - solved)
        at, solved = found, solved_there
    return at
