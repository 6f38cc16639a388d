"""The dual of a loss with corners for few rows: multipliers that move in pairs, on the Gram of the rows.

    max Σ a_i·y_i − ε|a_i| − ½‖Σ a_i·z_i‖²  over  l_i ≤ a_i ≤ u_i, with an intercept also Σ a_i = 0,

where [l, u] is C·s times the range of −ℓ′, from 0 to y for the hinge. Each step moves two multipliers so that
the constraint holds on: the row that the bound rises with most, and the one with which it rises most (Fan,
Chen and Lin 2005, "Working set selection using second order information for training support vector
machines", J. Mach. Learn. Res. 6, section 2.2). Without an intercept it moves one. A multiplier stops at 0,
where ε|a| has its corner. A step costs a few flops a row whatever D is, and one Gram serves every C, class
and fold: rows that a problem is not fitted to have l = u = 0. Newton steps in the features take D³/3 flops
each, for each problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import cho_solve

from distrff.solvers.active_set import give_to_one
from distrff.solvers.objective import Loss
from distrff.utils.jit import compiled, compiles_once
from distrff.utils.linalg import factor

# scikit-learn's SVC(kernel="precomputed"), one class against the rest, takes the same steps in C++. But it
# has no start, copies each fold's products, keeps them in float32, and ends by a measure of its own in place
# of the gap: 300 fits to 1,024 of the digits (ten classes, five folds, six values of C, a gap of 1e-2) took
# 1.8 to 2.4 s with it, .67 s by the steps here, and .98 s in GridSearchCV(SVC).

_CHECKED = 64  # steps between two looks at the gap, each of which costs about a step
_LARGEST = 1e200  # of a far value, which may be infinite: a product with a weight of 0 is then a number
_INSIDE_STEPS = 32
_ROUNDING = 1e-12  # of a sum of weights
_TINY = 1e-12  # of the largest ‖z‖²: two rows that are nearer to each other than its root count as one


@dataclass(frozen=True, eq=False)
class DualRows:
    """Rows as a dual needs them.

    Attributes
    ----------
    Z : ndarray of shape (n, D)
        Features in float64.
    K : ndarray of shape (n, n)
        ZZᵀ.
    Y : ndarray of shape (n, k)
        Coded targets of every output, labels ±1 of classes.
    s : ndarray of shape (n,)
        Weights.
    """

    Z: np.ndarray
    K: np.ndarray
    Y: np.ndarray
    s: np.ndarray


@dataclass(frozen=True, eq=False)
class DualPoint:
    """Multipliers of one problem, and the model that follows from them.

    Attributes
    ----------
    a : ndarray of shape (n,)
    x : ndarray of shape (D + 1,) or (D,)
        [w | b] for w = Σ a·z and the best b, or w.
    primal, dual : float
        The objective at x, and the bound of its minimum by a.
    near : float
        The primal without what far rows have beyond the loss's far value.
    held_out : ndarray of shape (2,)
        Σ s and Σ s·ℓ over the held-out rows.
    """

    a: np.ndarray
    x: np.ndarray
    primal: float
    dual: float
    near: float
    held_out: np.ndarray


def ascend_pairs(
    rows: DualRows,
    loss: Loss,
    outputs: list[int],
    C: list[float],
    masks: tuple[np.ndarray, np.ndarray] | None,
    A: np.ndarray,
    fit_intercept: bool,
    tol: float,
) -> list[DualPoint]:
    """Each problem's point after n steps at most from multipliers, fewer where its gap is closed.

    Parameters
    ----------
    loss : Loss
        That of the problems, side by side.
    outputs, C : lists
        The output and the C of each of m problems.
    masks : two ndarrays of bool of shape (n,), optional
        Rows that the problems are fitted to, and rows that they are judged on; by default all and none.
    A : ndarray of shape (m, n)
        Where to start; it is brought within the bounds, and into balance if there is an intercept.
    tol : float
        The relative duality gap to reach.

    Notes
    -----
    The gradient that the steps update is computed anew at first, and the certificate from the features
    themselves, so that the rounding of the updates is in neither.
    """
    compile_steps()
    # Held-out rows stay in K, with bounds of 0: no fold copies the products.
    fitted = rows.s if masks is None else np.where(masks[0], rows.s, 0.0)
    Y, weights = rows.Y[:, outputs], np.multiply.outer(C, fitted)
    lower, upper, epsilon = loss.dual_box(Y)
    far = weights.T * np.minimum(loss.far_value, _LARGEST)
    # In rows: products of numbers that lie apart round otherwise.
    Y, L, U, far = (np.ascontiguousarray(B.T) for B in (Y, weights.T * lower, weights.T * upper, far))
    A = np.clip(A, L, U)
    if fit_intercept:
        _balance(A)
    diagonal = np.ascontiguousarray(np.diagonal(rows.K))
    tiny = max(_TINY * float(diagonal.max()), np.finfo(float).tiny)
    gradients = Y - A @ rows.K
    climb = _climb_pairs if fit_intercept else _climb_alone
    for y, low, high, most, a, gradient in zip(Y, L, U, far, A, gradients, strict=True):
        climb(rows.K, diagonal, y, low, high, most, a, gradient, epsilon, len(y), tol, tiny)
        if not loss.is_hinge:  # of which few rows are inside
            _ascend_inside(rows.K, low, high, a, gradient, epsilon, fit_intercept, tiny)
        if fit_intercept:
            give_to_one(a, low, high, 0.0)
    W = A @ rows.Z
    F = W @ rows.Z.T
    b = np.zeros(len(Y))
    if fit_intercept:
        b = np.array(
            [_best_intercept(v, low, high, epsilon) for v, low, high in zip(Y - F, L, U, strict=True)]
        )
    losses = np.ascontiguousarray(loss.value((F + b[:, None]).T, Y.T).T)
    half_squares = 0.5 * np.einsum("ij,ij->i", W, W)
    judged = np.zeros_like(rows.s) if masks is None else np.where(masks[1], rows.s, 0.0)
    return [
        DualPoint(
            a=A[i],
            x=np.append(W[i], b[i]) if fit_intercept else W[i],
            primal=float(half_squares[i] + weights[i] @ losses[i]),
            dual=float((A[i] * Y[i] - epsilon * np.abs(A[i])).sum() - half_squares[i]),
            near=float(half_squares[i] + np.minimum(weights[i] * losses[i], far[i]).sum()),
            held_out=np.array([judged.sum(), judged @ losses[i]]),
        )
        for i in range(len(Y))
    ]


def _balance(A: np.ndarray) -> None:
    """Shrink the heavier side of each row whose sum is not 0 but for rounding, in place."""
    above, below = np.maximum(A, 0).sum(axis=1), -np.minimum(A, 0).sum(axis=1)
    for a, up, down in zip(A, above, below, strict=True):
        if abs(up - down) > _ROUNDING * (up + down):
            heavy = a > 0 if up > down else a < 0
            a[heavy] *= min(up, down) / max(up, down)


def _ascend_inside(
    K: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    a: np.ndarray,
    gradient: np.ndarray,
    epsilon: float,
    fit_intercept: bool,
    tiny: float,
) -> None:
    """Move all multipliers that are inside, not at a bound or at a tube's 0, to their best together.

    A Newton step ends where the first of them meets a bound, and stays there. Pairs find out which rows are
    inside, but move them slowly where C is large: 200 rounds of n steps left a gap of 4e-3 where 15 with
    these steps leave one of 1e-13. A step takes m³/3 flops for m rows; without an end to them the first round
    of 2,000 rows took 1,325, which later rounds do with few.
    """
    for _ in range(_INSIDE_STEPS):
        is_inside = (lower < a) & (a < upper) & ((a != 0) | (epsilon == 0))
        rows = np.flatnonzero(is_inside)
        if len(rows) <= fit_intercept:
            return
        some, of_rows, side = a[rows], K[rows], np.sign(a[rows]) if epsilon else np.zeros(len(rows))
        H = of_rows[:, rows]
        H[np.diag_indices_from(H)] += tiny
        try:
            L = factor(H, overwrite=True, clean=False)
        except np.linalg.LinAlgError:
            return
        slopes = gradient[rows] - epsilon * side
        if fit_intercept:  # which moves no sum, but would be lost in the rounding of a singular H
            slopes -= slopes.mean()
        move, by_one = cho_solve((L, True), np.stack([slopes, np.ones_like(some)], axis=1)).T
        if fit_intercept:
            move -= by_one * (move.sum() / by_one.sum())  # so that their sum stays
        if not np.isfinite(move).all():
            return
        high, low = np.where(side < 0, 0.0, upper[rows]), np.where(side > 0, 0.0, lower[rows])
        end = np.where(move > 0, high, low)
        share = np.divide(end - some, move, out=np.full(len(rows), np.inf), where=move != 0)
        first = int(np.argmin(share))
        step = min(1.0, float(share[first]))
        some = np.clip(some + step * move, low, high)
        if step < 1:
            some[first] = end[first]
        a[rows] = some
        gradient -= step * (move @ of_rows)
        if step == 1:
            return


def _best_intercept(v: np.ndarray, lower: np.ndarray, upper: np.ndarray, epsilon: float) -> float:
    """The b of least loss of the residuals v − b; of several equally good ones the middle.

    As b grows, the slope of a row's loss rises from −u to 0 at v − ε, and to −l at v + ε.
    """
    at, rise = v, upper - lower
    if epsilon:
        at, rise = np.append(v - epsilon, v + epsilon), np.append(upper, -lower)
    order = np.argsort(at, kind="stable")
    slope = np.cumsum(rise[order]) - float(upper.sum())  # right of each corner
    if epsilon:  # where a tube holds all rows alike it is 0 but for rounding
        slope[np.abs(slope) <= _ROUNDING * upper.sum()] = 0.0
    slope[-1] = max(slope[-1], 0.0)
    rising = np.flatnonzero(slope > 0)
    last = int(rising[0]) if len(rising) else len(at) - 1
    return 0.5 * float(at[order[int(np.argmax(slope >= 0))]] + at[order[last]])


@compiles_once
def compile_steps() -> None:
    """Compile the steps, or load them from Numba's cache, before they are needed."""
    K, one, y = np.eye(2), np.ones(2), np.array([1.0, -1.0])
    for climb in (_climb_pairs, _climb_alone):
        climb(K, one, y, -one, one, one, np.zeros(2), y.copy(), 0.0, 1, 1.0, 1e-12)


@compiled()
def _is_closed(y, lower, upper, far, a, gradient, epsilon, b, tol):
    """Whether the gap of multipliers and an intercept is closed; ‖w‖² is Σ a·(y − gradient)."""
    primal, near, gap = 0.0, 0.0, 0.0
    for t in range(len(y)):
        r = gradient[t] - b
        loss = upper[t] * max(0.0, r - epsilon) - lower[t] * max(0.0, -r - epsilon)
        half_square = 0.5 * a[t] * (y[t] - gradient[t])
        # P − D = Σ loss + ‖w‖² − Σ a·y − ε|a| = Σ loss − Σ a·(y − f) − ε|a|, to which Σ a·b = 0 adds nothing.
        gap += loss - (a[t] * r - epsilon * abs(a[t]))
        primal += loss + half_square
        near += min(loss, far[t]) + half_square
    return gap <= tol * min(primal, near)


@compiled()
def _up(t, lower, upper, a, gradient, epsilon):
    """The slope of the dual as a multiplier grows, and how far it may; −∞ at its upper bound."""
    if a[t] >= upper[t]:
        return -np.inf, 0.0
    if epsilon > 0 and a[t] < 0:
        return gradient[t] + epsilon, -a[t]
    return gradient[t] - epsilon, upper[t] - a[t]


@compiled()
def _down(t, lower, upper, a, gradient, epsilon):
    """The slope on the side where it falls, and how far it may; ∞ at its lower bound."""
    if a[t] <= lower[t]:
        return np.inf, 0.0
    if epsilon > 0 and a[t] > 0:
        return gradient[t] - epsilon, a[t]
    return gradient[t] + epsilon, a[t] - lower[t]


@compiled()
def _move(t, move, room, lower, upper, a, epsilon):
    """Move a multiplier; where that is all its room, exactly to 0 or to its bound."""
    # A bound is met exactly, or a row that is as good as there would be taken again and again.
    if abs(move) < room:
        a[t] += move
    elif epsilon > 0 and a[t] * move < 0:
        a[t] = 0.0
    else:
        a[t] = upper[t] if move > 0 else lower[t]


@compiled()
def _climb_pairs(K: Any, diagonal, y, lower, upper, far, a, gradient, epsilon, max_steps, tol, tiny):
    """Move pairs of multipliers until the gap is closed; update a and the gradient y − f."""
    n = len(y)
    for step in range(max_steps):
        # The steepest of the multipliers that may grow.
        highest, i, room_i = -np.inf, -1, 0.0
        for t in range(n):
            v, room = _up(t, lower, upper, a, gradient, epsilon)
            if v > highest:
                highest, i, room_i = v, t, room
        if i < 0:
            return
        lowest, best, j, length, room_j, row = np.inf, -1.0, -1, 0.0, 0.0, K[i]
        for t in range(n):
            v, room = _down(t, lower, upper, a, gradient, epsilon)
            lowest = min(lowest, v)
            fall = highest - v
            if fall > 0:
                # A step of fall/‖z_i − z_t‖² raises the bound by half of this.
                square = max(diagonal[i] + diagonal[t] - 2 * row[t], tiny)
                gain = fall * fall / square
                if gain > best:
                    best, j, length, room_j = gain, t, fall / square, room
        if j < 0:
            return
        # y − f is b at rows between their bounds, so b lies between the lowest and the highest.
        b = 0.5 * (highest + lowest)
        if step % _CHECKED == 0 and _is_closed(y, lower, upper, far, a, gradient, epsilon, b, tol):
            return
        length, other = min(length, room_i, room_j), K[j]
        _move(i, length, room_i, lower, upper, a, epsilon)
        _move(j, -length, room_j, lower, upper, a, epsilon)
        for t in range(n):
            gradient[t] -= length * (row[t] - other[t])


@compiled()
def _climb_alone(K: Any, diagonal, y, lower, upper, far, a, gradient, epsilon, max_steps, tol, tiny):
    """Move single multipliers; without an intercept nothing ties them to each other."""
    n = len(y)
    for step in range(max_steps):
        best, i, length, room_i = 0.0, -1, 0.0, 0.0
        for t in range(n):
            # The dual along one multiplier is a parabola of curvature ‖z‖², cut off at the bounds.
            square = max(diagonal[t], tiny)
            v, room = _up(t, lower, upper, a, gradient, epsilon)
            move = min(v / square, room)
            if v <= 0:
                v, room = _down(t, lower, upper, a, gradient, epsilon)
                move = max(v / square, -room)
                if v >= 0:
                    continue
            gain = move * (v - 0.5 * square * move)
            if gain > best:
                best, i, length, room_i = gain, t, move, room
        if i < 0:
            return
        if step % _CHECKED == 0 and _is_closed(y, lower, upper, far, a, gradient, epsilon, 0.0, tol):
            return
        row = K[i]
        _move(i, length, room_i, lower, upper, a, epsilon)
        for t in range(n):
            gradient[t] -= length * row[t]
