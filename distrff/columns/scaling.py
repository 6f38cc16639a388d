"""The shift and scale of columns that a machine carries with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import issparse

from distrff.columns.moments import Moments
from distrff.columns.row_matrices import dense_rows


@dataclass(frozen=True)
class Scaling:
    """x ↦ (x − shift) / scale, column by column.

    Parameters
    ----------
    shift, scale : ndarray of shape (n_columns,), float64, or None
        Both None for the identity.
    """

    shift: np.ndarray | None = None
    scale: np.ndarray | None = None

    @classmethod
    def standard(cls, moments: Moments) -> Scaling:
        """Return the scaling to mean 0 and deviation 1; constant columns are divided by 1."""
        return cls(moments.mean, np.where(moments.is_constant(), 1.0, moments.standard_deviation()))

    def apply(self, X: Any, dtype: np.dtype) -> Any:
        """Return the scaled rows in `dtype`, C-contiguous; CSR as CSR, unless there is something to subtract.

        Entries of CSR are in the order of columns, in which products add them up.
        Shift and scale act in float64, before the cast, so that a large common offset
        costs no digits of a float32 machine.
        """
        # What is too large becomes inf, which every sweep refuses with the column's name or the dtype to use.
        with np.errstate(over="ignore"):
            if self.shift is None or self.scale is None:
                if issparse(X):
                    X = X.astype(dtype, copy=False)
                    return X if X.has_sorted_indices else X.sorted_indices()
                return np.ascontiguousarray(X, dtype=dtype)
            shifted = np.subtract(dense_rows(X), self.shift, dtype=np.float64)
            shifted /= self.scale
            return np.ascontiguousarray(shifted, dtype=dtype)

    def equals(self, other: Scaling) -> bool:
        """Return True if both scale every column alike, to the last bit."""
        mine, its = self.arrays(), other.arrays()
        return mine.keys() == its.keys() and all(np.array_equal(mine[name], its[name]) for name in mine)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays that a stored machine keeps."""
        if self.shift is None or self.scale is None:
            return {}
        return {"column_shift": self.shift, "column_scale": self.scale}
