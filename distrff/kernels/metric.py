"""The matrix of a metric as a value: immutable, comparable, hashable."""

from __future__ import annotations

import math
from reprlib import repr as short
from typing import Any

import numpy as np

from distrff.errors import InputError
from distrff.utils.validation import finite_rows

LEARNED = "learned"
"""The metric that a fit finds."""


class MetricFactor:
    """P of shape (r, d), which makes ‖P(x − x')‖ the distance of rows x and x' of d columns.

    `np.asarray` returns P itself, float64 and read-only. Two are equal if all numbers are.

    Parameters
    ----------
    P : array-like of shape (r, d)

    Raises
    ------
    InputError
        If P is no finite real matrix, is empty or all zeros, or if its squares overflow or vanish.
    """

    def __init__(self, P: Any) -> None:
        P = np.array(finite_rows(P, "metric"), order="C") + 0.0  # without −0.0, whose bytes differ from 0.0
        if not P.any():
            raise InputError(
                f"metric must be a matrix that is not all zeros, got one of shape {P.shape}; "
                f"give a row for each direction that matters"
            )
        with np.errstate(over="ignore", under="ignore"):
            square = float(np.square(P).sum())
        if not 0 < square < math.inf:
            raise InputError(
                f"metric must have squares that neither overflow nor vanish in float64, got a largest number "
                f"of {np.abs(P).max():.3g}; divide it and the kernel's length scale by the same number"
            )
        P.setflags(write=False)
        self._P = P

    @property
    def shape(self) -> tuple[int, int]:
        """(r, d)."""
        r, d = self._P.shape
        return r, d

    def tolist(self) -> list[list[float]]:
        """Return P as lists of its rows."""
        rows: list[list[float]] = self._P.tolist()
        return rows

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._P, dtype=dtype) if copy else np.asarray(self._P, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return np.array_equal(self._P, other._P) if isinstance(other, MetricFactor) else NotImplemented

    def __hash__(self) -> int:
        return hash((self._P.shape, self._P.tobytes()))

    def __reduce__(self) -> tuple[type[MetricFactor], tuple[np.ndarray]]:
        return type(self), (self._P,)

    def __repr__(self) -> str:
        r, d = self.shape
        return f"ndarray[{r}, {d}]"


def checked_metric(value: Any) -> MetricFactor | str | None:
    """Return the value as a `MetricFactor`, "learned" or None; raise InputError if it is none of these."""
    if value is None or isinstance(value, MetricFactor):
        return value
    if isinstance(value, str):
        if value == LEARNED:
            return value
        raise InputError(f'metric must be None, "learned" or a matrix of shape (r, d), got {short(value)}')
    return MetricFactor(value)
