"""Ridge for a whole path of alphas from one orthogonal reduction, G = Q T Qᵀ with T a band or tridiagonal."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from scipy.linalg import eig_banded, eigvalsh_tridiagonal
from scipy.linalg.lapack import dpbsv, dptsv

from distrff.utils.linalg import (
    factor_columns,
    reflect,
    subtract_symmetric,
    symmetric_product,
    triangle_of_reflections,
    tridiagonal,
)

# Wide enough for products of panels to run at full speed; a solution in the band costs the square of it.
_BAND_WIDTH = 64
# In caches products with vectors are not bound by memory, and nothing is left of a panel's advantage: for
# 256, 512, 768, 1024, 1536 and 2048 columns the path of 25 alphas takes 3, 13, 34, 97, 309 and 930 ms from a
# tridiagonal T on one core without AVX-512, and 7, 20, 44, 110, 294 and 550 ms from a band. With it the band
# is behind at 1024 columns and ahead at 1536, and 8192 take 48 s and 20 s.
_LEAST, _FEW_FEATURES = 3, 2**10


def path_ridge(G: np.ndarray) -> PathRidge:
    """Return the solutions for all alphas, by the faster reduction; G may be reduced in its own memory."""
    if _LEAST <= len(G) <= _FEW_FEATURES:
        return TridiagonalRidge(G, overwrite_G=True)
    return BandRidge(G, overwrite_G=True)


class PathRidge(ABC):
    """Solutions of (G + alpha·I) w = B for many alphas: w = Q (T + alpha·I)⁻¹ QᵀB."""

    def solve(self, B: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """Return w of shape (m, D, k) for m alphas and the k targets of B, (D, k).

        NaN for an alpha at which T + alpha·I is not positive definite: rounding in G has made an eigenvalue
        smaller than −alpha, and a solution there would be meaningless.
        """
        D, k = B.shape
        rotated = np.array(B, order="F")
        self._apply_transposed_Q(rotated)
        X = np.zeros((D, len(alphas) * k), order="F")
        failed = np.zeros(len(alphas), dtype=bool)
        for i, alpha in enumerate(alphas):
            x, failed[i] = self._solve_T(alpha, rotated)
            if not failed[i]:
                X[:, i * k : (i + 1) * k] = x
        self._apply_Q(X)
        W = X.T.reshape(len(alphas), k, D)
        W[failed] = np.nan
        return W.transpose(0, 2, 1)

    def effective_dimension(self, alphas: np.ndarray, rank: int | None = None) -> np.ndarray:
        """Return tr G (G + alpha·I)⁻¹ = Σ λ/(λ + alpha) for each alpha, shape (m,).

        Only the `rank` largest eigenvalues count where G can have no more: the others are
        rounding, of both signs. Those below zero count as zero.
        """
        spectrum = np.maximum(self.eigenvalues(), 0)[::-1][:rank]
        return np.array([np.sum(spectrum / (spectrum + alpha)) for alpha in alphas])

    @abstractmethod
    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues of G, ascending, shape (D,)."""

    @abstractmethod
    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        """Return (T + alpha·I)⁻¹B, and whether T + alpha·I is not positive definite."""

    @abstractmethod
    def _apply_Q(self, C: np.ndarray) -> None:
        """Turn C, in Fortran order, into Q C."""

    @abstractmethod
    def _apply_transposed_Q(self, C: np.ndarray) -> None:
        """Turn C, in Fortran order, into Qᵀ C."""


class TridiagonalRidge(PathRidge):
    """A `PathRidge` by a tridiagonal T: for few features, at least 3.

    The reduction costs 4/3·D³ flops once, each alpha then O(D·k), and 2·D²·k for the product with Q. It takes
    the arguments of `BandRidge`.

    References
    ----------
    Golub and Van Loan, Matrix Computations, 4th ed., section 8.3.1; LAPACK routines dsytrd, dormqr, dptsv.
    """

    def __init__(self, G: np.ndarray, *, overwrite_G: bool = False) -> None:
        self._reduced, self._diagonal, self._beside, self._tau = tridiagonal(G, overwrite=overwrite_G)

    def eigenvalues(self) -> np.ndarray:
        return eigvalsh_tridiagonal(self._diagonal, self._beside, check_finite=False)

    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        _, _, x, info = dptsv(self._diagonal + alpha, self._beside, B)
        return x, info > 0

    def _apply_Q(self, C: np.ndarray) -> None:
        self._multiply(C, transposed=False)

    def _apply_transposed_Q(self, C: np.ndarray) -> None:
        self._multiply(C, transposed=True)

    def _multiply(self, C: np.ndarray, *, transposed: bool) -> None:
        reflect(self._reduced, self._tau, C, transposed=transposed)


class BandRidge(PathRidge):
    """Solutions of (G + alpha·I) w = B for many alphas.

    w = Q (T + alpha·I)⁻¹ QᵀB, T of half bandwidth b = 64. The reduction costs 4/3·D³ flops once; each alpha
    then costs a banded Cholesky solution of D·b² + 4·D·b·k flops, and 2·D²·k for the product with Q. An
    eigendecomposition costs several times as much, for eigenvectors of T that are not needed. A tridiagonal T
    is slower too: half of the flops of that reduction are products of a matrix with a vector, which are
    bound by memory where D is large; see `path_ridge`.

    Parameters
    ----------
    G : ndarray of shape (D, D)
        Symmetric positive semidefinite, float64.
    overwrite_G : bool
        Reduce in the memory of G (if it is in Fortran order); G is then lost.

    Notes
    -----
    One D × D array is kept: the Householder vectors of Q below the band, in place of G (or of its copy).
    The reduction also takes some arrays of shape (D, b), `solve` two of (D, m·k).

    References
    ----------
    Bischof, Lang and Sun (2000), "A framework for symmetric band reduction", ACM Trans. Math. Softw. 26(4);
    Golub and Van Loan, Matrix Computations, 4th ed., sections 5.1.7 and 8.3.1; LAPACK routines dgeqrf,
    dlarft, dpbsv.
    """

    def __init__(self, G: np.ndarray, *, overwrite_G: bool = False) -> None:
        self._reduced = np.asarray(G, order="F") if overwrite_G else np.array(G, order="F")
        D = len(self._reduced)
        self._width = min(_BAND_WIDTH, D - 1)
        self._band = np.zeros((self._width + 1, D), order="F")
        # A single row below a block lies within the band: no panel starts there.
        starts = range(0, D - self._width - 1, max(1, self._width))
        self._reflections = [self._reduce_panel(start) for start in starts]
        self._keep_band(len(starts) * self._width, D)

    def _reduce_panel(self, start: int) -> tuple[int, np.ndarray, np.ndarray]:
        """Apply to both sides of G the reflections that make a band of these columns; return their V and U.

        Their product is I − V U Vᵀ, of the rows below the band; the first of them is returned too. It turns
        the block A behind the panel into A − V Wᵀ − W Vᵀ, with W = Y − V Uᵀ VᵀY / 2 and Y = A V U.

        V stays in the memory of its panel, with its ones and zeros in place of the band: products read it
        there, column by column. Copies of it took .05 of .56 s for 2048 columns, and 5 of 33 s for 8192.
        """
        below = start + self._width
        panel, A = self._reduced[below:, start:below], self._reduced[below:, below:]
        tau = factor_columns(panel)
        self._keep_band(start, below)
        V = panel[:, : len(tau)]
        V[: len(tau)][np.triu_indices(len(tau))] = 0.0
        np.fill_diagonal(V, 1.0)
        U = triangle_of_reflections(V, tau)
        # A product of transposes is in the order of columns, as the routines take it.
        W = symmetric_product(A, (U.T @ V.T).T)
        W -= ((W.T @ V) @ (U / 2) @ V.T).T
        subtract_symmetric(A, V, W)
        return below, V, U

    def _keep_band(self, first: int, stop: int) -> None:
        """Copy the band of these columns, which are done."""
        for i in range(first, stop):
            column = self._reduced[i : i + self._width + 1, i]
            self._band[: len(column), i] = column

    def _apply_Q(self, C: np.ndarray) -> None:
        """Turn C into Q C."""
        for below, V, U in reversed(self._reflections):
            part = C[below:]
            part -= (part.T @ V @ U.T @ V.T).T

    def _apply_transposed_Q(self, C: np.ndarray) -> None:
        """Turn C into Qᵀ C."""
        for below, V, U in self._reflections:
            part = C[below:]
            part -= (part.T @ V @ U @ V.T).T

    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        shifted = self._band.copy(order="F")
        shifted[0] += alpha
        _, x, info = dpbsv(shifted, B, lower=1, overwrite_ab=1)
        return x, info > 0

    def eigenvalues(self) -> np.ndarray:
        """Return the eigenvalues of G, ascending, shape (D,); 6·D²·b flops."""
        return eig_banded(self._band, lower=True, eigvals_only=True, check_finite=False)
