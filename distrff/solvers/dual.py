"""The hinge's dual for few rows: multipliers that move in pairs, on the Gram of the rows.

    max Σ α_i − ½‖Σ α_i·y_i·z_i‖²  over  0 ≤ α_i ≤ u_i, with an intercept also Σ α_i·y_i = 0,

where u = C·s. Each step moves two multipliers so that the constraint holds on: the row that the bound rises
with most, and the one with which it rises most (Fan, Chen and Lin 2005, "Working set selection using second
order information for training support vector machines", J. Mach. Learn. Res. 6, section 2.2). Without an
intercept it moves one. A step costs a few flops a row whatever D is, and one Gram serves every C, class and
fold: rows that a problem is not fitted to have u = 0. Newton steps in the features take D³/3 flops each, for
each problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distrff.solvers.active_set import give_to_one
from distrff.utils.jit import compiled, compiles_once

# scikit-learn's SVC(kernel="precomputed"), one class against the rest, takes the same steps in C++. But it
# has no start, copies each fold's products, keeps them in float32, and ends by a measure of its own in place
# of the gap: 300 fits to 1,024 of the digits (ten classes, five folds, six values of C, a gap of 1e-2) took
# 1.8 to 2.4 s with it, .67 s by the steps here, and .98 s in GridSearchCV(SVC).

_CHECKED = 64  # steps between two looks at the gap, each of which costs about a step
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
        Labels ±1 of every output.
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
    alpha : ndarray of shape (n,)
    x : ndarray of shape (D + 1,) or (D,)
        [w | b] for w = Σ α·y·z and the best b, or w.
    primal, dual : float
        The objective at x, and the bound of its minimum by alpha.
    held_out : ndarray of shape (2,)
        Σ s and Σ s·ℓ over the held-out rows.
    """

    alpha: np.ndarray
    x: np.ndarray
    primal: float
    dual: float
    held_out: np.ndarray


def ascend_pairs(
    rows: DualRows,
    outputs: list[int],
    C: list[float],
    masks: tuple[np.ndarray, np.ndarray] | None,
    alphas: np.ndarray,
    fit_intercept: bool,
    tol: float,
) -> list[DualPoint]:
    """Each problem's point after n steps at most from multipliers, fewer where its gap is closed.

    Parameters
    ----------
    outputs, C : lists
        The output and the C of each of m problems.
    masks : two ndarrays of bool of shape (n,), optional
        Rows that the problems are fitted to, and rows that they are judged on; by default all and none.
    alphas : ndarray of shape (m, n)
        Within the bounds, and balanced if there is an intercept.
    tol : float
        The relative duality gap to reach.

    Notes
    -----
    The gradient that the steps update is computed anew at first, and the certificate from the features
    themselves, so that the rounding of the updates is in neither.
    """
    compile_steps()
    # Held-out rows stay in K, with an upper bound of 0: no fold copies the products.
    fitted = rows.s if masks is None else np.where(masks[0], rows.s, 0.0)
    Y, upper = np.ascontiguousarray(rows.Y[:, outputs].T), np.multiply.outer(C, fitted)
    alphas = np.clip(alphas, 0, upper)
    diagonal = np.ascontiguousarray(np.diagonal(rows.K))
    tiny = max(_TINY * float(diagonal.max()), np.finfo(float).tiny)
    gradients = 1 - Y * ((Y * alphas) @ rows.K)
    climb = _climb_pairs if fit_intercept else _climb_alone
    for y, u, alpha, gradient in zip(Y, upper, alphas, gradients, strict=True):
        climb(rows.K, diagonal, y, u, alpha, gradient, len(y), tol, tiny)
        if fit_intercept:
            give_to_one(alpha, y, u, 0.0)
    W = (Y * alphas) @ rows.Z
    F = W @ rows.Z.T
    b = np.array([_best_intercept(y - f, y, u) for y, f, u in zip(Y, F, upper, strict=True)])
    b = b if fit_intercept else np.zeros(len(Y))
    losses = np.maximum(0, 1 - Y * (F + b[:, None]))
    half_squares = 0.5 * np.einsum("ij,ij->i", W, W)
    judged = np.zeros_like(rows.s) if masks is None else np.where(masks[1], rows.s, 0.0)
    return [
        DualPoint(
            alpha=alphas[i],
            x=np.append(W[i], b[i]) if fit_intercept else W[i],
            primal=float(half_squares[i] + upper[i] @ losses[i]),
            dual=float(alphas[i].sum() - half_squares[i]),
            held_out=np.array([judged.sum(), judged @ losses[i]]),
        )
        for i in range(len(Y))
    ]


def _best_intercept(v: np.ndarray, y: np.ndarray, upper: np.ndarray) -> float:
    """The b of least Σ u·max(0, y·(v − b)); of several equally good ones the middle."""
    order = np.argsort(v, kind="stable")
    slope = np.cumsum(upper[order]) - float(upper[y > 0].sum())  # right of each v
    slope[-1] = max(slope[-1], 0.0)
    rising = np.flatnonzero(slope > 0)
    last = int(rising[0]) if len(rising) else len(v) - 1
    return 0.5 * float(v[order[int(np.argmax(slope >= 0))]] + v[order[last]])


@compiles_once
def compile_steps() -> None:
    """Compile the steps, or load them from Numba's cache, before they are needed."""
    K, one = np.eye(2), np.ones(2)
    for climb in (_climb_pairs, _climb_alone):
        climb(K, one, np.array([1.0, -1.0]), one, np.zeros(2), one.copy(), 1, 1.0, 1e-12)


@compiled()
def _is_closed(y, upper, alpha, gradient, b, tol):
    """Whether the gap of multipliers and an intercept is closed; ‖w‖² is Σ α·(1 − gradient)."""
    primal, gap = 0.0, 0.0
    for t in range(len(y)):
        violation = gradient[t] - y[t] * b
        loss = max(0.0, violation)
        # P − D = Σ u·loss + ‖w‖² − Σ α = Σ u·loss − Σ α·(1 − y·f), to which Σ α·y·b = 0 adds nothing.
        gap += upper[t] * loss - alpha[t] * violation
        primal += upper[t] * loss + 0.5 * alpha[t] * (1 - gradient[t])
    return gap <= tol * primal


@compiled()
def _climb_pairs(K: Any, diagonal, y, upper, alpha, gradient, max_steps, tol, tiny):
    """Move pairs of multipliers until the gap is closed; update alpha and the gradient 1 − y·f."""
    n = len(y)
    for step in range(max_steps):
        # The steepest of the multipliers that may move along y.
        highest, i = -np.inf, -1
        for t in range(n):
            if (alpha[t] < upper[t]) if y[t] > 0 else (alpha[t] > 0):
                v = y[t] * gradient[t]
                if v > highest:
                    highest, i = v, t
        if i < 0:
            return
        lowest, best, j, row = np.inf, -1.0, -1, K[i]
        for t in range(n):
            if (alpha[t] > 0) if y[t] > 0 else (alpha[t] < upper[t]):
                v = y[t] * gradient[t]
                lowest = min(lowest, v)
                fall = highest - v
                if fall > 0:
                    # A step of fall/‖z_i − z_t‖² raises the bound by half of this.
                    gain = fall * fall / max(diagonal[i] + diagonal[t] - 2 * row[t], tiny)
                    if gain > best:
                        best, j = gain, t
        if j < 0:
            return
        # y·(1 − y·f) = y − f is b at rows between their bounds, so b lies between the lowest and the highest.
        if step % _CHECKED == 0 and _is_closed(y, upper, alpha, gradient, 0.5 * (highest + lowest), tol):
            return
        other = K[j]
        length = (highest - y[j] * gradient[j]) / max(diagonal[i] + diagonal[j] - 2 * row[j], tiny)
        room_i = upper[i] - alpha[i] if y[i] > 0 else alpha[i]
        room_j = alpha[j] if y[j] > 0 else upper[j] - alpha[j]
        length = min(length, room_i, room_j)
        # A bound is met exactly, or a row that is as good as there would be taken again and again.
        alpha[i] += y[i] * length
        alpha[j] -= y[j] * length
        if length == room_i:
            alpha[i] = upper[i] if y[i] > 0 else 0.0
        if length == room_j:
            alpha[j] = 0.0 if y[j] > 0 else upper[j]
        for t in range(n):
            gradient[t] -= y[t] * length * (row[t] - other[t])


@compiled()
def _climb_alone(K: Any, diagonal, y, upper, alpha, gradient, max_steps, tol, tiny):
    """Move single multipliers; without an intercept nothing ties them to each other."""
    n = len(y)
    for step in range(max_steps):
        best, i, length = 0.0, -1, 0.0
        for t in range(n):
            # The dual along one multiplier is a parabola of curvature ‖z‖², cut off at the bounds.
            square = max(diagonal[t], tiny)
            move = min(max(gradient[t] / square, -alpha[t]), upper[t] - alpha[t])
            gain = move * (gradient[t] - 0.5 * square * move)
            if gain > best:
                best, i, length = gain, t, move
        if i < 0:
            return
        if step % _CHECKED == 0 and _is_closed(y, upper, alpha, gradient, 0.0, tol):
            return
        row = K[i]
        room = upper[i] - alpha[i] if length > 0 else -alpha[i]
        alpha[i] = (upper[i] if length > 0 else 0.0) if length == room else alpha[i] + length
        for t in range(n):
            gradient[t] -= y[t] * length * y[i] * row[t]
