"""How far the columns of all rows reach: what a sample in which a column is constant cannot tell."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Extent:
    """Least and largest value of each column over rows of positive weight; of no rows +∞ and −∞."""

    least: np.ndarray
    largest: np.ndarray

    @property
    def width(self) -> np.ndarray:
        """largest − least, at most 0 for a column of one value."""
        return self.largest - self.least

    @property
    def magnitude(self) -> np.ndarray:
        """The largest absolute value."""
        return np.maximum(np.abs(self.least), np.abs(self.largest))


@dataclass(frozen=True)
class ColumnRange:
    """The question of the columns' extents.

    Parameters
    ----------
    n_columns : int
    """

    n_columns: int
    label = "column ranges"

    def zero(self) -> Extent:
        return Extent(np.full(self.n_columns, np.inf), np.full(self.n_columns, -np.inf))

    def update(self, answer: Extent, start: int, X: np.ndarray, sample_weight: np.ndarray | None) -> Extent:
        rows = X if sample_weight is None else X[np.asarray(sample_weight) > 0]
        if not len(rows):
            return answer
        return self.merge(
            answer, Extent(rows.min(axis=0).astype(np.float64), rows.max(axis=0).astype(np.float64))
        )

    def merge(self, first: Extent, second: Extent) -> Extent:
        return Extent(np.minimum(first.least, second.least), np.maximum(first.largest, second.largest))

    def size_bytes(self, n_rows: int) -> int:
        return 16 * self.n_columns
