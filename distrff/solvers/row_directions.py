"""Orthonormal directions among many features, as combinations of few sparse rows.

V = ZᵀB for m rows Z of P entries each and B of shape (m, q): m·P + m·q numbers in place of D·q, and products
that cost as little. Eigenvectors of the rows' own covariance are of this form (Ma and Belkin 2019, "Kernel
machines that adapt to GPUs for effective large batch training", keep those of a kernel so).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix


@dataclass(frozen=True, eq=False)
class RowDirections:
    """V = ZᵀB.

    Attributes
    ----------
    Z : scipy CSR matrix of shape (m, D)
    B : ndarray of shape (m, q)
    """

    Z: Any
    B: np.ndarray

    @property
    def row_entries(self) -> int:
        """Entries of a row, in the mean."""
        return -(-self.Z.nnz // self.Z.shape[0])

    def along(self, X: np.ndarray) -> np.ndarray:
        """Return VᵀX: (D, k) → (q, k)."""
        return self.B.T @ (self.Z @ X)

    def combined(self, shares: np.ndarray) -> np.ndarray:
        """Return V times the shares: (q, k) → (D, k)."""
        return self.Z.T @ (self.B @ shares)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what `from_arrays` needs."""
        return {"indptr": self.Z.indptr, "indices": self.Z.indices, "data": self.Z.data, "B": self.B}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray], n_features: int) -> RowDirections:
        """Return the directions that `arrays` were taken of."""
        indptr, indices, data, B = (
            np.require(arrays[name], requirements="A") for name in ("indptr", "indices", "data", "B")
        )
        return cls(csr_matrix((data, indices, indptr), shape=(len(B), n_features), copy=False), B)
