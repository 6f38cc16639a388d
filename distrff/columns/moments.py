"""Weighted means and squared deviations of columns, merged without cancellation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

# Of numbers of one size: relative differences up to this one are those of rounding.
EQUAL_TO_ROUNDING = 8 * np.finfo(np.float64).eps


@dataclass(frozen=True)
class Moments:
    """Weight, means and summed squared deviations of some rows' columns.

    Parameters
    ----------
    weight : float
        Σs.
    mean : ndarray of shape (n_columns,), float64
        Σ s x / Σs; zeros where the weight is zero.
    deviations : ndarray of shape (n_columns,), float64
        Σ s (x − mean)².
    """

    weight: float
    mean: np.ndarray
    deviations: np.ndarray

    @classmethod
    def empty(cls, n_columns: int) -> Moments:
        """Return the moments of no rows."""
        return cls(0.0, np.zeros(n_columns), np.zeros(n_columns))

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
            return cls(weight, mean + drift, s @ np.square(centred, out=centred))

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
            squares = np.bincount(X.indices, of_entry * np.square(X.data - mean[X.indices]), d)
            return cls(weight, mean, squares + np.maximum(weight - stored, 0.0) * np.square(mean))

    def merge(self, other: Moments) -> Moments:
        """Return the moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with _overflow_is_infinite():
            step = other.mean - self.mean
            return Moments(
                weight,
                self.mean + share * step,
                self.deviations + other.deviations + self.weight * share * np.square(step),
            )

    def standard_deviation(self) -> np.ndarray:
        """Return √(Σ s (x − mean)² / Σs) of shape (n_columns,)."""
        return np.sqrt(self.deviations / self.weight) if self.weight > 0 else np.zeros_like(self.deviations)

    def is_constant(self) -> np.ndarray:
        """Return True for the columns whose deviation is below the rounding of their mean."""
        return self.standard_deviation() <= EQUAL_TO_ROUNDING * np.abs(self.mean)


def _overflow_is_infinite() -> np.errstate:
    return np.errstate(over="ignore", invalid="ignore")
