"""Products of columns with each other and with the targets, from which a linear model of all rows follows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.utils.jit import scratch

MAX_COLUMNS = 256
"""Of rows and targets together: their products then take a few microseconds a row."""

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
        """Return the co-moments of no rows."""
        return cls(0, 0.0, np.zeros(n_columns), np.zeros((n_columns, n_columns)))

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, sample_weight: np.ndarray | None) -> CoMoments:
        """Return the co-moments of the rows [x | y]; those of too large numbers are not finite."""
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
        """Return the co-moments of both sets of rows (Chan, Golub and LeVeque 1983, equation 2.1)."""
        weight = self.weight + other.weight
        if weight == 0.0:
            return self
        share = other.weight / weight
        with np.errstate(over="ignore", invalid="ignore"):
            step = other.mean - self.mean
            products = self.products + other.products + self.weight * share * np.outer(step, step)
            return CoMoments(self.n_rows + other.n_rows, weight, self.mean + share * step, products)

    def linear_mse(self, n_targets: int) -> np.ndarray | None:
        """Return the mean squared error of least squares for the last columns, (n_targets,).

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
