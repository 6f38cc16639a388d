"""The hinge's objective near a point, exact for the rows near the hinge y·f = 1 and linear for all others.

    q(x) = ½‖w‖² + constant + slopeᵀx + Σ_i u_i·max(0, 1 − y_i·z̃_iᵀx),  x = [w | b],  z̃ = [z | 1],

where the linear part is that of the rows far on the wrong side; rows far on the right side are left out. The
losses of the former are nowhere below their linear part and those of the latter nowhere below 0, so min q
bounds the objective of all rows from below. Where no row has changed sides, q is the objective.

q is minimised by the method of multipliers: each inner problem is piecewise quadratic and solved by
semismooth Newton steps (as Li, Sun and Toh, SIAM J. Optim. 28, 2018, section 3, do for the lasso).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_solve
from scipy.optimize import brentq
from scipy.sparse import issparse

from distrff.utils.jit import compiled, compiles_once
from distrff.utils.linalg import factor

_GROWTH = 3.0
_MAX_ROUNDS, _MAX_STEPS = 40, 150
_INNER_SHARE, _SLOW = 0.02, 0.5
_EPSILONS = 10.0 ** np.arange(-0.5, -6.1, -0.25)
_SUFFICIENT_DECREASE = 1e-4
_SHORTEST_STEP = 1e-10
_BALANCED = 1e-13


@dataclass(frozen=True, eq=False)
class ActiveSetModel:
    """The function q above.

    Parameters
    ----------
    A : ndarray or scipy CSR matrix of shape (r, D + 1) or (r, D)
        Rows y_i·z̃_i, without the last column if there is no intercept; dense for `minimise`, CSR for
        `ascend`.
    upper : ndarray of shape (r,)
        u = C·s.
    slope : ndarray of shape (D + 1,) or (D,)
    """

    A: Any
    upper: np.ndarray
    slope: np.ndarray
    constant: float
    fit_intercept: bool

    @property
    def penalised(self) -> np.ndarray:
        """1 for the entries of w, 0 for b."""
        p = np.ones(len(self.slope))
        if self.fit_intercept:
            p[-1] = 0.0
        return p

    @property
    def label(self) -> np.ndarray:
        """y, the last column of A where there is an intercept."""
        y = self.A[:, -1]
        return y.toarray().ravel() if issparse(y) else y

    def value(self, x: np.ndarray) -> float:
        """q(x)."""
        violation = np.maximum(0, 1 - self.A @ x)
        return float(0.5 * (self.penalised * x) @ x + self.constant + self.slope @ x + self.upper @ violation)

    def bound(self, alpha: np.ndarray) -> float:
        """The lower bound of q by multipliers, balanced first; −∞ where they cannot be balanced."""
        if self.fit_intercept:
            moved = _balanced(alpha, self.label, self.upper, float(self.slope[-1]))
            if moved is None:
                return -np.inf
            alpha = moved
        # u·max(0, m) ≥ α·m for 0 ≤ α ≤ u: what is left of q is least at w = −v, and balanced α leave b no
        # slope.
        v = self.penalised * (self.slope - self.A.T @ alpha)
        return float(self.constant + alpha.sum() - 0.5 * v @ v)


def _balanced(alpha: np.ndarray, y: np.ndarray, upper: np.ndarray, total: float) -> np.ndarray | None:
    """clip(α + τy, 0, u) for the τ with Σ y·(that) = total; None where the bounds allow none."""
    tau = _shift(alpha, y, y, upper, total)
    if tau is None:
        return None
    moved = y * np.clip(alpha + tau * y, 0, upper)
    give_to_one(moved, np.minimum(0, y) * upper, np.maximum(0, y) * upper, total)
    moved *= y
    # Multipliers out of balance give no bound, as nothing penalises b.
    return moved if abs(y @ moved - total) <= _BALANCED * (upper.sum() + abs(total)) else None


def give_to_one(a: np.ndarray, lower: np.ndarray, upper: np.ndarray, total: float) -> None:
    """Move the multiplier with the most room by the rounding error of Σ a = total, in place."""
    left = total - float(np.ones_like(a) @ a)
    row = int(np.argmax(upper - a if left > 0 else a - lower))
    a[row] = np.clip(a[row] + left, lower[row], upper[row])


def _shift(t: np.ndarray, rate: np.ndarray, y: np.ndarray, upper: np.ndarray, total: float) -> float | None:
    """τ with Σ y·clip(t + τ·rate, 0, u) = total; None where the bounds allow none.

    Rates have the signs of y.
    """

    def excess(tau: float) -> float:
        return float(y @ np.clip(t + tau * rate, 0, upper) - total)

    far = float(((np.abs(t) + upper) / np.abs(rate)).max(initial=0.0)) or 1.0
    low, high = excess(-far), excess(far)
    if not low <= 0 <= high:
        return None
    if low == 0 or high == 0:
        return -far if low == 0 else far
    return float(brentq(excess, -far, far, xtol=1e-15 * far, rtol=1e-15))


@dataclass(frozen=True, eq=False)
class ActiveSetSolution:
    """A point, the multipliers of the rows, q at the point, and the bound of min q by the multipliers."""

    x: np.ndarray
    alpha: np.ndarray
    value: float
    bound: float


def first_multipliers(model: ActiveSetModel, x: np.ndarray) -> np.ndarray:
    """Multipliers for a point: the slopes of the hinges rounded over the ε of highest bound."""
    violation = 1 - model.A @ x
    candidates = [model.upper * np.clip(violation / epsilon, 0, 1) for epsilon in _EPSILONS]
    return max(candidates, key=model.bound)


def minimise(
    model: ActiveSetModel, x: np.ndarray, alpha: np.ndarray, *, epsilon: float, tol: float
) -> ActiveSetSolution:
    """The minimiser of q to a gap of `tol`, or as near as rounding allows.

    It starts from x and multipliers alpha. The penalty weight of row i is σ = u/ε, as in a hinge rounded
    over ε, and all σ grow by the same factor. A step costs D²·(rows within ε) + D³/3 flops; there are some
    tens of steps.
    """
    best = ActiveSetSolution(x, alpha, model.value(x), model.bound(alpha))
    inside = _InsideGram(model)
    steps_left, share = _MAX_STEPS, _INNER_SHARE
    # Never 0, as rows without weight are divided by it too.
    sigma = np.maximum(model.upper, np.finfo(float).tiny) / epsilon
    for _ in range(_MAX_ROUNDS):
        gap = best.value - best.bound
        aim = share * max(0.1 * tol, min(gap, abs(best.value)))
        x, alpha, n_steps = _Lagrangian(model, alpha, sigma).minimised(inside, x, aim, steps_left)
        steps_left -= n_steps
        before, best = best, _better(best, model, x, alpha)
        better = best.value < before.value or best.bound > before.bound
        stuck = not n_steps and not better and share < _INNER_SHARE**3
        if best.value - best.bound <= tol or steps_left <= 0 or stuck:
            break
        # Even after a round without a step: the remaining error may be that of the multiplier of a row of
        # little weight, which moves by σ·(1 − margin) a round.
        sigma = sigma * _GROWTH
        # The objective is not strongly convex in b: multipliers slightly out of balance may give a poor
        # bound, and the next inner problem is then solved more precisely.
        if best.value - best.bound > _SLOW * gap:
            share *= _INNER_SHARE
    return best


@dataclass(frozen=True, eq=False)
class _Lagrangian:
    """The augmented Lagrangian of a model, for multipliers α and penalty weights σ, one for each row."""

    model: ActiveSetModel
    alpha: np.ndarray
    sigma: np.ndarray

    def unbounded(self, margin: np.ndarray) -> np.ndarray:
        """The multipliers at the margins of a point, before they are clipped to their bounds."""
        return self.alpha + self.sigma * (1 - margin)

    def multipliers(self, margin: np.ndarray) -> np.ndarray:
        return np.clip(self.unbounded(margin), 0, self.model.upper)

    def value(self, x: np.ndarray, margin: np.ndarray) -> float:
        q = self.multipliers(margin)
        # The largest q·(1 − m) − (q − α)²/2σ over 0 ≤ q ≤ u, without the constant α²/2σ.
        inner = q @ (1 - margin) + (q * (self.alpha - q / 2) / self.sigma).sum()
        return float(0.5 * (self.model.penalised * x) @ x + self.model.slope @ x + inner)

    def minimised(
        self, inside: _InsideGram, x: np.ndarray, aim: float, max_steps: int
    ) -> tuple[np.ndarray, np.ndarray, int]:
        """A point within about `aim` of the minimum, its multipliers, and the number of steps."""
        model, n_steps = self.model, 0
        x, margin = self._with_best_intercept(x, model.A @ x)
        while n_steps < max_steps:
            gradient = model.penalised * x + model.slope - model.A.T @ self.multipliers(margin)
            # The Lagrangian is 1-strongly convex in w, so ½‖g‖² bounds the error; b is best for the first w.
            if 0.5 * gradient @ gradient <= aim:
                break
            direction = _newton_step(model, inside, self.unbounded(margin), self.sigma, gradient)
            step = self._line_search(x, margin, direction, float(gradient @ direction))
            if step == 0:
                break
            x = x + step * direction
            margin, n_steps = model.A @ x, n_steps + 1
        return x, self.multipliers(margin), n_steps

    def _with_best_intercept(self, x: np.ndarray, margin: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """x with the b that is best for its w, and the margins there.

        Nothing penalises b: Newton steps alone move it very slowly where no row is within ε.
        """
        model = self.model
        if not model.fit_intercept:
            return x, margin
        y = model.label
        tau = _shift(self.unbounded(margin), self.sigma * y, y, model.upper, float(model.slope[-1]))
        if tau is None:
            return x, margin
        moved = x.copy()
        moved[-1] -= tau
        return moved, margin - tau * y

    def _line_search(self, x: np.ndarray, margin: np.ndarray, direction: np.ndarray, slope: float) -> float:
        """The first of 1, ½, ¼ … of sufficient decrease; 0 if rounding leaves none."""
        # Margins are linear in x: trials take no further product with A.
        along, start, step = self.model.A @ direction, self.value(x, margin), 1.0
        while step > _SHORTEST_STEP:
            there = self.value(x + step * direction, margin + step * along)
            if there <= start + _SUFFICIENT_DECREASE * step * slope:
                return step
            step /= 2
        return 0.0


class _InsideGram:
    """Σ u·aaᵀ over the rows within ε of the hinge, updated by the rows that enter and leave."""

    def __init__(self, model: ActiveSetModel) -> None:
        self._A, self._root = model.A, np.sqrt(model.upper)
        self._rows = np.zeros(len(model.upper), dtype=bool)
        self._G = np.zeros((model.A.shape[1],) * 2)

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The sum over the rows of a mask, in an array that this object keeps."""
        entered, left = rows & ~self._rows, self._rows & ~rows
        # Where fewer rows enter and leave than are inside; what subtracting costs in digits `_newton_step`
        # finds out.
        if np.count_nonzero(entered | left) < np.count_nonzero(rows):
            self._G += self._sum(entered)
            self._G -= self._sum(left)
            self._rows = rows
            return self._G
        return self.afresh(rows)

    def afresh(self, rows: np.ndarray) -> np.ndarray:
        """The same sum, computed from these rows alone."""
        self._G, self._rows = self._sum(rows), rows
        return self._G

    def _sum(self, rows: np.ndarray) -> np.ndarray:
        B = self._A[rows]
        B *= self._root[rows, None]
        return B.T @ B


def _newton_step(
    model: ActiveSetModel, inside: _InsideGram, t: np.ndarray, sigma: np.ndarray, gradient: np.ndarray
) -> np.ndarray:
    # σ is u over the same ε for all rows.
    steepness = float(sigma.max(initial=0.0) / max(model.upper.max(initial=0.0), np.finfo(float).tiny))
    rows = (t > 0) & (t < model.upper)
    try:
        return _solved(model, inside.of(rows) * steepness, gradient)
    except np.linalg.LinAlgError:  # heavy rows were subtracted, and their rounding outweighs the others
        H = inside.afresh(rows) * steepness
    # With a large C the penalty is below the rounding of H; raised to it, H + P stays positive definite.
    rounding = len(H) * np.finfo(float).eps * float(np.diagonal(H).max())
    return _solved(model, H, gradient, min_penalty=rounding)


def _solved(
    model: ActiveSetModel, H: np.ndarray, gradient: np.ndarray, min_penalty: float = 0.0
) -> np.ndarray:
    """−(H + P)⁻¹g for the penalty P, which is at least `min_penalty`; H is overwritten."""
    H[np.diag_indices_from(H)] += np.maximum(model.penalised, min_penalty)
    if model.fit_intercept:
        H[-1, -1] = 1.000001 * H[-1, -1] or 1.0  # where no row is inside, b has no curvature
    return -cho_solve((factor(H, overwrite=True, clean=False), True), gradient)


# Coordinate ascent, for models of sparse rows: one row's multiplier at a time.
#
# Multipliers α give w = Σ α_i·y_i·z_i − slope, and each in turn is set to maximise the dual while the others
# stay (Hsieh, Chang, Lin, Keerthi and Sundararajan 2008, "A dual coordinate descent method
# for large-scale linear SVM", algorithm 1). Nothing penalises b, so Σ α_i·y_i must equal slope_b. The method
# of multipliers enforces that: b = b₀ + ρ·(Σ α_i·y_i − slope_b), and b₀ moves to b after some passes.
#
# The cost of a step is proportional to the entries of one row, whatever D is. As long as C·‖z‖² is moderate
# no preconditioner is needed.

_MAX_ASCENT_ROUNDS = 100
_INNER_PASSES = 9  # over the rows between their bounds, after one over all of them
_SEED = 0


def ascend(model: ActiveSetModel, x: np.ndarray, alpha: np.ndarray, *, tol: float) -> ActiveSetSolution:
    """The minimiser of q for a CSR matrix A to a gap of `tol`, or the best of a thousand passes.

    Only the intercept of x is used; the multipliers determine w. A pass costs 4 flops per entry of its rows.
    A round is one pass over all rows and nine over those with multipliers between their bounds. Each pass has
    a new random order of the rows, from a fixed seed.
    """
    compile_ascent()
    A, upper, fit_intercept = model.A, model.upper, model.fit_intercept
    alpha = np.clip(alpha, 0, upper)
    at = model.penalised * (A.T @ alpha - model.slope)
    squares = A.multiply(A)
    reach = np.ones(A.shape[1])
    if fit_intercept:
        # b is moved like one more feature, of the norm of a row.
        rho = reach[-1] = max(float(squares[:, :-1].sum()), np.finfo(float).tiny) / A.shape[0]
        y = model.label
        off = float(y @ alpha - model.slope[-1])
        at[-1] = x[-1] + rho * off
    curvature = np.maximum(squares @ reach, np.finfo(float).tiny)
    rng = np.random.default_rng(_SEED)
    best = ActiveSetSolution(x, alpha.copy(), model.value(x), model.bound(alpha))
    for _ in range(_MAX_ASCENT_ROUNDS):
        for inner in range(1 + _INNER_PASSES):
            # Only these can still move by little; the one full pass lets rows leave their bounds.
            rows = np.flatnonzero((alpha > 0) & (alpha < upper)) if inner else np.arange(len(alpha))
            order = rng.permutation(rows)
            _pass(A.indptr, A.indices, A.data, upper, reach, curvature, order, at, alpha)
        if fit_intercept:
            at[-1] += rho * float(y @ alpha - model.slope[-1])
        best = _better(best, model, at, alpha)
        if best.value - best.bound <= tol:
            break
    return best


def _better(
    best: ActiveSetSolution, model: ActiveSetModel, x: np.ndarray, alpha: np.ndarray
) -> ActiveSetSolution:
    """The better point and the better multipliers."""
    value, bound = model.value(x), model.bound(alpha)
    if value <= best.value:
        best = ActiveSetSolution(x.copy(), best.alpha, value, best.bound)
    if bound >= best.bound:
        best = ActiveSetSolution(best.x, alpha.copy(), best.value, bound)
    return best


@compiles_once
def compile_ascent() -> None:
    """Compile the pass, or load it from Numba's cache, before it is needed."""
    one, indptr = np.ones(1), np.array([0, 1], np.int32)
    _pass(indptr, np.zeros(1, np.int32), one, one, one, one, np.zeros(1, np.int64), one.copy(), one.copy())


@compiled()
def _pass(indptr, indices, data, upper, reach, curvature, order, x, alpha):
    """Set the multiplier of each row in turn, and update x."""
    for i in order:
        margin = 0.0
        for at in range(indptr[i], indptr[i + 1]):
            margin += data[at] * x[indices[at]]
        after = min(max(alpha[i] + (1 - margin) / curvature[i], 0.0), upper[i])
        change = after - alpha[i]
        if change != 0:
            alpha[i] = after
            for at in range(indptr[i], indptr[i + 1]):
                x[indices[at]] += reach[indices[at]] * change * data[at]
