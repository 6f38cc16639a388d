"""The hard-margin machine by a working set, as a conversation: it yields points and is sent critical rows.

min ½‖w‖² s.t. y_i(⟨w, z_i⟩ + b) ≥ 1 for all rows. A sweep at a point finds the rows of smallest margin; those
and the ones found before make a problem that is solved in memory (`nearest_hulls`). Its weights, 0 on all
other rows, bound every machine's margin from above, and its machine is the next point. A machine whose
smallest margin m over all rows is positive has the margin m/‖w‖. Each sweep but the last finds a row that the
problem in memory lacked, so the bound falls until it meets the margin.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError
from distrff.objective.certificate import Certificate
from distrff.solvers.nearest_hulls import nearest_points

NEGLIGIBLE = 1e-6  # of the largest ‖z‖: a bound below it says that the features do not separate the classes

_INNER_SHARE = 0.1  # of tol, for the problem in memory
_MOST_KEPT = 8  # times what one sweep collects


@dataclass(frozen=True, eq=False)
class CriticalRows:
    """What a sweep at x says of one machine.

    Attributes
    ----------
    number : ndarray of shape (r,)
        Row numbers of the rows of smallest margin on each side.
    Z : ndarray of shape (r, D), float64
    label : ndarray of shape (r,)
        ±1.
    margin : ndarray of shape (r,)
        y_i(⟨w, z_i⟩ + b); the smallest of each side over all rows that count are among them.
    n_violating : int
        Rows, of all that count, whose margin is below 1.
    largest_norm : float
        Of z over all rows that count.
    """

    number: np.ndarray
    Z: np.ndarray
    label: np.ndarray
    margin: np.ndarray
    n_violating: int
    largest_norm: float

    def least_margins(self) -> np.ndarray:
        """Return the smallest margin of each side that has rows, that of label 1 first."""
        sides = [self.margin[self.label > 0], self.margin[self.label < 0]]
        return np.array([side.min() for side in sides if len(side)])


@dataclass(frozen=True, eq=False)
class WorkingRows:
    """The rows of the problem in memory, and their weights a in its solution."""

    number: np.ndarray
    Z: np.ndarray
    label: np.ndarray
    a: np.ndarray

    @classmethod
    def none(cls, n_features: int) -> WorkingRows:
        """Return no rows."""
        return cls(np.empty(0, np.int64), np.empty((0, n_features)), np.empty(0), np.empty(0))

    def with_rows(self, found: CriticalRows) -> WorkingRows:
        """Return these rows and those found, new ones with weight 0."""
        new = ~np.isin(found.number, self.number)
        return WorkingRows(
            np.concatenate([self.number, found.number[new]]),
            np.concatenate([self.Z, found.Z[new]]),
            np.concatenate([self.label, found.label[new]]),
            np.concatenate([self.a, np.zeros(np.count_nonzero(new))]),
        )

    def without_idle(self, x: np.ndarray, most: int) -> WorkingRows:
        """Return at most so many rows, leaving out those of weight 0 and the largest margins at x."""
        if len(self.a) <= most:
            return self
        D = self.Z.shape[1]
        margin = self.label * (self.Z @ x[:D] + x[D:].sum())
        rank = np.argsort(np.where(self.a > 0, -np.inf, margin), kind="stable")
        kept = np.sort(rank[: max(most, np.count_nonzero(self.a))])
        return WorkingRows(self.number[kept], self.Z[kept], self.label[kept], self.a[kept])


@dataclass(frozen=True)
class Inseparability:
    """What shows that no machine separates the classes, or how far that is from being shown.

    Attributes
    ----------
    bound : float
        No machine on these features has a larger margin.
    largest_norm : float
        Of z over the rows.
    least_margin : float
        Of the last point swept, in units in which 1 is asked for: it violates most.
    n_violating : int
        Rows whose margin is below 1 there.
    n_weighted : int
        Rows whose weighted mean gives the bound.
    """

    bound: float
    largest_norm: float
    least_margin: float
    n_violating: int
    n_weighted: int


class HardMargin:
    """One hard-margin machine on its way.

    Parameters
    ----------
    start : ndarray of shape (D + 1,) or (D,)
        [w | b] or [w] to begin with; zeros, or any machine.
    fit_intercept : bool
    tol : float
        The relative gap (P − D)/P of ½‖w‖² at which it is done.

    Attributes
    ----------
    x : ndarray
        The machine of the largest margin so far, scaled so that its smallest margin is 1; the last
        point while none separates.
    margin, bound : float
        1/‖w‖ of x, 0 while none separates; no machine has a larger one than the bound.
    checked_margin : float or None
        Smallest margin that the last sweep, which was at x, found; 1 up to the rounding of the sweep.
    working : WorkingRows
    """

    def __init__(self, start: np.ndarray, *, fit_intercept: bool, tol: float) -> None:
        self.x = start
        self.margin = 0.0
        self.bound = np.inf
        self.checked_margin: float | None = None
        self.working = WorkingRows.none(len(start) - fit_intercept)
        self._fit_intercept = fit_intercept
        self._tol = tol
        self._last: CriticalRows | None = None

    @property
    def certificate(self) -> Certificate:
        """½/margin² and ½/bound², the values of ½‖w‖² above and below the least."""
        if not (self.margin and self.bound):
            return Certificate()
        return Certificate(0.5 / self.margin**2, 0.5 / self.bound**2)

    @property
    def converged(self) -> bool:
        return self.certificate.gap <= self._tol

    @property
    def inseparable(self) -> bool:
        """Whether the bound is negligible beside the features."""
        return self._last is not None and self.bound <= NEGLIGIBLE * self._last.largest_norm

    @property
    def inseparability(self) -> Inseparability:
        """The evidence so far, after a sweep at least."""
        assert self._last is not None
        return Inseparability(
            bound=self.bound,
            largest_norm=self._last.largest_norm,
            least_margin=float(self._last.margin.min()),
            n_violating=self._last.n_violating,
            n_weighted=int(np.count_nonzero(self.working.a)),
        )

    def conversation(self) -> Generator[np.ndarray, CriticalRows, None]:
        """Yield points to be swept.

        It ends when the machine is found and was checked by a sweep at it (`converged`), when none can be
        (`inseparable`), or when the least margins are of rows that are in memory already, so that
        rounding allows no smaller gap.
        """
        x = self.x
        while True:
            found = yield x
            self._see(x, found)
            if self.converged:
                self._last = yield self.x
                self.checked_margin = float(self._last.margin.min())
                return
            if not self._news(found):
                return
            x = self._solve(x, found)
            if self.inseparable:
                return

    def _see(self, x: np.ndarray, found: CriticalRows) -> None:
        leasts = found.least_margins()
        if self._fit_intercept and len(leasts) < 2:
            raise InputError("only one class has rows of positive weight; a machine needs two")
        self._last = found
        w = x[:-1] if self._fit_intercept else x
        norm = float(np.linalg.norm(w))
        # The intercept may move the smallest margins of both sides to their mean.
        least = float(leasts.mean() if self._fit_intercept else leasts.min())
        if least > 0 and norm > 0 and least / norm > self.margin:
            self.margin = least / norm
            moved = np.append(w, x[-1] + (leasts[1] - leasts[0]) / 2) if self._fit_intercept else w
            self.x = moved / least
        elif not self.margin:
            self.x = x

    def _news(self, found: CriticalRows) -> bool:
        """Whether a row that is not in memory has the smallest margin of a side."""
        known = np.isin(found.number, self.working.number)
        sides = [found.label > 0, found.label < 0]
        first = [np.flatnonzero(side)[found.margin[side].argmin()] for side in sides if side.any()]
        return not known[first].all()

    def _solve(self, x: np.ndarray, found: CriticalRows) -> np.ndarray:
        """Return the machine of the working rows with those found, and note the bound that it gives."""
        rows = self.working.without_idle(x, _MOST_KEPT * len(found.number)).with_rows(found)
        nearest = nearest_points(
            rows.Z,
            rows.label,
            rows.a if rows.a.any() else None,
            fit_intercept=self._fit_intercept,
            tol=_INNER_SHARE * self._tol,
            negligible=NEGLIGIBLE * found.largest_norm,
        )
        self.working = WorkingRows(rows.number, rows.Z, rows.label, nearest.a)
        self.bound = min(self.bound, nearest.bound)
        point = np.append(nearest.w, nearest.b) if self._fit_intercept else nearest.w
        return point / nearest.bound**2 if nearest.bound else point
