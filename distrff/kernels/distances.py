"""Squared distances by one matrix product, where that loses no digits."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import cdist

# An entry of ‖x‖² + ‖y‖² − 2xᵀy is off by about 2⁻⁵³ times what is added, which for close rows is
# 4‖y‖²: by 2⁻⁴⁰ at most within this bound, a relative error of the kernel of 1e-12.
_LARGEST_SQUARE = 2.0**11


def squared_distances(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Return ‖x − y‖² for the rows x of X and y of Y.

    The origin is moved to the mean of Y. A row x far from all of Y loses nothing that matters: its
    error is relative to its own large distances.

    Parameters
    ----------
    X : ndarray of shape (n, d), float64
    Y : ndarray of shape (m, d), float64

    Returns
    -------
    ndarray of shape (n, m), float64, not negative

    Notes
    -----
    2·n·m·d flops of a matrix product; by differences of coordinates, as exact as these, where a row of
    Y is more than 45 from the mean.
    """
    origin = Y.mean(axis=0)
    V = Y - origin
    squares = np.einsum("ij,ij->i", V, V)
    if not squares.max(initial=0.0) <= _LARGEST_SQUARE:
        with np.errstate(over="ignore"):
            return cdist(X, Y, "sqeuclidean")
    U = X - origin
    with np.errstate(over="ignore"):
        own = np.einsum("ij,ij->i", U, U)
        D = np.matmul(U, V.T)
        D *= -2.0
        D += own[:, None]
    D += squares
    return np.maximum(D, 0.0, out=D)
