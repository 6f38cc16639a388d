"""Models of sparse rows, solved one row's multiplier at a time.

Multipliers α make w = Σ α_i·y_i·z_i − slope, and each of them in turn is set where the dual is highest while
the others stay (Hsieh, Chang, Lin, Keerthi and Sundararajan 2008, "A dual coordinate descent method for
large-scale linear SVM", algorithm 1). That Σ α_i·y_i must be what the linear part says, because nothing
penalises b, is left to the method of multipliers: b = b₀ + ρ·(Σ α_i·y_i − slope_b), and b₀ moves to b after
some passes.

A step costs the entries of one row, whatever D is, and curvatures are those of single rows: nothing needs a
preconditioner as long as C·‖z‖² is of moderate size.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from distrff.compiled import compiled, in_own_thread
from distrff.solvers.kink_model import KinkModel, KinkSolution

_MOST_ROUNDS = 100
_INNER_PASSES = 9  # over the rows between their bounds, after one over all of them
_SEED = 0


def ascend(model: KinkModel, x: np.ndarray, alpha: np.ndarray, *, tol: float) -> KinkSolution:
    """Return the minimiser of q to a gap of `tol`, or where many passes end.

    Parameters
    ----------
    model : KinkModel
        Its A is a scipy CSR matrix.
    x, alpha : ndarrays of shape (D + 1,) or (D,), and (r,)
        Of x only the intercept counts; the multipliers say the rest.
    tol : float

    Notes
    -----
    A pass costs 4 flops an entry of its rows; a round is ten passes, nine of them over the rows whose
    multipliers are between their bounds. The order of the rows is drawn anew for each pass, always alike.
    """
    compile_ascent()
    A, upper, fit_intercept = model.A, model.upper, model.fit_intercept
    alpha = np.clip(alpha, 0, upper)
    at = model.penalised * (A.T @ alpha - model.slope)
    squares = A.multiply(A)
    reach = np.ones(A.shape[1])
    if fit_intercept:
        # b moves as one more feature of the size of a row would.
        rho = reach[-1] = max(float(squares[:, :-1].sum()), np.finfo(float).tiny) / A.shape[0]
        y = model.label
        off = float(y @ alpha - model.slope[-1])
        at[-1] = x[-1] + rho * off
    bend = np.maximum(squares @ reach, np.finfo(float).tiny)
    rng = np.random.default_rng(_SEED)
    best = KinkSolution(x, alpha.copy(), model.value(x), model.bound(alpha))
    for _ in range(_MOST_ROUNDS):
        for inner in range(1 + _INNER_PASSES):
            rows = np.flatnonzero((alpha > 0) & (alpha < upper)) if inner else np.arange(len(alpha))
            order = rng.permutation(rows)
            _pass(A.indptr, A.indices, A.data, upper, reach, bend, order, at, alpha)
        if fit_intercept:
            at[-1] += rho * float(y @ alpha - model.slope[-1])
        best = _better(best, model, at, alpha)
        if best.value - best.bound <= tol:
            break
    return best


def _better(best: KinkSolution, model: KinkModel, x: np.ndarray, alpha: np.ndarray) -> KinkSolution:
    """Return the better point and the better multipliers."""
    value, bound = model.value(x), model.bound(alpha)
    if value < best.value:
        best = KinkSolution(x.copy(), best.alpha, value, best.bound)
    if bound > best.bound:
        best = KinkSolution(best.x, alpha.copy(), best.value, bound)
    return best


@cache
def compile_ascent() -> None:
    """Compile the pass, or load it from Numba's cache, before it is needed."""
    in_own_thread(_compile_ascent)


def _compile_ascent() -> None:
    one, indptr = np.ones(1), np.array([0, 1], np.int32)
    _pass(indptr, np.zeros(1, np.int32), one, one, one, one, np.zeros(1, np.int64), one.copy(), one.copy())


@compiled()
def _pass(indptr, indices, data, upper, reach, bend, order, x, alpha):
    """Set the multiplier of each row in turn, and move x along."""
    for i in order:
        margin = 0.0
        for at in range(indptr[i], indptr[i + 1]):
            margin += data[at] * x[indices[at]]
        after = min(max(alpha[i] + (1 - margin) / bend[i], 0.0), upper[i])
        change = after - alpha[i]
        if change != 0:
            alpha[i] = after
            for at in range(indptr[i], indptr[i + 1]):
                x[indices[at]] += reach[indices[at]] * change * data[at]
