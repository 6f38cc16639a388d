"""The weighted sum of −log of the probability that was given to the true class."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from distrff.columns.row_matrices import as_columns
from distrff.errors import InputError
from distrff.scores.labels import one_column, positions


@dataclass(frozen=True)
class LogLosses:
    """Σ s·(−log p), Σ s, and how many rows have probabilities that do not sum to one."""

    loss: float = 0.0
    weight: float = 0.0
    n_not_one: int = 0

    def merge(self, other: LogLosses) -> LogLosses:
        """Return the sums of both sets of rows."""
        return LogLosses(self.loss + other.loss, self.weight + other.weight, self.n_not_one + other.n_not_one)


@dataclass(frozen=True)
class LogLossStatistic:
    """Statistic of `LogLosses`; probabilities of one column are those of the second of two labels.

    Parameters
    ----------
    labels : ndarray of shape (k,)
        Sorted.
    """

    labels: np.ndarray = field(compare=False)

    def zero(self) -> LogLosses:
        return LogLosses()

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> LogLosses:
        P = as_columns(y_pred)
        P = P if P.dtype == np.float32 else P.astype(np.float64, copy=False)
        _check_probabilities(P, start)
        if P.shape[1] == 1:
            P = np.concatenate([1 - P, P], axis=1)
        eps = np.finfo(P.dtype).eps
        not_one = np.abs(P.sum(axis=1) - 1) > np.sqrt(eps)
        index = _known_positions(one_column("y_true", y_true), self.labels, start)
        given = np.clip(P[np.arange(len(P)), index], eps, 1 - eps).astype(np.float64)
        return LogLosses(
            float(sample_weight @ -np.log(given)), float(sample_weight.sum()), int(not_one.sum())
        )

    def size_bytes(self, n_rows: int) -> int:
        return 24


def _check_probabilities(P: np.ndarray, start: int) -> None:
    outside = (P < 0) | (P > 1)
    if outside.any():
        row, column = np.argwhere(outside)[0]
        raise InputError(
            f"y_proba has {P[row, column]:g} in row {start + row}, column {column}, which is no probability; "
            f"pass what predict_proba returns"
        )


def _known_positions(y: np.ndarray, labels: np.ndarray, start: int) -> np.ndarray:
    index = positions(y, labels)
    if (index < 0).any():
        row = int(np.flatnonzero(index < 0)[0])
        raise InputError(
            f"y_true has the label {y[row : row + 1].tolist()[0]!r} in row {start + row}, which is none of "
            f"the labels; name all of them in labels=…"
        )
    return index
