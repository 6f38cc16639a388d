"""How much each row counts for each of several machines, in its fit or in how it is judged."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class RowWeights(NamedTuple):
    """Weights of r rows for k machines.

    fitted : ndarray of shape (r, k)
        s where a machine is fitted to the row, else 0.
    held_out : ndarray of shape (r, k) or None
        s where a machine is judged on the row, else 0; None is all zeros.
    """

    fitted: np.ndarray
    held_out: np.ndarray | None = None

    @classmethod
    def of(cls, s: np.ndarray | None, held_out: np.ndarray | None, shape: tuple[int, int]) -> RowWeights:
        """Return weights of the shape (r, k) from those of rows, None for ones, and from who is held out."""
        weights = np.ones(shape) if s is None else np.broadcast_to(s[:, None], shape)
        if held_out is None:
            return cls(weights)
        return cls(np.where(held_out, 0.0, weights), np.where(held_out, weights, 0.0))

    def at(self, rows: slice) -> RowWeights:
        """Return the weights of some of the rows."""
        return RowWeights(self.fitted[rows], None if self.held_out is None else self.held_out[rows])

    def judged(self, values: np.ndarray) -> np.ndarray:
        """Return Σ s and Σ s·v over the rows that are held out of each machine, shape (2, k)."""
        if self.held_out is None:
            return np.zeros((2, values.shape[1]))
        return np.stack([self.held_out.sum(axis=0), weighted_sum(self.held_out, values)])


def weighted_sum(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return Σ over rows of the product, for each machine."""
    return np.einsum("ij,ij->j", weights, values)
