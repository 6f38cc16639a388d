"""Sorted scores with the weights of both classes at each: exact areas under ROC curves, ties included."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distrff.columns.row_matrices import as_columns
from distrff.errors import InputError
from distrff.scores.labels import one_column, positions


@dataclass(frozen=True)
class RankedScores:
    """Distinct scores, and how much weight of each class has them.

    Parameters
    ----------
    scores : ndarray of shape (m,)
        Ascending.
    weights : ndarray of shape (m, 2)
        Of the other rows, and of those of the positive class.
    """

    scores: np.ndarray
    weights: np.ndarray

    @classmethod
    def of_rows(cls, scores: np.ndarray, weights: np.ndarray) -> RankedScores:
        """Return the same with the weights of equal scores added up."""
        order = np.argsort(scores, kind="stable")  # two sorted runs are merged in one pass
        ascending = scores[order]
        is_first = np.ones(len(scores), dtype=bool)
        is_first[1:] = ascending[1:] != ascending[:-1]
        if is_first.all():
            return cls(ascending, weights[order])
        starts = np.flatnonzero(is_first)
        return cls(ascending[starts], np.add.reduceat(weights[order], starts))

    def merge(self, other: RankedScores) -> RankedScores:
        """Return the scores of both sets of rows."""
        return RankedScores.of_rows(
            np.concatenate([self.scores, other.scores]), np.concatenate([self.weights, other.weights])
        )

    @property
    def class_weights(self) -> np.ndarray:
        """The weights of the other rows and of the positive ones, shape (2,)."""
        return self.weights.sum(axis=0)

    def area(self) -> float:
        """Return the area under the ROC curve: P(score of a positive > that of another) + ½P(equal).

        Hanley and McNeil 1982, "The meaning and use of the area under a ROC curve".
        """
        negative, positive = self.weights.T
        below = np.cumsum(negative) - negative / 2
        return float(positive @ below / (negative.sum() * positive.sum()))


@dataclass(frozen=True)
class ColumnRanks:
    """`RankedScores` of each column of scores."""

    columns: tuple[RankedScores, ...]

    def merge(self, other: ColumnRanks) -> ColumnRanks:
        """Return the ranks of both sets of rows."""
        pairs = zip(self.columns, other.columns, strict=True)
        return ColumnRanks(tuple(mine.merge(its) for mine, its in pairs))


@dataclass(frozen=True)
class RankStatistic:
    """Statistic of `ColumnRanks`: one column ranks the second of two labels, several rank each its own.

    Memory is 24 bytes for each distinct score of each column.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted.
    n_columns : int
        1 or k.
    """

    labels: np.ndarray = field(compare=False)
    n_columns: int

    def zero(self) -> ColumnRanks:
        none = RankedScores(np.empty(0), np.empty((0, 2)))
        return ColumnRanks((none,) * self.n_columns)

    def of(
        self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int
    ) -> ColumnRanks:
        S = as_columns(y_pred)
        index = positions(one_column("y_true", y_true), self.labels)
        if (index < 0).any():
            raise InputError("y_true has labels that are not in labels=…; name all of them")
        ranked = [1] if self.n_columns == 1 else range(self.n_columns)
        return ColumnRanks(
            tuple(
                RankedScores.of_rows(S[:, j].astype(np.float64), _by_class(index == label, sample_weight))
                for j, label in enumerate(ranked)
            )
        )

    def size_bytes(self, n_rows: int) -> int:
        return 24 * n_rows * self.n_columns


def _by_class(is_positive: np.ndarray, sample_weight: np.ndarray) -> np.ndarray:
    return np.stack([np.where(is_positive, 0.0, sample_weight), np.where(is_positive, sample_weight, 0.0)], 1)
