"""What a score is made of: a value of some rows, and how values of two sets of rows are merged."""

from __future__ import annotations

from typing import Any, Protocol, Self

import numpy as np


class Summed(Protocol):
    """The value of some rows."""

    def merge(self, other: Self) -> Self:
        """Return the value of both sets of rows; neither is changed."""


class Statistic(Protocol):
    """A monoid over rows of truth, prediction and weight; picklable."""

    def zero(self) -> Any:
        """Return the value of no rows."""

    def of(self, y_true: np.ndarray, y_pred: np.ndarray, sample_weight: np.ndarray, start: int) -> Any:
        """Return the value of one block, whose first row has the number `start`."""

    def size_bytes(self, n_rows: int) -> int:
        """Return the bytes of the value of that many rows, at most."""
