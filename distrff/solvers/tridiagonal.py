"""Ridge for a whole path of alphas from one orthogonal reduction, G = Q T Qᵀ with T tridiagonal."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigvalsh_tridiagonal
from scipy.linalg.lapack import dormqr, dptsv, dsytrd, dsytrd_lwork


class TridiagonalRidge:
    """Solutions of (G + alpha·I) w = B for many alphas.

    w = Q (T + alpha·I)⁻¹ QᵀB: the reduction costs 4/3·D³ flops once, then each alpha a
    tridiagonal solve of O(D·k) and its share, 2·D²·k, of one product with Q. An eigendecomposition gives the
    same at about three times the price, since T's eigenvectors are never needed.

    Parameters
    ----------
    G : ndarray of shape (D, D)
        Symmetric positive semidefinite, float64.
    overwrite_G : bool
        Reduce in the memory of G (if it is in Fortran order); G is then lost.

    Notes
    -----
    One D × D array is kept: the Householder vectors of Q, in place of G (or of its copy). `solve` adds two
    arrays of shape (D, m·k).

    References
    ----------
    Golub and Van Loan, Matrix Computations, 4th ed., section 8.3.1; LAPACK routines dsytrd, dormqr, dptsv.
    """

    def __init__(self, G: np.ndarray, *, overwrite_G: bool = False) -> None:
        D = G.shape[0]
        reflectors = np.asarray(G, order="F") if overwrite_G else np.array(G, order="F")
        lwork = int(dsytrd_lwork(D, lower=1)[0])
        reflectors, self._diagonal, off, self._tau, _ = dsytrd(
            reflectors, lower=1, lwork=lwork, overwrite_a=1
        )
        # LAPACK's wrappers want one element even where there is no off-diagonal (D = 1).
        self._off_diagonal = off if D > 1 else np.zeros(1)
        # Householder vector j lives below the diagonal of column j, on rows j + 1 .. D - 1. Reading the
        # same memory one element later gives a contiguous D × (D - 1) matrix in which it starts on the
        # diagonal, as dormqr wants it, followed by one element of row 0 of the old matrix: with that row
        # zeroed, Q acts on the rolled vector (x_1, ..., x_{D-1}, x_0) and leaves x_0 alone. No copy.
        reflectors[0, 1:] = 0
        flat = reflectors.reshape(-1, order="F")
        self._reflectors = flat[1 : 1 + D * (D - 1)].reshape((D, D - 1), order="F")

    def _apply_Q(self, C: np.ndarray, transpose: str) -> np.ndarray:
        """Return Q C ("N") or Qᵀ C ("T"), both (D, n) in rolled rows; C is overwritten."""
        if C.shape[0] == 1:
            return C
        lwork = int(dormqr("L", transpose, self._reflectors, self._tau, C, -1, overwrite_c=1)[1][0])
        return dormqr("L", transpose, self._reflectors, self._tau, C, lwork, overwrite_c=1)[0]

    def solve(self, B: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """Return w for every alpha and target.

        Parameters
        ----------
        B : ndarray of shape (D, k)
        alphas : ndarray of shape (m,)

        Returns
        -------
        ndarray of shape (m, D, k)
            NaN for an alpha at which T + alpha·I is not positive definite: rounding in G has
            made an eigenvalue smaller than −alpha, and no solution there means anything.
        """
        D, k = B.shape
        rotated = np.roll(self._apply_Q(np.asfortranarray(np.roll(B, -1, axis=0)), "T"), 1, axis=0)
        X = np.zeros((D, len(alphas) * k), order="F")
        failed = np.zeros(len(alphas), dtype=bool)
        for i, alpha in enumerate(alphas):
            _, _, x, info = dptsv(self._diagonal + alpha, self._off_diagonal, rotated)
            failed[i] = info > 0
            if not failed[i]:
                X[:-1, i * k : (i + 1) * k] = x[1:]
                X[-1, i * k : (i + 1) * k] = x[0]
        W = np.roll(self._apply_Q(X, "N").T.reshape(len(alphas), k, D), 1, axis=2)
        W[failed] = np.nan
        return W.transpose(0, 2, 1)

    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues of G, ascending, shape (D,); O(D²) flops."""
        return eigvalsh_tridiagonal(self._diagonal, self._off_diagonal[: len(self._diagonal) - 1])

    def effective_dimension(self, alphas: np.ndarray, rank: int | None = None) -> np.ndarray:
        """Return tr G (G + alpha·I)⁻¹ = Σ λ/(λ + alpha) for each alpha, shape (m,).

        Only the `rank` largest eigenvalues count where G can have no more: the others are
        rounding, of both signs. Those below zero count as zero.
        """
        spectrum = np.maximum(self.eigenvalues(), 0)[::-1][:rank]
        return np.array([np.sum(spectrum / (spectrum + alpha)) for alpha in alphas])
