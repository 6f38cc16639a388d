"""The largest margin of rows in memory: the nearest points of the hulls of two classes.

By duality the largest margin is the least ‖Σ a_i y_i z_i‖ over weights a ≥ 0 of sum ½ on each class (of sum 1
on all rows, without an intercept; Bennett and Bredensteiner, Duality and geometry in SVM classifiers,
2000). In this form nothing runs off where no plane separates the classes: the hulls meet, and the norm is 0.

The method of multipliers is the proximal point method on a (Rockafellar, 1976). With U = (y_i z_i),

    a ← argmin ½‖Uᵀa‖² + ‖a − a_old‖²/2σ,

where σ rises while the steps are easy. A step is solved in D dimensions: a = Π(a_old − σUw), where Π projects
on the simplices and w = Uᵀa is the zero of the gradient of a strongly convex function, found by semismooth
Newton steps (Li, Sun and Toh, 2018). They find which rows have positive weight; on these the least norm is a
linear system, and rows whose weight reaches 0 on the way there are left out (Wolfe, Finding the nearest
point in a polytope, 1976).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

_UNIT = 2.0**-53
_MOST_STEPS = 100
_MOST_IN_VAIN = 8
_LEAST_GAIN = 1e-9
_FIRST_SIGMA, _MOST_SIGMA, _SIGMA_FACTOR = 10.0, 1e14, 10.0
_MOST_NEWTON_STEPS, _EASY, _HARD = 40, 12, 30
_INEXACT = 0.1  # of a proximal step, beside its length
_MOST_TRIALS = 60
_FLATTER = 0.1
_MOST_LEFT_OUT = 20


@dataclass(frozen=True, eq=False)
class NearestPoints:
    """Nearest points of two hulls, and the plane between them.

    Attributes
    ----------
    a : ndarray of shape (r,)
        Weights ≥ 0 of sum 1; with an intercept Σ a_i y_i = 0.
    w : ndarray of shape (D,)
        Σ a_i y_i z_i. Its norm bounds the margin of every machine on these rows.
    b : float
        The intercept that is best with w; 0 without one.
    least : float
        Smallest y_i(⟨w, z_i⟩ + b): at most ‖w‖², and equal to it where w is exact.
    """

    a: np.ndarray
    w: np.ndarray
    b: float
    least: float

    @property
    def bound(self) -> float:
        """‖w‖."""
        return float(np.linalg.norm(self.w))

    @property
    def gap(self) -> float:
        """1 − least/‖w‖², by which the margin of w falls short of the bound, relatively; 1 where w is 0."""
        square = float(self.w @ self.w)
        return max(0.0, 1 - self.least / square) if square else 1.0


def nearest_points(
    Z: np.ndarray,
    y: np.ndarray,
    start: np.ndarray | None = None,
    *,
    fit_intercept: bool,
    tol: float,
    negligible: float = 0.0,
) -> NearestPoints:
    """Return the nearest points of the hulls of the rows of y = 1 and of y = −1.

    Without an intercept: the point nearest to 0 of the hull of the y_i z_i.

    Parameters
    ----------
    Z : ndarray of shape (r, D), float64
    y : ndarray of shape (r,)
        Of ±1; both occur if there is an intercept.
    start : ndarray of shape (r,), optional
        Weights near the answer; any numbers. Default: equal ones.
    fit_intercept : bool
    tol : float
        The gap at which to end.
    negligible : float
        A norm of w at which to end, whatever the gap.

    Returns
    -------
    NearestPoints
        Where rounding allows no smaller gap, the best that was found: `gap` tells.

    Notes
    -----
    With p rows of positive weight a Newton step costs about 4rD + min(p, D)·p·D + min(p, D)³/3 flops; there
    are some tens. Beside Z there are live U = (y_i z_i), its rows of positive weight, and square matrices.
    """
    # An intercept makes the origin free; far from the rows it would cost digits.
    origin = Z.mean(axis=0) if fit_intercept else np.zeros(Z.shape[1])
    U = (Z - origin) * y[:, None]
    scale = float(np.sqrt(np.einsum("ij,ij->i", U, U).max())) or 1.0
    U /= scale
    sides = [np.flatnonzero(y > 0), np.flatnonzero(y < 0)] if fit_intercept else [np.arange(len(y))]
    hulls = _Hulls(U, sides)
    at = _points(hulls, hulls.project(np.zeros(len(y)) if start is None else start))
    sigma, n_in_vain, ever_gained = _FIRST_SIGMA, 0, False
    for _ in range(_MOST_STEPS):
        if at.gap <= tol or at.bound <= negligible / scale or n_in_vain > _MOST_IN_VAIN:
            break
        a, n_newton = _proximal_step(hulls, at, sigma)
        found = _points(hulls, _on_face(hulls, a))
        if _better(found, at):
            at, n_in_vain, ever_gained = found, 0, True
            sigma = _next_sigma(sigma, n_newton)
        else:
            # From a good start the first steps may be too short to gain; later ones that gain nothing are
            # too long for the rounding of their Newton steps.
            factor = 1 / _SIGMA_FACTOR if ever_gained else _SIGMA_FACTOR**2
            sigma = min(sigma * factor, _MOST_SIGMA)
            n_in_vain += 1
    w = scale * at.w
    return NearestPoints(at.a, w, scale**2 * at.b - float(w @ origin), scale**2 * at.least)


def _next_sigma(sigma: float, n_newton: int) -> float:
    """Return more after an easy step, less after a hard one."""
    if n_newton <= _EASY:
        return min(sigma * _SIGMA_FACTOR, _MOST_SIGMA)
    return sigma / _SIGMA_FACTOR if n_newton > _HARD else sigma


class _Hulls(NamedTuple):
    """The rows U = (y_i z_i), and those of each simplex of weights; all simplices have the same sum."""

    U: np.ndarray
    sides: list[np.ndarray]

    @property
    def sum(self) -> float:
        return 1 / len(self.sides)

    def project(self, c: np.ndarray) -> np.ndarray:
        """Return the nearest weights to c."""
        a = np.empty_like(c)
        for side in self.sides:
            a[side] = _on_simplex(c[side], self.sum)
        return a

    def centred(self, a: np.ndarray) -> np.ndarray:
        """Return the rows of positive weight, side by side, each less the mean of its side."""
        parts = [self.U[side[a[side] > 0]] for side in self.sides]
        return np.concatenate([part - part.mean(axis=0) for part in parts])


def _points(hulls: _Hulls, a: np.ndarray) -> NearestPoints:
    w = hulls.U.T @ a
    leasts = [float((hulls.U[side] @ w).min()) for side in hulls.sides]
    # The best intercept moves the smallest margins of both sides to their mean.
    b = (leasts[1] - leasts[0]) / 2 if len(leasts) == 2 else 0.0
    return NearestPoints(a, w, b, sum(leasts) / len(leasts))


def _better(found: NearestPoints, at: NearestPoints) -> bool:
    """Whether the norm fell; where rounding hides whether it did, whether the gap fell."""
    ratio = found.bound / at.bound
    return ratio < 1 - _LEAST_GAIN or (ratio <= 1 + _LEAST_GAIN and found.gap < at.gap)


def _proximal_step(hulls: _Hulls, at: NearestPoints, sigma: float) -> tuple[np.ndarray, int]:
    """Return the weights that minimise ½‖Uᵀa‖² + ‖a − a_old‖²/2σ, nearly, and the Newton steps it took."""
    w, margins = at.w, hulls.U @ at.w
    a = hulls.project(at.a - sigma * margins)
    for n_newton in range(_MOST_NEWTON_STEPS):
        gradient = w - hulls.U.T @ a
        moved, rounding = float(np.linalg.norm(a - at.a)), 4 * _UNIT * float(np.linalg.norm(a))
        if float(np.linalg.norm(gradient)) <= max(_INEXACT * moved / np.sqrt(sigma), rounding):
            return a, n_newton
        step = -_newton_solve(hulls.centred(a), sigma, gradient)
        along = hulls.U @ step
        share = _line_search(hulls, at.a - sigma * margins, -sigma * along, w, step, along)
        if share == 0:
            return a, n_newton
        w, margins = w + share * step, margins + share * along
        a = hulls.project(at.a - sigma * margins)
    return a, _MOST_NEWTON_STEPS


def _line_search(
    hulls: _Hulls, c: np.ndarray, change: np.ndarray, w: np.ndarray, step: np.ndarray, along: np.ndarray
) -> float:
    """Return a share of the step where the slope, which rises along it, is a tenth of what it is at 0.

    The slope of the function whose gradient is w − UᵀΠ(c). A trial costs a sort, which is little beside the
    factorisation that gave the step.
    """
    line, square = float(w @ step), float(step @ step)

    def slope(share: float) -> float:
        return line + share * square - float(hulls.project(c + share * change) @ along)

    first = slope(0.0)
    low, high, at_low, at_high = 0.0, np.inf, first, np.inf
    share = 1.0
    for _ in range(_MOST_TRIALS):
        there = slope(share)
        if abs(there) <= _FLATTER * abs(first):
            return share
        if there < 0:
            low, at_low = share, there
        else:
            high, at_high = share, there
        if np.isinf(high):
            share *= 4
            continue
        rise = at_high - at_low
        secant = low - at_low * (high - low) / rise if rise > 0 else low
        share = min(max(secant, low + 0.1 * (high - low)), high - 0.1 * (high - low))
    return low


def _newton_solve(C: np.ndarray, sigma: float, gradient: np.ndarray) -> np.ndarray:
    """Return (I + σ·CᵀC)⁻¹g: the derivative of Π centres what is positive, and drops the rest."""
    if len(C) > C.shape[1]:
        return _damped_solve(C.T @ C, 1 / sigma, gradient) / sigma
    return gradient - C.T @ _damped_solve(C @ C.T, 1 / sigma, C @ gradient)


def _on_face(hulls: _Hulls, a: np.ndarray) -> np.ndarray:
    """Go down to the least norm that the rows of positive weight allow, leaving out those that reach 0.

    More rows than columns have no least norm of their own; the weights are then returned as they are.
    """
    for _ in range(_MOST_LEFT_OUT):
        C = hulls.centred(a)
        if len(C) > C.shape[1]:
            return a
        sides = [side[a[side] > 0] for side in hulls.sides]
        direction = np.zeros_like(a)
        direction[np.concatenate(sides)] = -_damped_solve(C @ C.T, 0.0, C @ (hulls.U.T @ a))
        for side in sides:
            direction[side] -= direction[side].mean()
        falling = np.flatnonzero(direction < 0)
        shares = -a[falling] / direction[falling]
        share = float(shares.min(initial=1.0))
        a = np.maximum(a + share * direction, 0.0)
        if share == 1.0:
            break
        a[falling[shares <= share]] = 0.0
    for side in hulls.sides:
        a[side] *= hulls.sum / a[side].sum()
    return a


def _damped_solve(A: np.ndarray, damping: float, c: np.ndarray) -> np.ndarray:
    """Return (A + damping·I)⁻¹c, damped by as much as rounding demands if that is more."""
    damping = max(damping, _UNIT * len(A) * float(np.trace(A)), float(np.finfo(float).tiny))
    while True:
        damped = A.copy()
        damped[np.diag_indices_from(damped)] += damping
        try:
            factor = cho_factor(damped, lower=True, overwrite_a=True, check_finite=False)
        except LinAlgError:
            damping *= 10
            continue
        return cho_solve(factor, c, check_finite=False)


def _on_simplex(c: np.ndarray, total: float) -> np.ndarray:
    """Return the nearest point to c whose entries are ≥ 0 and sum to `total`, by sorting."""
    c = c - c.max()  # only differences matter, and σ·margins may be large beside the weights
    descending = -np.sort(-c)
    shift = (np.cumsum(descending) - total) / np.arange(1, len(c) + 1)
    last = np.flatnonzero(descending > shift)[-1]
    return np.maximum(c - shift[last], 0.0)
