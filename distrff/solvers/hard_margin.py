"""The hard-margin model by a working set, as a solver generator: it yields points and is sent critical rows.

min ½‖w‖² s.t. y_i(⟨w, z_i⟩ + b) ≥ 1 for all rows. A sweep at a point finds the rows of smallest margin. The
problem of these rows and those found before is solved in memory (`nearest_points`): its weights, 0 on all
other rows, bound every model's margin from above, and its model is the next point. A model whose smallest
margin m over all rows is positive has the margin m/‖w‖. Each sweep but the last finds a row that the problem
in memory lacked, so the bound falls until it meets the margin.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from distrff.errors import InputError
from distrff.solvers.objective import Certificate

NEGLIGIBLE = 1e-6  # of the largest ‖z‖: with a bound below it the features do not separate the classes

_INNER_SHARE = 0.1  # of tol, for the problem in memory
_MAX_KEPT = 8  # times the rows that one sweep collects


@dataclass(frozen=True, eq=False)
class CriticalRows:
    """The rows of smallest margin that a sweep at x found for one model.

    Attributes
    ----------
    number : ndarray of shape (r,)
        Row numbers, of both sides.
    Z : ndarray of shape (r, D), float64
    label : ndarray of shape (r,)
        ±1.
    margin : ndarray of shape (r,)
        y_i(⟨w, z_i⟩ + b), including the smallest of each side over all rows of positive weight.
    n_violating : int
        Rows of positive weight, of the whole data, with a margin below 1.
    largest_norm : float
        max ‖z‖ over all rows of positive weight.
    """

    number: np.ndarray
    Z: np.ndarray
    label: np.ndarray
    margin: np.ndarray
    n_violating: int
    largest_norm: float

    def min_rows(self) -> list[int]:
        """The row of smallest margin of each side, label 1 first; a side without rows has none."""
        sides = [np.flatnonzero(self.label > 0), np.flatnonzero(self.label < 0)]
        return [int(side[self.margin[side].argmin()]) for side in sides if len(side)]


class WorkingRows(NamedTuple):
    """The rows of the problem in memory, and their weights a in its solution."""

    number: np.ndarray
    Z: np.ndarray
    label: np.ndarray
    a: np.ndarray

    def with_rows(self, found: CriticalRows) -> WorkingRows:
        """These rows and the new ones among those found, which get the weight 0."""
        new = np.flatnonzero(~np.isin(found.number, self.number))
        added = found.number[new], found.Z[new], found.label[new], np.zeros(len(new))
        return WorkingRows(*map(np.concatenate, zip(self, added, strict=True)))

    def without_idle(self, x: np.ndarray, max_rows: int) -> WorkingRows:
        """At most `max_rows` rows, but all of positive weight; the others by smallest margin at x."""
        if len(self.a) <= max_rows:
            return self
        D = self.Z.shape[1]
        margin = self.label * (self.Z @ x[:D] + x[D:].sum())
        # Rows of positive weight first: the bound rests on them.
        rank = np.argsort(np.where(self.a > 0, -np.inf, margin), kind="stable")
        kept = np.sort(rank[: max(max_rows, np.count_nonzero(self.a))])
        return WorkingRows(*(A[kept] for A in self))


class HardMargin:
    """The solver of one hard-margin model.

    Parameters
    ----------
    start : ndarray of shape (D + 1,) or (D,)
        The first point, [w | b] or [w]: zeros, or any model.
    tol : float
        The relative gap (P − D)/P of ½‖w‖² at which the solver ends.

    Attributes
    ----------
    x : ndarray
        The model of largest margin so far, scaled to a smallest y·f of 1; the last point until a model
        separates the rows.
    margin, bound : float
        The margin 1/‖w‖ of x, 0 until a model separates the rows; no model has a margin above the bound.
    checked_margin : float or None
        The smallest y·f in a last sweep at x; 1 up to the rounding of the sweep.
    last : CriticalRows or None
        Of the last sweep; with `bound`, the evidence that no model separates the classes.
    working : WorkingRows
    """

    def __init__(self, start: np.ndarray, *, fit_intercept: bool, tol: float) -> None:
        self.x = start
        self.margin = 0.0
        self.bound = np.inf
        self.checked_margin: float | None = None
        no_Z = np.empty((0, len(start) - fit_intercept))
        self.working = WorkingRows(np.empty(0, np.int64), no_Z, np.empty(0), np.empty(0))
        self._fit_intercept = fit_intercept
        self._tol = tol
        self.last: CriticalRows | None = None

    @property
    def certificate(self) -> Certificate:
        """½/margin² and ½/bound², which bracket the minimum of ½‖w‖²."""
        if not (self.margin and self.bound):
            return Certificate()
        return Certificate(0.5 / self.margin**2, 0.5 / self.bound**2)

    @property
    def converged(self) -> bool:
        return self.certificate.gap <= self._tol

    @property
    def inseparable(self) -> bool:
        """Whether the bound is negligible relative to the features."""
        return self.last is not None and self.bound <= NEGLIGIBLE * self.last.largest_norm

    def steps(self) -> Generator[np.ndarray, CriticalRows, None]:
        """Yield points to be swept.

        It ends when the model is found and a sweep has checked it (`converged`), when no model separates the
        classes (`inseparable`), or when the rows of smallest margin are in memory already: rounding then
        allows no smaller gap.
        """
        x = self.x
        while True:
            found = yield x
            self._update(x, found)
            if self.converged:
                self.last = yield self.x
                self.checked_margin = float(self.last.margin.min())
                return
            if np.isin(found.number[found.min_rows()], self.working.number).all():
                return
            x = self._solve(x, found)
            if self.inseparable:
                return

    def _update(self, x: np.ndarray, found: CriticalRows) -> None:
        margins = found.margin[found.min_rows()]
        if self._fit_intercept and len(margins) < 2:
            raise InputError("only one class has rows of positive weight; a model needs two")
        self.last = found
        w = x[:-1] if self._fit_intercept else x
        norm = float(np.linalg.norm(w))
        # The intercept may move the smallest margins of both sides to their mean.
        margin = float(margins.mean() if self._fit_intercept else margins.min())
        if margin > 0 and norm > 0 and margin / norm > self.margin:
            self.margin = margin / norm
            moved = np.append(w, x[-1] + (margins[1] - margins[0]) / 2) if self._fit_intercept else w
            self.x = moved / margin
        elif not self.margin:
            self.x = x

    def _solve(self, x: np.ndarray, found: CriticalRows) -> np.ndarray:
        """The model of the working rows and those found, and improve the bound."""
        rows = self.working.without_idle(x, _MAX_KEPT * len(found.number)).with_rows(found)
        nearest = nearest_points(
            rows.Z,
            rows.label,
            rows.a if rows.a.any() else None,
            fit_intercept=self._fit_intercept,
            tol=_INNER_SHARE * self._tol,
            negligible=NEGLIGIBLE * found.largest_norm,
        )
        self.working = rows._replace(a=nearest.a)
        self.bound = min(self.bound, nearest.bound)
        point = np.append(nearest.w, nearest.b) if self._fit_intercept else nearest.w
        # w = Σ a·y·z has margins of ‖w‖² at its rows, so w/‖w‖² has margins of 1.
        return point / nearest.bound**2 if nearest.bound else point


# The largest margin of rows in memory: the nearest points of the hulls of two classes.
#
# By duality the largest margin is the minimum of ‖Σ a_i y_i z_i‖ over weights a ≥ 0 of sum ½ on each class
# (of sum 1 on all rows, without an intercept; Bennett and Bredensteiner, Duality and geometry in SVM
# classifiers, 2000). In this form nothing diverges where no plane separates the classes: the hulls meet,
# and the norm is 0.
#
# The method of multipliers is the proximal point method on a (Rockafellar, 1976). With U = (y_i z_i),
#
#     a ← argmin ½‖Uᵀa‖² + ‖a − a_old‖²/2σ,
#
# where σ rises while the steps are easy. A step is solved in D dimensions: a = Π(a_old − σUw), where Π
# projects on the simplices and w = Uᵀa is the zero of the gradient of a strongly convex function, found by
# semismooth Newton steps (Li, Sun and Toh, 2018). They find which rows have positive weight. For these the
# point of least norm solves a linear system; rows with weights that reach 0 on the way to it are left out
# (Wolfe, Finding the nearest point in a polytope, 1976).

_UNIT = 2.0**-53
_MAX_STEPS = 100
_MAX_IN_VAIN = 8
_MIN_GAIN = 1e-9
_FIRST_SIGMA, _MAX_SIGMA, _SIGMA_FACTOR = 10.0, 1e14, 10.0
_MAX_NEWTON_STEPS, _EASY, _HARD = 40, 12, 30
_INEXACT = 0.1  # error of a proximal step, relative to its length
_MAX_TRIALS = 60
_FLATTER = 0.1
_MAX_LEFT_OUT = 20


@dataclass(frozen=True, eq=False)
class NearestPoints:
    """The nearest points of two hulls, as the plane between them.

    Attributes
    ----------
    a : ndarray of shape (r,)
        Weights ≥ 0 of sum 1; with an intercept Σ a_i y_i = 0.
    w : ndarray of shape (D,)
        Σ a_i y_i z_i. Its norm bounds the margin of every model on these rows.
    b : float
        The intercept that is best with w; 0 without one.
    min_margin : float
        Smallest y_i(⟨w, z_i⟩ + b): at most ‖w‖², and equal to it where w is exact.
    """

    a: np.ndarray
    w: np.ndarray
    b: float
    min_margin: float

    @property
    def bound(self) -> float:
        """‖w‖."""
        return float(np.linalg.norm(self.w))

    @property
    def gap(self) -> float:
        """1 − min_margin/‖w‖², the relative distance of the margin of w from the bound; 1 if w is 0."""
        square = float(self.w @ self.w)
        return max(0.0, 1 - self.min_margin / square) if square else 1.0


def nearest_points(
    Z: np.ndarray,
    y: np.ndarray,
    start: np.ndarray | None = None,
    *,
    fit_intercept: bool,
    tol: float,
    negligible: float = 0.0,
) -> NearestPoints:
    """The nearest points of the hulls of the rows of y = 1 and of y = −1.

    Without an intercept: the point nearest to 0 of the hull of the y_i z_i. It ends at a gap of `tol`, at a
    norm of w of at most `negligible`, or where rounding allows no smaller gap, and returns the best found.

    Parameters
    ----------
    Z : ndarray of shape (r, D), float64
    y : ndarray of shape (r,)
        ±1; both occur if there is an intercept.
    start : ndarray of shape (r,), optional
        Weights near the solution; any numbers. Default: equal ones.

    Notes
    -----
    With p rows of positive weight a Newton step costs about 4rD + min(p, D)·p·D + min(p, D)³/3 flops; there
    are some tens. Memory beside Z: U = (y_i z_i), its rows of positive weight, and square matrices of them.
    """
    # With an intercept the origin is arbitrary; one far from the rows would cost digits.
    origin = Z.mean(axis=0) if fit_intercept else np.zeros(Z.shape[1])
    U = (Z - origin) * y[:, None]
    scale = float(np.sqrt(np.einsum("ij,ij->i", U, U).max())) or 1.0
    U /= scale
    sides = [np.flatnonzero(y > 0), np.flatnonzero(y < 0)] if fit_intercept else [np.arange(len(y))]
    hulls = _Hulls(U, sides)
    at = _points(hulls, hulls.project(np.zeros(len(y)) if start is None else start))
    sigma, n_in_vain, ever_gained = _FIRST_SIGMA, 0, False
    for _ in range(_MAX_STEPS):
        if at.gap <= tol or at.bound <= negligible / scale or n_in_vain > _MAX_IN_VAIN:
            break
        a, n_newton = _proximal_step(hulls, at, sigma)
        found = _points(hulls, _on_face(hulls, a))
        if _better(found, at):
            at, n_in_vain, ever_gained = found, 0, True
            if n_newton <= _EASY:
                sigma = min(sigma * _SIGMA_FACTOR, _MAX_SIGMA)
            elif n_newton > _HARD:
                sigma /= _SIGMA_FACTOR
        else:
            # From a good start the first steps may be too short to improve it; later steps that improve
            # nothing are too long for the rounding of their Newton steps.
            factor = 1 / _SIGMA_FACTOR if ever_gained else _SIGMA_FACTOR**2
            sigma = min(sigma * factor, _MAX_SIGMA)
            n_in_vain += 1
    # Back in the coordinates of Z: w has grown by the scale, margins by its square, and b by the origin.
    w = scale * at.w
    return NearestPoints(at.a, w, scale**2 * at.b - float(w @ origin), scale**2 * at.min_margin)


class _Hulls(NamedTuple):
    """The rows U = (y_i z_i), and the rows of each simplex of weights; all simplices have the same sum."""

    U: np.ndarray
    sides: list[np.ndarray]

    @property
    def sum(self) -> float:
        return 1 / len(self.sides)

    def project(self, c: np.ndarray) -> np.ndarray:
        """The nearest weights to c."""
        a = np.empty_like(c)
        for side in self.sides:
            a[side] = _on_simplex(c[side], self.sum)
        return a

    def centred(self, a: np.ndarray) -> np.ndarray:
        """The rows of positive weight, one side after the other, each less the mean of its side."""
        parts = [self.U[side[a[side] > 0]] for side in self.sides]
        return np.concatenate([part - part.mean(axis=0) for part in parts])


def _points(hulls: _Hulls, a: np.ndarray) -> NearestPoints:
    w = hulls.U.T @ a
    margins = [float((hulls.U[side] @ w).min()) for side in hulls.sides]
    # The best intercept moves the smallest margins of both sides to their mean.
    b = (margins[1] - margins[0]) / 2 if len(margins) == 2 else 0.0
    return NearestPoints(a, w, b, sum(margins) / len(margins))


def _better(found: NearestPoints, at: NearestPoints) -> bool:
    """Whether the norm fell or, if its change is within rounding, whether the gap fell."""
    ratio = found.bound / at.bound
    return ratio < 1 - _MIN_GAIN or (ratio <= 1 + _MIN_GAIN and found.gap < at.gap)


def _proximal_step(hulls: _Hulls, at: NearestPoints, sigma: float) -> tuple[np.ndarray, int]:
    """Weights that nearly minimise ½‖Uᵀa‖² + ‖a − a_old‖²/2σ, and the number of Newton steps."""
    w, margins = at.w, hulls.U @ at.w
    a = hulls.project(at.a - sigma * margins)
    for n_newton in range(_MAX_NEWTON_STEPS):
        gradient = w - hulls.U.T @ a
        # Rows of U have norms of 1 at most, so Uᵀa rounds by about as much as a does.
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
    return a, _MAX_NEWTON_STEPS


def _line_search(
    hulls: _Hulls, c: np.ndarray, change: np.ndarray, w: np.ndarray, step: np.ndarray, along: np.ndarray
) -> float:
    """A share of the step at which the slope, which rises along it, is a tenth of that at 0 or less.

    The slope is that of the function with the gradient w − UᵀΠ(c). A trial costs a sort, which is little
    beside the factorisation that gave the step.
    """
    line, square = float(w @ step), float(step @ step)

    def slope(share: float) -> float:
        return line + share * square - float(hulls.project(c + share * change) @ along)

    first = slope(0.0)
    low, high, at_low, at_high = 0.0, np.inf, first, np.inf
    share = 1.0
    for _ in range(_MAX_TRIALS):
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
    """(I + σ·CᵀC)⁻¹g: the derivative of Π centres the rows of positive weight and drops the others."""
    # (I + σ·CᵀC)⁻¹g = g − Cᵀ(CCᵀ + I/σ)⁻¹C·g: the smaller of both matrices is factored.
    if len(C) > C.shape[1]:
        return _damped_solve(C.T @ C, 1 / sigma, gradient) / sigma
    return gradient - C.T @ _damped_solve(C @ C.T, 1 / sigma, C @ gradient)


def _on_face(hulls: _Hulls, a: np.ndarray) -> np.ndarray:
    """The weights of least norm on the rows of positive weight, leaving out rows that reach 0.

    With more rows than columns these weights are not unique, and are returned unchanged.
    """
    for _ in range(_MAX_LEFT_OUT):
        C = hulls.centred(a)
        if len(C) > C.shape[1]:
            return a
        sides = [side[a[side] > 0] for side in hulls.sides]
        direction = np.zeros_like(a)
        direction[np.concatenate(sides)] = -_damped_solve(C @ C.T, 0.0, C @ (hulls.U.T @ a))
        for side in sides:
            # The solve knows centred rows alone; a side's weights keep their sum.
            direction[side] -= direction[side].mean()
        falling = np.flatnonzero(direction < 0)
        shares = -a[falling] / direction[falling]
        share = float(shares.min(initial=1.0))
        a = np.maximum(a + share * direction, 0.0)
        if share == 1.0:
            break
        # Exactly, or rounding would leave a row with a tiny weight on the face.
        a[falling[shares <= share]] = 0.0
    for side in hulls.sides:
        a[side] *= hulls.sum / a[side].sum()
    return a


def _damped_solve(A: np.ndarray, damping: float, c: np.ndarray) -> np.ndarray:
    """(A + damping·I)⁻¹c, with more damping if rounding demands it."""
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
    """The nearest point to c whose entries are ≥ 0 and sum to `total`, by sorting."""
    c = c - c.max()  # only differences matter, and σ·margins may be large beside the weights
    descending = -np.sort(-c)
    shift = (np.cumsum(descending) - total) / np.arange(1, len(c) + 1)
    last = np.flatnonzero(descending > shift)[-1]
    return np.maximum(c - shift[last], 0.0)
