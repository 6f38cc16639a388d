"""Weighted means and squared deviations of columns, merged without cancellation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

# Of numbers of one size: relative differences up to this one are those of rounding.
EQUAL_TO_ROUNDING = 8 * np.finfo(np.float64).eps

# Deviations below the one are multiplied by 2 to the power of the other before they are squared.
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
    least, most : ndarray of shape (n_columns,), float64
        Extremes over rows of positive weight; inf and −inf without any.
    small : bool ndarray of shape (n_columns,)
        Whether all deviations are so small that their squares might underflow.
    """

    weight: float
    mean: np.ndarray
    squares: np.ndarray
    least: np.ndarray
    most: np.ndarray
    small: np.ndarray

    @classmethod
    def empty(cls, n_columns: int) -> Moments:
        """Return the moments of no rows."""
        infinite = np.full(n_columns, np.inf)
        return cls(
            0.0, np.zeros(n_columns), np.zeros(n_columns), infinite, -infinite, np.ones(n_columns, bool)
        )

    @classmethod
    def of(cls, X: Any, sample_weight: np.ndarray | None) -> Moments:
        """Return the moments of the rows of X, dense or CSR, computed in float64.

        The mean is corrected by that of the deviations from it (Chan, Golub and LeVeque 1983,
        equation 1.7): a sum of equal numbers drifts by far more than their last digit.
        Columns too large for their squares have moments that are not finite.
        """
        if issparse(X):
            return cls._of_sparse(X, sample_weight)
        # Contiguous both: the order in which a product adds up follows the layout.
        X = np.ascontiguousarray(X, dtype=np.float64)
        s = np.ones(len(X)) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(X.shape[1])
        with _overflow_is_infinite():
            mean = s @ X / weight
            centred = X - mean
            drift = s @ centred / weight
            centred -= drift
            counted = X if s.all() else X[s > 0]
            least, most = counted.min(axis=0), counted.max(axis=0)
            mean = mean + drift
            small = np.maximum(most - mean, mean - least) < _SMALL
            if (small & (least < most)).any():
                np.ldexp(centred, np.where(small, _LIFT, 0), out=centred)
            return cls(weight, mean, s @ np.square(centred, out=centred), least, most, small)

    @classmethod
    def _of_sparse(cls, X: Any, sample_weight: np.ndarray | None) -> Moments:
        """Return the same of rows in CSR: entries that are not stored are zeros, and are not written out."""
        X = X.astype(np.float64)
        X.sum_duplicates()
        n, d = X.shape
        s = np.ones(n) if sample_weight is None else np.ascontiguousarray(sample_weight)
        weight = float(s.sum())
        if weight == 0.0:
            return cls.empty(d)
        with _overflow_is_infinite():
            of_entry = np.repeat(s, np.diff(X.indptr))
            mean = np.bincount(X.indices, of_entry * X.data, d) / weight
            stored = np.bincount(X.indices, of_entry, d)
            counted = X if s.all() else X[s > 0]
            least, most = (
                np.asarray(m.todense()).ravel() for m in (counted.min(axis=0), counted.max(axis=0))
            )
            small = np.maximum(most - mean, mean - least) < _SMALL
            lift = np.where(small, _LIFT, 0)
            centred = np.ldexp(X.data - mean[X.indices], lift[X.indices])
            squares = np.bincount(X.indices, of_entry * np.square(centred), d)
            # Of a small column far from zero all entries are stored, whatever their weights add up to.
            zeros = np.where(small & (np.abs(mean) >= _SMALL), 0.0, np.maximum(weight - stored, 0.0))
            squares += zeros * np.square(np.where(zeros > 0, np.ldexp(mean, lift), 0.0))
            return cls(weight, mean, squares, least, most, small)

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
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
                np.minimum(self.least, other.least),
                np.maximum(self.most, other.most),
                small,
            )

    def _squares(self, small: np.ndarray) -> np.ndarray:
        """The squares in the units of columns of which only these are small; none is that was not before."""
        return np.ldexp(self.squares, np.where(self.small & ~small, -2 * _LIFT, 0))

    @property
    def deviations(self) -> np.ndarray:
        """Σ s (x − mean)² of shape (n_columns,); 0 where it is below the smallest double."""
        return self._squares(np.zeros_like(self.small))

    def standard_deviation(self) -> np.ndarray:
        """Return √(Σ s (x − mean)² / Σs) of shape (n_columns,)."""
        if self.weight <= 0:
            return np.zeros_like(self.mean)
        return np.ldexp(np.sqrt(self.squares / self.weight), np.where(self.small, -_LIFT, 0))

    def is_constant(self) -> np.ndarray:
        """Return True for the columns whose deviation is below the rounding of their mean.

        Scaled to deviation 1, they would be nothing but the rounding of whoever computed them.
        """
        return self.standard_deviation() <= EQUAL_TO_ROUNDING * np.abs(self.mean)

    def has_one_value(self) -> np.ndarray:
        """Return True for the columns all of whose numbers are equal, to the last bit."""
        return self.least >= self.most


def _overflow_is_infinite() -> np.errstate:
    return np.errstate(over="ignore", invalid="ignore")
