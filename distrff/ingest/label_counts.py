"""Which class labels there are, how many rows and how much weight each has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError

_MAX_LABELS = 10_000


@dataclass(frozen=True)
class LabelCounts:
    """Sorted labels with their rows and weights.

    Parameters
    ----------
    labels : ndarray of shape (n_classes,)
    counts : ndarray of shape (n_classes,), int64
    weights : ndarray of shape (n_classes,), float64
    """

    labels: np.ndarray
    counts: np.ndarray
    weights: np.ndarray

    @classmethod
    def empty(cls) -> LabelCounts:
        """Return the counts of no rows."""
        return cls(np.empty(0, dtype=np.int8), np.empty(0, dtype=np.int64), np.empty(0))

    @classmethod
    def of(cls, y: np.ndarray, sample_weight: np.ndarray | None) -> LabelCounts:
        """Return the counts of one block.

        Raises
        ------
        InputError
            If labels are fractions, of types that cannot be sorted together, too many to be
            classes, or more than one a row.
        """
        y = _one_column(y)
        if y.dtype.kind == "f" and (y != np.floor(y)).any():
            value = y[y != np.floor(y)][0]
            raise InputError(
                f"Unknown label type: continuous (y has the value {value:g}); "
                f"a classifier needs classes, use KernelRidge for numbers"
            )
        labels, index = _sorted_labels(y)
        weights = np.bincount(index, sample_weight, minlength=len(labels)).astype(np.float64)
        return cls(labels, np.bincount(index, minlength=len(labels)), weights)._checked()

    def merge(self, other: LabelCounts) -> LabelCounts:
        """Return the counts of both."""
        if not len(self.labels) or not len(other.labels):
            return self if len(self.labels) else other
        labels, index = _sorted_labels(np.concatenate([self.labels, other.labels]))
        counts = np.zeros(len(labels), dtype=np.int64)
        np.add.at(counts, index, np.concatenate([self.counts, other.counts]))
        weights = np.bincount(index, np.concatenate([self.weights, other.weights]), minlength=len(labels))
        return LabelCounts(labels, counts, weights)._checked()

    def _checked(self) -> LabelCounts:
        if len(self.labels) > _MAX_LABELS:
            raise InputError(
                f"y has more than {_MAX_LABELS} different values, too many for classes; "
                f"use KernelRidge if they are numbers"
            )
        return self


def _one_column(y: np.ndarray) -> np.ndarray:
    if y.size != len(y):
        raise InputError(f"y must be one column of class labels, got shape {y.shape}")
    return y.ravel()


def _sorted_labels(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        return np.unique(y, return_inverse=True)
    except TypeError as error:
        raise InputError(f"y mixes labels that cannot be sorted together ({error}); use one type") from error
