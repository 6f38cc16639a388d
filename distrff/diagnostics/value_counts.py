"""The distinct values of a column and their rows, as long as they are few."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

MOST_VALUES = 64


@dataclass(frozen=True)
class ValueCounts:
    """Sorted values and their rows; of more than 64 values none are kept.

    Parameters
    ----------
    values : ndarray of shape (m,)
    counts : int64 ndarray of shape (m,)
    is_complete : bool
        False once there were too many, or values that cannot be sorted together.
    """

    values: np.ndarray
    counts: np.ndarray
    is_complete: bool = True

    @classmethod
    def empty(cls, is_complete: bool = True) -> ValueCounts:
        """Return the counts of no rows, or of too many values."""
        return cls(np.empty(0, np.int8), np.empty(0, np.int64), is_complete)

    @classmethod
    def of(cls, values: np.ndarray) -> ValueCounts:
        """Return the counts of some rows."""
        return cls._added(values, np.ones(len(values), np.int64))

    @classmethod
    def _added(cls, values: np.ndarray, counts: np.ndarray) -> ValueCounts:
        try:
            distinct, index = np.unique(values, return_inverse=True)
        except TypeError:
            return cls.empty(is_complete=False)
        if len(distinct) > MOST_VALUES:
            return cls.empty(is_complete=False)
        added = np.zeros(len(distinct), np.int64)
        np.add.at(added, index.reshape(-1), counts)
        return cls(distinct, added)

    def merge(self, other: ValueCounts) -> ValueCounts:
        """Return the counts of both sets of rows."""
        if not (self.is_complete and other.is_complete):
            return ValueCounts.empty(is_complete=False)
        if not len(self.values) or not len(other.values):
            return self if len(self.values) else other
        both = np.concatenate([self.values, other.values])
        return self._added(both, np.concatenate([self.counts, other.counts]))
