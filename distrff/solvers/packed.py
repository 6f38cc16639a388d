"""Symmetric matrices as lower triangles: half the memory while they wait, half the bytes when they move."""

from __future__ import annotations

import numpy as np


def packed_length(size: int) -> int:
    """Return the entries of the lower triangle of a matrix of `size` rows."""
    return size * (size + 1) // 2


def pack(A: np.ndarray) -> np.ndarray:
    """Return the lower triangles, row by row: (m, p, p) → (m, p(p + 1)/2)."""
    m, p, _ = A.shape
    packed = np.empty((m, packed_length(p)), A.dtype)
    for row in range(p):
        start = packed_length(row)
        packed[:, start : start + row + 1] = A[:, row, : row + 1]
    return packed


def unpack(packed: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix of one packed triangle: (p(p + 1)/2,) → (p, p)."""
    p = int((np.sqrt(8 * len(packed) + 1) - 1) // 2)
    A = np.empty((p, p), packed.dtype)
    for row in range(p):
        start = packed_length(row)
        A[row, : row + 1] = packed[start : start + row + 1]
        A[:row, row] = A[row, :row]
    return A
