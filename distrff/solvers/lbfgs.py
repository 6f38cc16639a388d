"""L-BFGS from a preconditioner, as a solver generator: it yields points and is sent their evaluations.

The two loops are algorithm 7.4 of Nocedal and Wright, Numerical Optimization, 2nd edition. Several problems
are solved in lockstep: one sweep over the rows serves all.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve

from distrff.solvers.objective import Evaluation, Point
from distrff.solvers.ridge import RidgeSystem, cholesky_factor

Precondition = Callable[[np.ndarray], np.ndarray]  # of one gradient, or of several in columns
Preconditioners = Callable[[float], Precondition]  # from a curvature
Finished = Callable[[Evaluation], bool]
Descent = Generator[np.ndarray, Evaluation, Evaluation]

_N_PAIRS = 12
_RENEWED_BEYOND = 3.0  # times the curvature that the preconditioner was made for, or less by that factor


class _Pairs:
    """The last steps s and gradient changes y, with M⁻¹y for the preconditioner M."""

    def __init__(self) -> None:
        self._kept: deque[tuple[np.ndarray, np.ndarray, np.ndarray, float]] = deque(maxlen=_N_PAIRS)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, s: np.ndarray, y: np.ndarray, solved_y: np.ndarray) -> None:
        curvature = float(s @ y)
        # A pair without positive curvature would leave H not positive definite, and −Hg no descent.
        if curvature > 0:
            self._kept.append((s, y, solved_y, curvature))

    def clear(self) -> None:
        self._kept.clear()

    def solve_again(self, precondition: Precondition) -> None:
        """Replace each M⁻¹y by that of another preconditioner, which is asked once for all."""
        if not self._kept:
            return
        solved = precondition(np.stack([y for _, y, _, _ in self._kept], axis=1))
        renewed = [(s, y, solved[:, i].copy(), c) for i, (s, y, _, c) in enumerate(self._kept)]
        self._kept = deque(renewed, _N_PAIRS)

    def direction(self, gradient: np.ndarray, solved: np.ndarray) -> np.ndarray:
        """−Hg by the two loops; `solved` is M⁻¹g, and no other solve is needed."""
        # r is M⁻¹q all along, as each pair has its M⁻¹y: a solve would be one more task on the cluster.
        q, r = gradient.copy(), solved.copy()
        shares = []
        for s, y, solved_y, curvature in reversed(self._kept):
            share = float(s @ q) / curvature
            shares.append(share)
            q -= share * y
            r -= share * solved_y
        if self._kept:
            s, y, solved_y, curvature = self._kept[-1]
            # The scale γ of Nocedal and Wright's equation 7.20, with M⁻¹ in the place of I.
            r *= curvature / float(y @ solved_y)
        for (s, y, _, curvature), share in zip(self._kept, reversed(shares), strict=True):
            r += (share - float(y @ r) / curvature) * s
        return -r


def lbfgs(start: Evaluation, preconditioner: Preconditioners, finished: Finished) -> Descent:
    """Yield points x; return the evaluation that is finished, or the last one if rounding ends the descent.

    `preconditioner` makes g ↦ M⁻¹g from a curvature, the mean of C·ℓ″ over the rows. It is called again when
    that mean has changed threefold, as it does when margins grow a lot. `finished` says whether an evaluation
    is good enough.
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
            # Its pairs may be of another region: M alone is tried before the descent ends.
            pairs.clear()
            continue
        solved_there = precondition(found.gradient)
        pairs.add(found.x - at.x, found.gradient - at.gradient, solved_there - solved)
        at, solved = found, solved_there
    return at


# The line search: it brackets a step that meets the weak Wolfe conditions (Nocedal and Wright, section 3.1).

_SUFFICIENT_DECREASE = 1e-4
_FLATTER = 0.9
_MAX_TRIALS = 12
_ROUNDING = 1e-10  # of the objective: smaller differences of sums over float32 tiles are rounding


def line_search(
    at: Evaluation, direction: np.ndarray, finished: Finished
) -> Generator[np.ndarray, Evaluation, Evaluation | None]:
    """A point of sufficient decrease and flatter slope, or of sufficient decrease alone, or None."""
    slope = float(at.gradient @ direction)
    if not slope < 0:
        return None
    step, low, high = 1.0, 0.0, np.inf
    best: Evaluation | None = None
    for _ in range(_MAX_TRIALS):
        trial = yield at.x + step * direction
        if finished(trial):
            return trial
        slope_there = float(trial.gradient @ direction)
        allowed = at.value + _SUFFICIENT_DECREASE * step * slope + _ROUNDING * abs(at.value)
        if trial.value > allowed:
            high = step
        elif slope_there < _FLATTER * slope:
            low, best = step, trial
        else:
            return trial
        step = _next_step(step, low, high, slope, slope_there)
    return best


def _next_step(step: float, low: float, high: float, slope: float, slope_there: float) -> float:
    """The zero of the linearly interpolated slope, kept in the lower half of the bracket."""
    secant = step * slope / (slope - slope_there) if slope_there > slope else 4 * step
    if np.isinf(high):
        return min(max(secant, 2 * step), 10 * step)
    return min(max(secant, low + 0.1 * (high - low)), low + 0.5 * (high - low))


# Solver generators of one binary or softmax problem.


class HessianAt(NamedTuple):
    """A request of a solver for the Hessian at a point; it is sent None where no row is curved."""

    at: Evaluation


SolverGenerator = Generator[Point | HessianAt, Any, Evaluation]
RestingGenerator = Generator[Point | HessianAt | None, Any, Evaluation]

_FIRST_EPSILON = 0.3
_SOLVED_TO = 2.0  # a stage ends when its gap is this many times the gap at its own optimum
_AIM = 0.4  # the share of tol that the next ε may leave as bias
_MIN_STEP, _MAX_STEP = 0.1, 0.3  # of ε from one stage to the next
_MIN_EPSILON = 1e-9
# Of seven classes at a large C, three for each were not enough: 200 light sweeps, against 64 with five.
POINTS_A_HESSIAN, _MAX_HESSIANS = 9, 10
# Rows may be curved four times as much as their mean, and M is made for a power of four below that mean.
_MAX_CURVATURE = 16.0


@dataclass
class Rests:
    """When a solver rests, to let the active set try to finish.

    Parameters
    ----------
    after : int
        Points at one ε before the first rest; doubled after each rest.
    early : bool
        Whether to rest also at the end of the first stage.
    """

    after: int
    early: bool = False

    def within(self, solver: SolverGenerator) -> RestingGenerator:
        """Yield the points of the solver generator of one ε, and None for a rest; return its result."""
        n_points = 0
        response: Any = None  # which starts the generator
        while True:
            try:
                point = solver.send(response)
            except StopIteration as end:
                return end.value
            if n_points == self.after:
                yield None
                n_points, self.after = 0, 2 * self.after
            response = yield point
            n_points += 1


class Hessian(NamedTuple):
    """The objective's Hessian H at a point, of all rows or of a sample, as `solve`: g ↦ H⁻¹g.

    `is_light` says whether it is that of all rows, for the cost of a few light sweeps.
    """

    solve: Precondition
    is_light: bool


def solve_smooth(
    x: np.ndarray,
    preconditioner: Preconditioners,
    finished: Finished,
    *,
    hessian_after: int | None = None,
) -> SolverGenerator:
    """Minimise a smooth objective from x by L-BFGS.

    The preconditioner treats all rows as equally curved. After `hessian_after` points (None: never), or a
    step that promises far more than the duality gap, the Hessian replaces it. It is asked for by `HessianAt`,
    so that one pass makes those of several problems. A light one is made at each point for a Newton step,
    which ends at the optimum of the squared hinge once the violating rows are known (Keerthi and DeCoste
    2005, "A modified finite Newton method for fast solution of large scale linear SVMs", J. Mach. Learn. Res.
    6, section 2). Any other is the preconditioner of nine points, and is made at most ten times.
    """
    at = yield Point(x)
    if hessian_after is not None:
        start = at

        def ended(response: Evaluation) -> bool:
            return finished(response) or _promises_too_much(start, response)

        found = yield from _at_epsilon(start, 0.0, lbfgs(start, preconditioner, ended), hessian_after)
        # A step that promised too much may have led uphill.
        at = yield from _by_hessians(min(start, found, key=lambda at: at.value), finished)
    return (yield from _at_epsilon(at, 0.0, lbfgs(at, preconditioner, finished)))


def _by_hessians(at: Evaluation, finished: Finished) -> SolverGenerator:
    """An evaluation that is finished, or the best one if Hessians lead no further."""
    n_heavy = 0
    while not finished(at) and n_heavy < _MAX_HESSIANS:
        made: Hessian | None = yield HessianAt(at)
        if made is None:
            return at
        if made.is_light:
            solver, max_points = _newton_step(at, made.solve, finished), None
        else:
            solver = lbfgs(at, partial(lambda solve, curvature: solve, made.solve), finished)
            max_points, n_heavy = POINTS_A_HESSIAN, n_heavy + 1
        del made  # now only the generator holds this D × D array, and it is dropped before the next is made
        found = yield from _at_epsilon(at, 0.0, solver, max_points)
        del solver
        if found is at:
            return at
        at = found
    return at


def _newton_step(at: Evaluation, precondition: Precondition, finished: Finished) -> Descent:
    """The evaluation after a step along −H⁻¹g; `at` itself if rounding allows no descent."""
    found = yield from line_search(at, -precondition(at.gradient), finished)
    return at if found is None else found


def _promises_too_much(start: Evaluation, response: Evaluation) -> bool:
    """Whether the gain −δᵀg/2 that M promises for a step δ = −M⁻¹g is far above the duality gap.

    M then lacks rows that are curved along δ, as a sample's Gram does if some rows are unlike all others.
    """
    slope = float(start.gradient @ (response.x - start.x))
    return -0.5 * slope > _MAX_CURVATURE * (start.primal - start.dual)


def solve_smoothed(
    x: np.ndarray,
    preconditioner: Preconditioners,
    finished: Finished,
    *,
    tol: float,
    min_curvature: float,
    rests: Rests | None = None,
    looks_ahead: bool = False,
) -> RestingGenerator:
    """Minimise the hinge's objective from x, by smoothed hinges of smaller and smaller ε.

    Each stage is L-BFGS at one ε. At its optimum the gap is at most the bias

        C·Σ s·(hinge − rounded) + (ε/2)·C·Σ s·g²,  g = clip((1 − m)/ε, 0, 1),

    so the stage ends when the gap at the current point is at most twice the bias. The next ε should leave a
    bias of 0.4·tol, as judged at the last point, or with `looks_ahead` at the one before; it is between a
    tenth and three tenths of the current ε.

    Parameters
    ----------
    tol : float
        The relative duality gap to reach.
    min_curvature : float
        C times the smallest share of rows to count as curved. At first few rows may be within ε of the hinge;
        at the optimum there are about as many as features.
    rests : Rests, optional
        When to yield None in place of a point; the solver resumes at the same point.
    looks_ahead : bool
        Whether to request the next ε with each point of a stage but its first, which saves the first sweep of
        the next stage.
    """

    def ended(at: Evaluation) -> bool:
        return finished(at) or at.primal - at.dual <= _SOLVED_TO * at.smoothing

    def following(at: Evaluation) -> float:
        step = _AIM * tol * min(at.primal, at.near) / at.smoothing if at.smoothing > 0 else _MIN_STEP
        return epsilon * float(np.clip(step, _MIN_STEP, _MAX_STEP))

    def floored(curvature: float) -> Precondition:
        return preconditioner(max(curvature, min_curvature / epsilon))

    epsilon = _FIRST_EPSILON
    at = yield Point(x, epsilon)
    while not finished(at):
        solver = _at_epsilon(at, epsilon, lbfgs(at, floored, ended), None, following if looks_ahead else None)
        at = yield from solver if rests is None else rests.within(solver)
        if finished(at) or not ended(at) or epsilon <= _MIN_EPSILON:
            break
        if rests is not None and rests.early and epsilon == _FIRST_EPSILON:
            yield None
        if at.next is None:
            epsilon = following(at)
            at = yield Point(at.x, epsilon)
        else:
            epsilon, at = at.next
    return at


def _at_epsilon(
    start: Evaluation,
    epsilon: float,
    solver: Descent,
    max_points: int | None = None,
    following: Callable[[Evaluation], float] | None = None,
) -> SolverGenerator:
    """Run a solver that yields x alone, at one ε; after `max_points` return the best evaluation so far.

    With `following`, each request also names the next ε, as judged by the evaluation before.
    """
    best = response = start
    try:
        x = next(solver)
        for _ in itertools.count() if max_points is None else range(max_points):
            response = yield Point(x, epsilon, None if following is None else following(response))
            best = min(best, response, key=lambda at: at.value)
            x = solver.send(response)
    except StopIteration as end:
        return end.value
    return best


# Preconditioners: the inverse of (curvature · Gram + I) as a map of gradients; one Gram serves every loss.


@dataclass(frozen=True, eq=False)
class _Centred:
    """M⁻¹ with an intercept, from the inverse for w alone in centred features."""

    curvature: float
    z_mean: np.ndarray
    weight: float
    fit_intercept: bool

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        """The inverse of (h · centred Gram + I) times a gradient by w."""
        raise NotImplementedError

    def apply(self, gradient: np.ndarray) -> np.ndarray:
        """M⁻¹g for g of shape (D + 1,) or (D + 1, k); D in place of D + 1 without an intercept."""
        if not self.fit_intercept:
            return self._solve(gradient)
        by_w, by_b = gradient[:-1], gradient[-1]
        # The row of b says h·W·(z̄ᵀw + b) = g_b; with that b the rows of w say (h·G + I)·w = g_w − z̄·g_b,
        # with the centred G.
        w = self._solve(by_w - np.multiply.outer(self.z_mean, by_b))
        b = by_b / (self.curvature * self.weight) - self.z_mean @ w
        return np.concatenate([w, np.atleast_1d(b) if w.ndim == 1 else b[None]])


@dataclass(frozen=True, eq=False)
class DiagonalPreconditioner(_Centred):
    """M⁻¹ from the diagonal of the Gram alone, in O(D), where no Gram is formed.

    Attributes
    ----------
    G_diagonal : ndarray of shape (D,)
        Σ s·(z − z̄)²; for random binning the weights of the bins, up to a factor.
    curvature, z_mean, weight, fit_intercept
        As of `Preconditioner`.
    """

    G_diagonal: np.ndarray

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        return (by_w.T / (self.curvature * self.G_diagonal + 1)).T


@dataclass(frozen=True, eq=False)
class Preconditioner(_Centred):
    """M⁻¹ for M = h·Σ s·z̃z̃ᵀ + I, z̃ = z; with an intercept z̃ = [z | 1], and its entry in I is 0.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        Cholesky factor of the centred Gram plus I/h.
    curvature : float
        h: C times a mean or a bound of ℓ″.
    """

    L: np.ndarray

    @classmethod
    def of(cls, system: RidgeSystem, curvature: float) -> Preconditioner:
        """Factor the Gram of all rows, or of a sample, scaled to the weight of all rows; D³/3 flops."""
        L = cholesky_factor(system.G, 1 / curvature)
        return cls(curvature, system.z_mean, system.weight, system.fit_intercept, L)

    def _solve(self, by_w: np.ndarray) -> np.ndarray:
        # (h·G + I)⁻¹ = (G + I/h)⁻¹/h.
        return cho_solve((self.L, True), by_w, check_finite=False) / self.curvature
