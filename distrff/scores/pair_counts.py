"""How often each label is predicted for each true one: confusion matrices and accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.scores.labels import one_column, positions, sorted_labels


@dataclass(frozen=True)
class PairCounts:
    """Weights of the pairs of a true and a predicted label that occur.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted: all that are true or predicted.
    pairs : int64 ndarray of shape (m, 2)
        Positions of the true and the predicted label, in lexicographic order.
    weights : ndarray of shape (m,)
    """

    labels: np.ndarray
    pairs: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_pairs(cls, labels: np.ndarray, pairs: np.ndarray, weights: np.ndarray) -> PairCounts:
        """Return the counts with the weights of equal pairs added up."""
        k = len(labels)
        codes, index = np.unique(pairs[:, 0] * k + pairs[:, 1], return_inverse=True)
        distinct = np.stack(np.divmod(codes, max(k, 1)), axis=1)
        return cls(labels, distinct, np.bincount(index, weights, len(codes)))

    def merge(self, other: PairCounts) -> PairCounts:
        """Return the counts of both sets of rows."""
        if not len(self.labels) or not len(other.labels):
            return self if len(self.labels) else other
        labels, (mine, its) = sorted_labels(self.labels, other.labels)
        pairs = np.concatenate([mine[self.pairs], its[other.pairs]])
        return PairCounts.of_pairs(labels, pairs, np.concatenate([self.weights, other.weights]))

    def matrix(self, labels: np.ndarray) -> np.ndarray:
        """Return the weights as a matrix over `labels`, (len(labels), len(labels)); other pairs are left out.

        Rows are true labels.
        """
        order = np.argsort(labels, kind="stable")
        found = positions(self.labels, labels[order])
        index = np.where(found < 0, -1, order[found])[self.pairs]
        known = (index >= 0).all(axis=1)
        C = np.zeros((len(labels), len(labels)))
        C[tuple(index[known].T)] = self.weights[known]
        return C

    @property
    def agreeing(self) -> float:
        """The weight of rows whose label is predicted."""
        return float(self.weights[self.pairs[:, 0] == self.pairs[:, 1]].sum())


@dataclass(frozen=True)
class PairCountStatistic:
    """Statistic of `PairCounts`."""

    def zero(self) -> PairCounts:
        return PairCounts(np.empty(0, np.int8), np.empty((0, 2), np.int64), np.empty(0))

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> PairCounts:
        labels, pair = sorted_labels(one_column("y_true", y_true), one_column("y_pred", y_pred))
        return PairCounts.of_pairs(labels, np.stack(pair, axis=1), sample_weight)

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 4 * n_rows
