"""Weighted moments of columns, merged without cancellation: what scaling, checks and a linear model need."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.utils.jit import scratch

# Relative differences up to this one are rounding.
EQUAL_TO_ROUNDING = 8 * np.finfo(np.float64).eps

# Deviations below `_SMALL` are multiplied by 2**_LIFT before they are squared; the squares could underflow.
_SMALL, _LIFT = 2.0**-400, 600


@dataclass(frozen=True)
class Moments:
    """Weight, means and summed squared deviations of some rows' columns.

    Parameters
    ----------
    weight : float
        Σs.
    mean : ndarray of shape (n_columns,), float64
        Σ s x / Σs; zeros where the weight is zero.
    squares : ndarray of shape (n_columns,), float64
        Σ s (x − mean)², of columns that are `small` in units of 2⁻¹²⁰⁰.
    min, max : ndarray of shape (n_columns,), float64
        Extremes over rows of positive weight; inf and −inf without any.
    small : bool ndarray of shape (n_columns,)
        Whether all deviations are so small that their squares might underflow.
    """

    weight: float
    mean: np.ndarray
    squares: np.ndarray
    min: np.ndarray
    max: np.ndarray
    small: np.ndarray

    @classmethod
    def empty(cls, n_columns: int) -> Moments:
        """Moments of no rows."""
        infinite = np.full(n_columns, np.inf)
        return cls(
            0.0, np.zeros(n_columns), np.zeros(n_columns), infinite, -infinite, np.ones(n_columns, bool)
        )

    @classmethod
    def of(cls, X: Any, sample_weight: np.ndarray | None) -> Moments:
        """Moments of the rows of X, dense or CSR, computed in float64.

        The mean is corrected by that of the deviations from it (Chan, Golub and LeVeque 1983,
        equation 1.7): a sum of equal numbers drifts by far more than their last digit.
        Columns too large for their squares have moments that are not finite.
        """
        # Contiguous: the order in which a product adds up follows the layout.
        s = np.ones(X.shape[0]) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(X.shape[1])
        if issparse(X):
            return cls._of_sparse(X, s, weight)
        # In memory that this thread keeps: on Dask's workers fresh arrays took longer than the sums.
        n_rows, n_columns = X.shape
        centred = scratch("columns", n_rows, n_columns, np.dtype(np.float64))
        centred[:] = X
        counted = X if s.all() else X[s > 0]
        low, high = (ends.astype(np.float64) for ends in (counted.min(axis=0), counted.max(axis=0)))
        with _overflow_is_infinite():
            mean = s @ centred / weight
            centred -= mean
            drift = s @ centred / weight
            centred -= drift
            mean = mean + drift
            small = np.maximum(high - mean, mean - low) < _SMALL
            if (small & (low < high)).any():
                np.ldexp(centred, np.where(small, _LIFT, 0), out=centred)
            return cls(weight, mean, s @ np.square(centred, out=centred), low, high, small)

    @classmethod
    def _of_sparse(cls, X: Any, s: np.ndarray, weight: float) -> Moments:
        """Moments of rows in CSR without writing out the zeros that are not stored."""
        X = X.astype(np.float64)
        X.sum_duplicates()
        d = X.shape[1]
        with _overflow_is_infinite():
            of_entry = np.repeat(s, np.diff(X.indptr))
            mean = np.bincount(X.indices, of_entry * X.data, d) / weight
            stored = np.bincount(X.indices, of_entry, d).astype(np.float64)  # integers without any entry
            counted = X if s.all() else X[s > 0]
            low, high = (np.asarray(m.todense()).ravel() for m in (counted.min(axis=0), counted.max(axis=0)))
            small = np.maximum(high - mean, mean - low) < _SMALL
            lift = np.where(small, _LIFT, 0)
            centred = np.ldexp(X.data - mean[X.indices], lift[X.indices])
            squares = np.bincount(X.indices, of_entry * np.square(centred), d).astype(np.float64)
            # Of a small column far from zero all entries are stored, whatever their weights add up to.
            zeros = np.where(small & (np.abs(mean) >= _SMALL), 0.0, np.maximum(weight - stored, 0.0))
            squares += zeros * np.square(np.where(zeros > 0, np.ldexp(mean, lift), 0.0))
            return cls(weight, mean, squares, low, high, small)

    def merge(self, other: Moments) -> Moments:
        """Moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with _overflow_is_infinite():
            step = other.mean - self.mean
            small = self.small & other.small & (np.abs(step) < _SMALL)
            lifted = np.ldexp(step, np.where(small, _LIFT, 0))
            return Moments(
                weight,
                self.mean + share * step,
                self._squares(small) + other._squares(small) + self.weight * share * np.square(lifted),
                np.minimum(self.min, other.min),
                np.maximum(self.max, other.max),
                small,
            )

    def _squares(self, small: np.ndarray) -> np.ndarray:
        """Squares in units of 2⁻¹²⁰⁰ for the columns in `small`, all small here too, else in 1."""
        return np.ldexp(self.squares, np.where(self.small & ~small, -2 * _LIFT, 0))

    @property
    def deviations(self) -> np.ndarray:
        """Σ s (x − mean)² of shape (n_columns,); 0 where it is below the smallest double."""
        return self._squares(np.zeros_like(self.small))

    def standard_deviation(self) -> np.ndarray:
        """√(Σ s (x − mean)² / Σs) of shape (n_columns,)."""
        if self.weight <= 0:
            return np.zeros_like(self.mean)
        return np.ldexp(np.sqrt(self.squares / self.weight), np.where(self.small, -_LIFT, 0))

    def is_constant(self) -> np.ndarray:
        """Mask of the columns whose deviation is below the rounding of their mean.

        Scaled to deviation 1, such a column would be rounding noise.
        """
        return self.standard_deviation() <= EQUAL_TO_ROUNDING * np.abs(self.mean)

    def has_one_value(self) -> np.ndarray:
        """Mask of the columns in which all numbers are equal, to the last bit."""
        return self.min >= self.max


def _overflow_is_infinite() -> np.errstate:
    return np.errstate(over="ignore", invalid="ignore")


# Whether columns drift along the rows, as they do where rows are sorted, or stored day by day.

N_RUNS = 16
_HARMLESS = 0.01
# Six would do for normal columns. A rare indicator has few ones, which lie in one sixteenth more often than
# a normal law has it: of such columns of 64 to 300 shuffled rows, six take one in 900 for drifting, twelve
# fewer than one in 300,000 (two million columns with 2 to 10 ones on average, and unequal weights).
_DEVIATIONS = 12.0


def drift_shares(X: np.ndarray, sample_weight: np.ndarray | None = None) -> np.ndarray:
    """Share of each column's variance that lies between sixteenths of the rows, beyond chance.

    The share is ε² = (B − (r − 1)/(m − r)·W)/(B + W) for the squared deviations B between r = 16 runs of
    the m rows and W within them (Kelley 1935): 0 on average for shuffled rows, near 1 for sorted ones. The
    rows are in stored order. Constant columns, and fewer than 64 rows, give zeros. A change within a
    sixteenth is not seen, but one that repeats that often does not bias an average.
    """
    m, n_columns = X.shape
    if m < 4 * N_RUNS:
        return np.zeros(n_columns)
    total, within = Moments.empty(n_columns), np.zeros(n_columns)
    for start, stop in pairwise(m * run // N_RUNS for run in range(N_RUNS + 1)):
        s = None if sample_weight is None else sample_weight[start:stop]
        moments = Moments.of(X[start:stop], s)
        total, within = total.merge(moments), within + moments.deviations
    between = total.deviations - within - (N_RUNS - 1) / (m - N_RUNS) * within
    moves = (total.deviations > 0) & ~total.is_constant()
    return np.divide(between, total.deviations, out=np.zeros(n_columns), where=moves)


def drifting(shares: np.ndarray, n_rows: int) -> np.ndarray:
    """Mask of the columns whose `drift_shares` exceed 1 % by twelve standard deviations of chance.

    Few rows show strong drift alone: of 100 the share must exceed .67, of 300 .23, of 10,000 .017.
    """
    chance = np.sqrt(2.0 * (N_RUNS - 1)) / n_rows
    return shares > _HARMLESS + _DEVIATIONS * chance


def drift_message(column_shares: np.ndarray, target_shares: np.ndarray, n_rows: int) -> str | None:
    """Warning before a fit by SGD, or None if neither columns of X nor coded targets drift."""
    columns = np.flatnonzero(drifting(column_shares, n_rows))
    names = [f"column {j} of X" for j in columns[:3]]
    if len(columns) > 3:
        names.append(f"{len(columns) - 3} more columns")
    if drifting(target_shares, n_rows).any():
        names.insert(0, "y")
    if not names:
        return None
    largest = float(max(column_shares.max(initial=0.0), target_shares.max(initial=0.0)))
    return (
        "solver='sgd' takes rows in stored order and needs shuffled ones, but there is drift along the rows "
        f"in {', '.join(names)}: up to {largest:.0%} of the variance lies between sixteenths of the rows; "
        "shuffle the rows first, or use another solver"
    )


# Products of columns with each other and with the targets, from which a linear model of all rows follows.

MAX_COLUMNS = 256
"""Limit for columns and targets together, whose products then take a few microseconds a row."""

_RANK = 1e-10  # eigenvalues of correlations below this share of the largest are rounding


@dataclass(frozen=True, eq=False)
class CoMoments:
    """Weight, means and summed products of deviations of some rows' columns."""

    n_rows: int  # of positive weight
    weight: float
    mean: np.ndarray  # (c,)
    products: np.ndarray  # (c, c): Σ s (x − mean)(x − mean)ᵀ

    @classmethod
    def empty(cls, n_columns: int) -> CoMoments:
        """Co-moments of no rows."""
        return cls(0, 0.0, np.zeros(n_columns), np.zeros((n_columns, n_columns)))

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, sample_weight: np.ndarray | None) -> CoMoments:
        """Co-moments of the rows [x | y]; those of too large numbers are not finite."""
        n, d = X.shape
        s = np.ones(n) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(d + Y.shape[1])
        centred = scratch("columns and targets", n, d + Y.shape[1], np.dtype(np.float64))
        centred[:, :d], centred[:, d:] = X, Y
        with np.errstate(over="ignore", invalid="ignore"):
            mean = s @ centred / weight
            centred -= mean
            products = centred.T @ (centred if sample_weight is None else s[:, None] * centred)
        return cls(int(np.count_nonzero(s)), weight, mean, products)

    def merge(self, other: CoMoments) -> CoMoments:
        """Co-moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            products = self.products + other.products + self.weight * share * np.outer(step, step)
            return CoMoments(self.n_rows + other.n_rows, weight, self.mean + share * step, products)

    def linear_mse(self, n_targets: int) -> np.ndarray | None:
        """Mean squared error of least squares for the last columns, (n_targets,).

        The columns before them and a constant predict; of linearly dependent ones a basis. The error
        is that expected of other rows by generalised cross-validation, RSS/Σs·(1 − (r + 1)/n)⁻² with the
        rank r (Golub, Heath and Wahba 1979). None where n ≤ r + 1, or numbers are too large.
        """
        d = len(self.mean) - n_targets
        if not np.isfinite(self.products).all():
            return None
        size = np.sqrt(np.diag(self.products))
        # A constant column of large numbers has deviations of rounding alone.
        moves = size > 1e-12 * np.abs(self.mean) * np.sqrt(self.weight)
        size = np.where(moves, size, 1.0)
        R = np.where(np.outer(moves, moves), self.products / np.outer(size, size), 0.0)
        values, V = np.linalg.eigh(R[:d, :d])
        kept = values > _RANK * values.max(initial=0.0)
        rank = int(kept.sum())
        if self.n_rows <= rank + 1:
            return None
        explained = np.square(V[:, kept].T @ R[:d, d:]) / values[kept][:, None]
        left = np.maximum(1.0 - explained.sum(axis=0), 0.0)
        total = np.where(moves[d:], np.square(size[d:]), 0.0) / self.weight
        return total * left / (1.0 - (rank + 1) / self.n_rows) ** 2


def r2_scores(squared_error: np.ndarray, targets: Moments) -> np.ndarray:
    """1 − Σs(ŷ − y)²/Σs(y − ȳ)² of each target; for a constant target 1 without error, else 0."""
    # Rounding can leave deviations from the mean of equal numbers, and r² would be arbitrary.
    total = np.where(targets.has_one_value(), 0.0, targets.deviations)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = 1.0 - squared_error / total
    return np.where(total > 0, r2, np.where(squared_error > 0, 0.0, 1.0))
