"""Squared errors beside the spread of the targets, from which mean squared error and r² follow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.columns.moments import Moments
from distrff.columns.row_matrices import as_columns
from distrff.errors import InputError


@dataclass(frozen=True)
class SquaredErrors:
    """Sums over rows, target by target.

    Parameters
    ----------
    n_rows : int
    squared_error : ndarray of shape (k,)
        Σ s (ŷ − y)².
    targets : Moments
        Of y.
    """

    n_rows: int
    squared_error: np.ndarray
    targets: Moments

    def merge(self, other: SquaredErrors) -> SquaredErrors:
        """Return the sums of both sets of rows."""
        return SquaredErrors(
            self.n_rows + other.n_rows,
            self.squared_error + other.squared_error,
            self.targets.merge(other.targets),
        )


@dataclass(frozen=True)
class SquaredErrorStatistic:
    """Statistic of `SquaredErrors` of so many targets."""

    n_targets: int

    def zero(self) -> SquaredErrors:
        return SquaredErrors(0, np.zeros(self.n_targets), Moments.empty(self.n_targets))

    def of(
        self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int
    ) -> SquaredErrors:
        Y, P = (_numbers(name, A) for name, A in (("y_true", y_true), ("y_pred", y_pred)))
        s = np.ascontiguousarray(sample_weight)
        return SquaredErrors(len(Y), s @ np.square(P - Y), Moments.of(Y, s))

    def size_bytes(self, n_rows: int) -> int:
        return 8 * 3 * self.n_targets


def r2_scores(squared_error: np.ndarray, targets: Moments) -> np.ndarray:
    """Return 1 − Σs(ŷ − y)²/Σs(y − ȳ)² of each target; of a constant one, 1 without error and else 0."""
    total = np.where(targets.has_one_value(), 0.0, targets.deviations)
    with np.errstate(divide="ignore", invalid="ignore"):
        r2 = 1.0 - squared_error / total
    return np.where(total > 0, r2, np.where(squared_error > 0, 0.0, 1.0))


def _numbers(name: str, values: np.ndarray) -> np.ndarray:
    try:
        return as_columns(np.ascontiguousarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers ({error}); of labels take accuracy_score") from error
