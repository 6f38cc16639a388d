"""Sums over pairs of rows, one a column, that gradients by the columns' widths are made of."""

from __future__ import annotations

import numpy as np

from distrff.compiled import compiled


def square_sums(U: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return Σ_{ii'} B_{ii'}·(u_ij − u_i'j)² of every column j, for symmetric B, by a product of matrices."""
    U = U - U.mean(axis=0)  # differences of squares then lose no digits to a common offset
    return 2.0 * (B.sum(axis=1) @ np.square(U) - np.einsum("ij,ij->j", U, B @ U))


def absolute_sums(U: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return Σ_{ii'} B_{ii'}·|u_ij − u_i'j| of every column j, for symmetric B."""
    sums = np.zeros(U.shape[1])
    _add_absolute(np.ascontiguousarray(U), B, sums)
    return 2.0 * sums


def rational_sums(U: np.ndarray, B: np.ndarray) -> np.ndarray:
    """Return Σ_{ii'} B_{ii'}·2v²/(1 + v²) with v = u_ij − u_i'j, of every column j, for symmetric B."""
    sums = np.zeros(U.shape[1])
    _add_rational(np.ascontiguousarray(U), B, sums)
    return 2.0 * sums


@compiled()
def _add_absolute(U, B, sums):
    for i in range(U.shape[0]):
        for k in range(i):
            b = B[i, k]
            for j in range(U.shape[1]):
                sums[j] += b * abs(U[i, j] - U[k, j])


@compiled()
def _add_rational(U, B, sums):
    for i in range(U.shape[0]):
        for k in range(i):
            b = 2.0 * B[i, k]
            for j in range(U.shape[1]):
                v = U[i, j] - U[k, j]
                sums[j] += b * (1.0 - 1.0 / (1.0 + v * v))
