"""Ridge from Grams: solutions, held-out errors and posteriors; the leading components of a Gram.

Conventions
-----------
A *Gram* is A = Σ s_i t_i t_iᵀ over rows t = [z | 1 | y], symmetric float64 of shape (p, p), p = D + 1 + k:

* D features z, then the constant 1, then k targets y; s_i ≥ 0 are the sample weights;
* W = A[D, D] = Σ s_i, the weight sum; z̄ = A[:D, D] / W and ȳ = A[D, D+1:] / W, the weighted means.

Of very many targets a Gram is *wide*, of shape (D + 2, p): its rows are those of z and of 1, and the last one
has Σ s y_j² in the columns of the targets. Products of two targets serve no model.

A nested model uses the leading D' features times a `feature_scale` c (√(D/D') for Fourier features,
1 for Nyström), so its feature row is c·z[:D']; its coefficients refer to those scaled features.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_solve, eig_banded, eigh, eigvalsh_tridiagonal
from scipy.linalg.blas import dger
from scipy.linalg.lapack import dpbsv

from distrff.errors import InputError, PenaltyTooSmall
from distrff.utils.arrays import Sums
from distrff.utils.linalg import (
    apply_reflections,
    factor,
    factor_columns,
    reflect,
    solve_tridiagonal,
    squared,
    subtract_symmetric,
    symmetric_product,
    transposed_product,
    triangle_of_reflections,
    triangular_product,
    tridiagonal,
)

# Reduction to a band, from which a whole path of penalties follows.

# Wide enough for products of panels to run at full speed; a solution in the band costs the square of it.
_BAND_WIDTH = 64
# In caches products with vectors are not bound by memory, and nothing is left of a panel's advantage: for
# 256, 512, 768, 1024, 1536 and 2048 columns the path of 25 alphas takes 3, 13, 34, 97, 309 and 930 ms from a
# tridiagonal T on one core without AVX-512, and 7, 20, 44, 110, 294 and 550 ms from a band. With it the band
# is behind at 1024 columns and ahead at 1536, and 8192 take 48 s and 20 s.
_LEAST, _FEW_FEATURES = 3, 2**10


def path_ridge(G: np.ndarray) -> PathRidge:
    """The solutions for all alphas, by the faster reduction of G, in its own memory."""
    if _LEAST <= len(G) <= _FEW_FEATURES:
        return TridiagonalRidge(G)
    return BandRidge(G)


class PathRidge(ABC):
    """Solutions of (G + alpha·I) w = B for many alphas: w = Q (T + alpha·I)⁻¹ QᵀB."""

    _reduced: np.ndarray  # (D, D), with the reflections of Q

    def solve(self, B: np.ndarray, alphas: np.ndarray) -> np.ndarray:
        """W of shape (m, D, k) for m alphas and the k targets of B, (D, k).

        NaN for an alpha at which T + alpha·I is not positive definite: rounding in G has made an eigenvalue
        smaller than −alpha, and a solution there would be meaningless.
        """
        D, k = B.shape
        rotated = self.rotated(B)
        X = np.zeros((D, len(alphas) * k), order="F")
        failed = np.zeros(len(alphas), dtype=bool)
        for i, alpha in enumerate(alphas):
            x, failed[i] = self._solve_T(alpha, rotated)
            if not failed[i]:
                X[:, i * k : (i + 1) * k] = x
        self._apply_Q(X, transposed=False)
        # A view, since X is stored column by column.
        W = X.T.reshape(len(alphas), k, D)
        W[failed] = np.nan
        return W.transpose(0, 2, 1)

    def rotated(self, B: np.ndarray) -> np.ndarray:
        """QᵀB in Fortran order; of rows beyond those of G, as they are."""
        # A copy, for Q is applied in place.
        rotated = np.array(B, order="F")
        self._apply_Q(rotated[: len(self._reduced)], transposed=True)
        return rotated

    def effective_dimension(self, alphas: np.ndarray, rank: int | None = None) -> np.ndarray:
        """tr G (G + alpha·I)⁻¹ = Σ λ/(λ + alpha) for each alpha, shape (m,).

        Only the `rank` largest eigenvalues count where G can have no more: the others are
        rounding, of both signs. Those below zero count as zero.
        """
        spectrum = np.maximum(self.eigenvalues(), 0)[::-1][:rank]
        return np.array([np.sum(spectrum / (spectrum + alpha)) for alpha in alphas])

    @abstractmethod
    def eigenvalues(self) -> np.ndarray:
        """The eigenvalues of G, ascending, shape (D,)."""

    def solve_rotated(self, alpha: float, B: np.ndarray) -> np.ndarray:
        """(T + alpha·I)⁻¹B, in the coordinates of `rotated`; NaN where T + alpha·I is not definite."""
        x, failed = self._solve_T(alpha, B)
        return np.full(B.shape, np.nan) if failed else x

    @abstractmethod
    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        """(T + alpha·I)⁻¹B, and whether T + alpha·I is not positive definite."""

    @abstractmethod
    def _apply_Q(self, C: np.ndarray, *, transposed: bool) -> None:
        """Turn C, in Fortran order, into Q C, or Qᵀ C."""


class TridiagonalRidge(PathRidge):
    """A `PathRidge` by a tridiagonal T: for few features, at least 3.

    The reduction costs 4/3·D³ flops once, each alpha then O(D·k), and 2·D²·k for the product with Q.

    References
    ----------
    Golub and Van Loan, Matrix Computations, 4th ed., section 8.3.1; LAPACK routines dsytrd, dormqr, dptsv.
    """

    def __init__(self, G: np.ndarray) -> None:
        self._reduced, self._diagonal, self._beside, self._tau = tridiagonal(G, overwrite=True)

    def eigenvalues(self) -> np.ndarray:
        return eigvalsh_tridiagonal(self._diagonal, self._beside, check_finite=False)

    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        return solve_tridiagonal(self._diagonal + alpha, self._beside, B)

    def _apply_Q(self, C: np.ndarray, *, transposed: bool) -> None:
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
        Symmetric positive semidefinite, float64. It is lost if it is in Fortran order.

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

    def __init__(self, G: np.ndarray) -> None:
        self._reduced = np.asarray(G, order="F")
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
        # Before V's ones and zeros take the place of the band's entries.
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

    def _apply_Q(self, C: np.ndarray, *, transposed: bool) -> None:
        # Q is the product of all I − V·U·Vᵀ in turn, so the last one is applied first; of Qᵀ it is the first.
        for below, V, U in self._reflections if transposed else reversed(self._reflections):
            part = C[below:]
            part -= (part.T @ V @ (U if transposed else U.T) @ V.T).T

    def _solve_T(self, alpha: float, B: np.ndarray) -> tuple[np.ndarray, bool]:
        # A copy for each alpha: dpbsv leaves the band's Cholesky factor in its place.
        shifted = self._band.copy(order="F")
        shifted[0] += alpha
        _, x, info = dpbsv(shifted, B, lower=1, overwrite_ab=1)
        return x, info > 0

    def eigenvalues(self) -> np.ndarray:
        """The eigenvalues of G, ascending, shape (D,); 6·D²·b flops."""
        return eig_banded(self._band, lower=True, eigvals_only=True, check_finite=False)


@dataclass(frozen=True, eq=False)
class RidgeSystem:
    """The normal equations (G + alpha·I) w = B of Σ s_i ‖y_i − wᵀz_i − b‖² + alpha‖w‖², with b eliminated.

    Attributes
    ----------
    G : ndarray of shape (D, D), Fortran order
        Σ s_i (z_i − z̄)(z_i − z̄)ᵀ with an intercept, Σ s_i z_i z_iᵀ without.
    B : ndarray of shape (D, k)
        Σ s_i (z_i − z̄)(y_i − ȳ)ᵀ, or uncentred.
    z_mean, y_mean : ndarrays of shape (D,) and (k,)
        z̄ and ȳ, or zeros without an intercept.
    weight : float
        W = Σ s_i.
    yy : ndarray of shape (k,)
        Σ s_i (y_i − ȳ)², or uncentred.
    """

    G: np.ndarray
    B: np.ndarray
    z_mean: np.ndarray
    y_mean: np.ndarray
    weight: float
    yy: np.ndarray
    fit_intercept: bool

    def intercept(self, coef: np.ndarray) -> np.ndarray:
        """b = ȳ − wᵀz̄, the minimiser for given w: (..., D, k) → (..., k)."""
        return self.y_mean - self.z_mean @ coef

    def residual(self, coef: np.ndarray) -> np.ndarray:
        """The weighted residual sum of squares per target, (D, k) → (k,).

        yy − 2·wᵀB + wᵀGw has no first-order term in the error of w at the solution; the shorter
        yy − wᵀB − alpha‖w‖² has one.
        """
        quadratic = np.einsum("ij,ij->j", coef, self.G @ coef - 2 * self.B)
        return np.maximum(self.yy + quadratic, 0)


def ridge_system(
    A: np.ndarray,
    n_targets: int,
    *,
    fit_intercept: bool,
    n_features: int | None = None,
    feature_scale: float = 1.0,
) -> RidgeSystem:
    """The ridge system of a Gram, or of the nested model of its D' leading features.

    Allocates one D' × D' array, G; the Gram is not changed. The rank-one centring is done in place as −v vᵀ
    with v = z̄·√W, which keeps G exactly symmetric.

    Raises
    ------
    InputError
        If the rows have no weight in total, or `n_features` is not in 1..D.
    """
    D = A.shape[1] - 1 - n_targets
    size = D if n_features is None else n_features
    if not 1 <= size <= D:
        raise InputError(f"n_features={size} is not between 1 and the {D} features of the Gram")
    weight = float(A[D, D])
    if not weight > 0:
        raise InputError(no_weight(weight))
    # A is symmetric: its transpose is copied column by column, without strides.
    G = np.array(A[:size, :size].T, order="F")
    B = A[:size, D + 1 :] * feature_scale
    yy = target_squares(A, D).copy()
    z_mean, y_mean = np.zeros(size), np.zeros(n_targets)
    if feature_scale != 1:
        G *= feature_scale**2
    if fit_intercept:
        z_mean = A[:size, D] * (feature_scale / weight)
        y_mean = A[D, D + 1 :] / weight
        v = z_mean * np.sqrt(weight)
        G = dger(-1.0, v, v, a=G, overwrite_a=1)
        B -= np.outer(z_mean, y_mean * weight)
        yy = np.maximum(yy - weight * y_mean**2, 0)
    return RidgeSystem(G, B, z_mean, y_mean, weight, yy, fit_intercept)


def target_squares(A: np.ndarray, n_features: int) -> np.ndarray:
    """Σ s y_j² of each target, of shape (k,)."""
    return A[-1, n_features + 1 :] if is_wide(A) else np.diagonal(A)[n_features + 1 :]


def is_wide(A: np.ndarray) -> bool:
    return A.shape[-2] < A.shape[-1]


def no_weight(weight: float) -> str:
    """The message on rows to fit that have no weight in total."""
    return (
        f"the rows to fit have the total weight {weight:g}: all are in one fold or have zero weight; "
        "give more rows, fewer folds or positive sample weights"
    )


def held_out_error(
    A: np.ndarray, coef: np.ndarray, intercept: np.ndarray, *, feature_scale: float = 1.0
) -> np.ndarray:
    """Σ s_i (y_ij − w_jᵀz_i − b_j)² over the rows of a Gram, for m models of k targets, shape (m, k).

    The residual of target j is −tᵀv with v = [c·w_j; b_j; −e_j], so its sum of squares is vᵀAv. `coef` of
    shape (m, D', k) belongs to the leading D' ≤ D features times `feature_scale`, `intercept` has the shape
    (m, k). NaN in a model gives NaN, and rounding below zero is clipped. 2·m·k·p² flops.
    """
    m, size, k = coef.shape
    p = A.shape[0]
    D = p - 1 - k
    V = np.zeros((m, k, p))
    V[:, :, :size] = coef.transpose(0, 2, 1)
    V[:, :, :size] *= feature_scale
    V[:, :, D] = intercept
    V[:, np.arange(k), D + 1 + np.arange(k)] = -1
    rows = V.reshape(m * k, p)
    return np.maximum(np.einsum("ij,ij->i", rows @ A, rows), 0).reshape(m, k)


# The ridge objective from a few passes over the rows, where its Gram is never formed.
#
# With z̄ = Σ s z/Σ s and ȳ likewise (or zeros without an intercept), the normal equations are
# (G + alpha·I) w = B, G = Σ s (z − z̄)(z − z̄)ᵀ and B = Σ s (z − z̄)(y − ȳ)ᵀ, and b = ȳ − z̄ᵀw. The intercept
# is eliminated rather than solved for, because G + alpha·I is a Schur complement of the matrix of [w | b],
# whose condition number is never smaller, and because the residual then bounds the error of w by itself.


@dataclass(frozen=True, eq=False)
class RidgeMoments(Sums):
    """Sums over rows of features z, targets y and the residuals e = y − wᵀz − b of a first model.

    Attributes
    ----------
    weight : float
        Σ s.
    z, zz : ndarrays of shape (D,)
        Σ s·z and Σ s·z², the latter for a diagonal preconditioner.
    y, yy, e : ndarrays of shape (k,)
        Σ s·y, Σ s·y² and Σ s·e.
    zy, ze : ndarrays of shape (D, k)
        Σ s·z·yᵀ and Σ s·z·eᵀ.
    """

    weight: float
    z: np.ndarray
    zz: np.ndarray
    y: np.ndarray
    yy: np.ndarray
    zy: np.ndarray
    e: np.ndarray
    ze: np.ndarray

    @property
    def is_finite(self) -> bool:
        return all(np.isfinite(getattr(self, f.name)).all() for f in fields(self))


def ridge_moments(Z: Any, Y: np.ndarray, E: np.ndarray, s: np.ndarray) -> RidgeMoments:
    """The sums of one tile Z, float64 or one-hot, in 4·r·D·k flops."""
    sY, sE = s[:, None] * Y, s[:, None] * E
    # All sums over z itself by one product, which reads Z once.
    sums = transposed_product(np.vstack([s, sY.T, sE.T]), Z)
    k = Y.shape[1]
    return RidgeMoments(
        weight=float(s.sum()),
        z=sums[0],
        zz=transposed_product(s[None], squared(Z))[0],
        y=sY.sum(axis=0),
        yy=np.einsum("ij,ij->j", sY, Y),
        zy=sums[1 : 1 + k].T,
        e=sE.sum(axis=0),
        ze=sums[1 + k :].T,
    )


@dataclass(frozen=True, eq=False)
class RidgeEquations:
    """The normal equations (G + alpha·I) w = B from one pass: everything but the products with G.

    Attributes
    ----------
    B : ndarray of shape (D, k)
    G_diagonal : ndarray of shape (D,)
    descent : ndarray of shape (D, k)
        B − G·w at the first model's w.
    z_mean, y_mean : ndarrays of shape (D,) and (k,)
        z̄ and ȳ, or zeros without an intercept.
    yy : ndarray of shape (k,)
        Σ s (y − ȳ)², or uncentred.
    """

    B: np.ndarray
    G_diagonal: np.ndarray
    descent: np.ndarray
    z_mean: np.ndarray
    y_mean: np.ndarray
    yy: np.ndarray

    @classmethod
    def of(cls, m: RidgeMoments, *, fit_intercept: bool) -> RidgeEquations:
        """The equations of rows whose sums are `m`."""
        if not fit_intercept:
            return cls(m.zy, m.zz, m.ze, np.zeros_like(m.z), np.zeros_like(m.y), m.yy)
        z_mean, y_mean = m.z / m.weight, m.y / m.weight
        return cls(
            B=m.zy - np.outer(z_mean, m.y),
            G_diagonal=np.maximum(m.zz - m.weight * z_mean**2, 0),
            # B − G·w = Σ s·(z − z̄)·e for residuals e of the model w with any intercept, which Σ s·(z − z̄) =
            # 0 cancels.
            descent=m.ze - np.outer(z_mean, m.e),
            z_mean=z_mean,
            y_mean=y_mean,
            yy=np.maximum(m.yy - m.weight * y_mean**2, 0),
        )

    def intercept(self, coef: np.ndarray) -> np.ndarray:
        """b = ȳ − wᵀz̄, the minimiser for given w: (D, k) → (k,)."""
        return self.y_mean - self.z_mean @ coef

    def squared_error(self, coef: np.ndarray, residual: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Σ s (y − wᵀz − b)² of each target without a pass, from the residual B − (G + alpha·I)·w.

        It takes wᵀGw = wᵀ(B − alpha·w − residual).
        """
        return np.maximum(self.yy - np.einsum("ij,ij->j", coef, self.B + alpha * coef + residual), 0)


NOT_FINITE = (
    "the Gram of the rows is not finite: some values are too large for the products' dtype; "
    "use scale='standard' or dtype='float64'"
)

# Symmetric matrices as lower triangles: half the memory and half the bytes to send.


def packed_length(size: int) -> int:
    """The entries of the lower triangle of a matrix of `size` rows."""
    return size * (size + 1) // 2


def pack(A: np.ndarray) -> np.ndarray:
    """The lower triangles, row by row: (m, p, p) → (m, p(p + 1)/2)."""
    m, p, _ = A.shape
    packed = np.empty((m, packed_length(p)), A.dtype)
    # Row by row: NumPy's indices of a triangle are two arrays, together as large as the matrix.
    for row in range(p):
        start = packed_length(row)
        packed[:, start : start + row + 1] = A[:, row, : row + 1]
    return packed


def unpack(packed: np.ndarray) -> np.ndarray:
    """The symmetric matrix of one packed triangle: (p(p + 1)/2,) → (p, p)."""
    # p(p + 1)/2 solved for p.
    p = int((np.sqrt(8 * len(packed) + 1) - 1) // 2)
    A = np.empty((p, p), packed.dtype)
    for row in range(p):
        start = packed_length(row)
        A[row, : row + 1] = packed[start : start + row + 1]
        A[:row, row] = A[row, :row]
    return A


# Ridge from the Grams of folds: the steps that run where the Grams are, each a plain function of arrays.
#
# A learning curve in the number of features takes the same steps for each nested size: `fold_errors` of every
# fold (or `gcv_errors`), then a choice among the penalties.


@dataclass(frozen=True)
class GramProblem:
    """Rows, targets and nested models of a Gram: all that does not depend on alpha.

    Parameters
    ----------
    sizes : tuple of int
        Numbers of leading features to fit, ascending; the last is D.
    rescaled : bool
        Whether a nested model's features are multiplied by √(D/D').
    offset : ndarray of shape (k,) or None
        Added to the coded targets: without an intercept the model has to fit the mean as well, which the
        coding subtracted.
    factors : ndarray of shape (D,) or None
        Of the features of all models: those of the Gram are multiplied by them.
    """

    n_rows: int
    n_targets: int
    fit_intercept: bool
    sizes: tuple[int, ...]
    rescaled: bool
    offset: np.ndarray | None = None
    factors: np.ndarray | None = None

    def feature_scale(self, size: int) -> float:
        """Factor of the leading `size` features."""
        return float(np.sqrt(self.sizes[-1] / size)) if self.rescaled else 1.0

    def system(self, A: np.ndarray, size: int | None = None) -> RidgeSystem:
        """The ridge system of a Gram, of all features or of the leading `size`."""
        scale = 1.0 if size is None else self.feature_scale(size)
        return ridge_system(
            self.with_factors(A),
            self.n_targets,
            fit_intercept=self.fit_intercept,
            n_features=size,
            feature_scale=scale,
        )

    def weight(self, A: np.ndarray) -> float:
        """Σs of the rows of a Gram."""
        D = A.shape[1] - 1 - self.n_targets
        return float(A[D, D])

    def with_offset(self, A: np.ndarray) -> np.ndarray:
        """The Gram with the offset added to its targets."""
        return A if self.offset is None else recoded(A, np.ones(self.n_targets), self.offset)

    def with_factors(self, A: np.ndarray) -> np.ndarray:
        """The Gram of the features times their factors."""
        if self.factors is None:
            return A
        # Of squares of targets alone there are fewer rows than columns.
        rows, columns = (np.append(self.factors, np.ones(n - len(self.factors))) for n in A.shape)
        # Products of two factors first: they do not depend on the order, so that the result is symmetric.
        weighted = np.outer(rows, columns)
        weighted *= A
        return weighted


@dataclass(frozen=True)
class RidgeSolution:
    """One solution, in the units of the coded targets.

    Parameters
    ----------
    residual : ndarray of shape (k,)
        Weighted residual sums of squares.
    total : ndarray of shape (k,)
        Weighted squared deviations of the targets (from their mean, with an intercept).
    """

    coef: np.ndarray
    intercept: np.ndarray
    residual: np.ndarray
    total: np.ndarray


@dataclass(frozen=True, eq=False)
class FoldErrors:
    """A fold under the models that are fitted to all other rows.

    Attributes
    ----------
    errors : ndarray of shape (m, k)
        Weighted sums of squared errors over the fold, in coded units; NaN where rounding leaves no usable
        model.
    weight : float
        Σs of the fold.
    solutions : dict
        By alpha, the coefficients (D, k) and intercepts (k,) of all features in coded units, if they are
        wanted.
    """

    errors: np.ndarray
    weight: float
    solutions: dict[float, tuple[np.ndarray, np.ndarray]]


def recoded(A: np.ndarray, ratio: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """The Gram of [z | 1 | ratio·y + offset], (..., p, p), from that of [z | 1 | y]."""
    k = len(ratio)
    one, before, A = A.shape[-1] - k - 1, A, A.copy()
    # Columns, then rows of the result: products of two targets are recoded on both sides.
    A[..., one + 1 :] = A[..., one + 1 :] * ratio + A[..., one, None] * offset
    if is_wide(A):
        y, yy = before[one, one + 1 :], before[-1, one + 1 :]
        A[-1, one + 1 :] = ratio**2 * yy + offset * (2 * ratio * y + offset * before[one, one])
        return A
    A[..., one + 1 :, :] = A[..., one + 1 :, :] * ratio[:, None] + A[..., one, None, :] * offset[:, None]
    return A


class FoldTerms(NamedTuple):
    """A fold of `distrff.preprocessing.folds.Folds`, by coefficients −1, 0 or 1 of its sums.

    `test` are its rows, and `used` the rows that its model is fitted to, or the rows that are left out of it.
    """

    test: np.ndarray
    used: np.ndarray
    is_left_out: bool

    @classmethod
    def of(cls, train: np.ndarray, test: np.ndarray, total: np.ndarray) -> FoldTerms:
        """The terms of a fold, by the fewer sums.

        These are fewer matrices, and less cancellation where the training rows are few, as at the beginning
        of a series. Of a partition what is left out is the fold itself.
        """
        left_out = total - train
        is_left_out = np.count_nonzero(left_out) <= np.count_nonzero(train)
        return cls(test, left_out if is_left_out else train, bool(is_left_out))


def combined(parts: list[np.ndarray], coefs: np.ndarray) -> np.ndarray:
    """Σ coefs_j·A_j of shape (p, p), in the order of the sums; a single full one is not copied.

    `parts` is one stack of all sums or one a sum, of full, wide or packed matrices. The result may be such a
    matrix itself, not to be written to.
    """
    sums = parts[0] if len(parts) == 1 else [part[0] for part in parts]
    added, subtracted = np.flatnonzero(coefs > 0).tolist(), np.flatnonzero(coefs < 0).tolist()
    found = sums[added[0]] if added else np.zeros_like(sums[0])
    for i, number in enumerate([*added[1:], *subtracted]):
        change = np.add if number in added else np.subtract
        # The first sum may be a part itself, which other tasks read too: only memory that is made here is
        # written to.
        found = change(found, sums[number], out=found if i else None)
    # Packed ones are added as they are, half as large; unpacking one of 2,048 features takes 10 ms.
    return found if found.ndim == 2 else unpack(found)


def total_gram(parts: list[np.ndarray], total: np.ndarray, problem: GramProblem) -> np.ndarray:
    """The Gram of all rows, of shape (p, p), by the coefficients of its sums; raise if not finite."""
    A = combined(parts, total)
    if not np.isfinite(A).all():
        raise InputError(NOT_FINITE)
    return problem.with_offset(A)


def leading(A: np.ndarray, size: int, n_targets: int) -> np.ndarray:
    """The Gram of the leading `size` features; A itself for all of them."""
    D = A.shape[1] - 1 - n_targets
    if size == D:
        return A
    # Blocks, as indices of single entries take five times as long.
    return np.block([[A[:size, :size], A[:size, D:]], [A[D:, :size], A[D:, D:]]])


def fold_errors(
    total: np.ndarray,
    parts: list[np.ndarray],
    fold: FoldTerms,
    problem: GramProblem,
    size: int,
    alphas: np.ndarray,
    base: slice | None = None,
    with_solutions: bool = False,
    own: bool | np.ndarray = False,
    dtype: str = "float64",
) -> FoldErrors:
    """One fold's errors under the models of a size that did not see it, and these if they are wanted.

    Parameters
    ----------
    parts : list of ndarray
        As in `combined`.
    base : slice, optional
        The part of the alphas that is tried in any case, as in `path_errors`; by default all of them.
    own : bool, or bool ndarray of shape (m, k)
        Whether each target goes on beyond the ends of `base` by its own errors, or which alphas are tried for
        which target. The others have NaN, and no solutions are kept.
    dtype : str
        Of the products with `own`, which need not be more exact than those that the Gram sums.

    Notes
    -----
    About 4/3·D³ flops. Memory beside the inputs: two D × D arrays, the Gram of the training rows, which is
    freed first, and its G, which is reduced in place; then three arrays of shape (m·k, p), or with `own`
    three of shape (D, k).
    """
    held_out = problem.with_offset(combined(parts, fold.test))
    # Of a partition what is left out is what is judged: one matrix in memory, not two.
    used = held_out
    if not np.array_equal(fold.used, fold.test):
        used = problem.with_offset(combined(parts, fold.used))
    weight, scale = problem.weight(held_out), problem.feature_scale(size)
    # A smaller size neither copies nor multiplies the features that it leaves out. The Gram of few rows may
    # have fewer features than the size: they are rotated, and stand for all of it.
    n_features = min(size, held_out.shape[1] - 1 - problem.n_targets)
    of_fold = leading(held_out, n_features, problem.n_targets)
    training = of_fold if used is held_out else leading(used, n_features, problem.n_targets)
    if fold.is_left_out:
        training = leading(total, n_features, problem.n_targets) - training
    del used  # where factors make copies, no more than four matrices are here at once
    of_fold, training = problem.with_factors(of_fold), problem.with_factors(training)
    del held_out
    system = ridge_system(
        training, problem.n_targets, fit_intercept=problem.fit_intercept, feature_scale=scale
    )
    del training
    # G is reduced in its own memory: of the system only B and the means can be used from here on.
    path, solutions = path_ridge(system.G), dict[float, tuple[np.ndarray, np.ndarray]]()
    if own is not False:
        errors = _OwnErrors(path, system, of_fold, scale, dtype).errors(alphas, own, base)
        return FoldErrors(errors, weight, solutions)

    def errors_at(some: np.ndarray) -> np.ndarray:
        coef = path.solve(system.B, some)
        intercept = system.intercept(coef)
        if with_solutions:
            solutions.update(zip(some.tolist(), zip(coef, intercept, strict=True), strict=True))
        return held_out_error(of_fold, coef, intercept, feature_scale=scale)

    return FoldErrors(path_errors(errors_at, alphas, base), weight, solutions)


_TARGETS_AT_ONCE = 256  # their solutions for one alpha stay in a cache


class _OwnErrors:
    """Held-out errors of targets with alphas of their own, from features in the coordinates of T.

    So w = (T + alpha·I)⁻¹QᵀB, and products with Q come once for all alphas. With the held-out Gram E of
    [Qᵀz | 1] and C = Σ s [Qᵀz | 1] yᵀ a target's sum of squares is vᵀEv − 2·vᵀc + Σ s y² for v = [w; b].
    """

    def __init__(
        self, path: PathRidge, system: RidgeSystem, held_out: np.ndarray, scale: float, dtype: str
    ) -> None:
        D = len(system.B)
        self._path, self._B, self._z_mean = (
            path,
            path.rotated(system.B),
            path.rotated(system.z_mean[:, None])[:, 0],
        )
        self._y_mean, self._yy = system.y_mean, target_squares(held_out, D)
        rotated = path.rotated(held_out[: D + 1])
        rotated[:D] *= scale
        E, self._C = path.rotated(rotated[:, : D + 1].T), rotated[:, D + 1 :]
        E[:D] *= scale
        # vᵀEv = 2·vᵀUv for the upper triangle U of E with half of its diagonal: half the flops.
        self._U = np.asfortranarray(np.triu(E), dtype=dtype)
        self._U[np.diag_indices(D + 1)] /= 2

    def errors(self, alphas: np.ndarray, own: bool | np.ndarray, base: slice | None) -> np.ndarray:
        """Errors (m, k), NaN where an alpha is not tried; the arguments are those of `fold_errors`."""
        m, everyone = len(alphas), np.arange(len(self._yy))
        found = np.full((m, len(everyone)), np.nan)
        if isinstance(own, np.ndarray):
            for i, wanted in enumerate(own):
                found[i, wanted] = self._at(alphas[[i]], np.flatnonzero(wanted))
            return found
        base = slice(0, m) if base is None else base
        found[base] = self._at(alphas[base], everyone)
        # As in `path_errors`: downwards first, which is upwards in the reversed grid.
        for grid, errors, end in ((alphas[::-1], found[::-1], m - base.start), (alphas, found, base.stop)):
            going = everyone
            for stop in range(end, m, _STEPS_AT_ONCE):
                inner = max(0, stop - _STEPS_AT_ONCE)
                going = going[_gains(errors[inner:stop, going], errors[:inner, going])]
                decade = slice(stop, stop + _STEPS_AT_ONCE)
                errors[decade, going] = self._at(grid[decade], going)
        return found

    def _at(self, alphas: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """The errors of some targets, of shape (m, k)."""
        found = np.empty((len(alphas), len(targets)))
        for start in range(0, len(targets), _TARGETS_AT_ONCE):
            block = slice(start, start + _TARGETS_AT_ONCE)
            some = targets[block]
            # A row for each target, since LAPACK has its right-hand sides in columns.
            B, C, v = self._B.T[some], self._C.T[some], np.empty((len(some), len(self._U)))
            for i, alpha in enumerate(alphas):
                v[:, :-1] = self._path.solve_rotated(alpha, B.T).T
                v[:, -1] = self._y_mean[some] - v[:, :-1] @ self._z_mean
                half = np.einsum("ij,ij->i", v, triangular_product(self._U, v.T).T - C)
                found[i, block] = np.maximum(2 * half + self._yy[some], 0)
        return found


def fold_weights(parts: list[np.ndarray], fold: FoldTerms, problem: GramProblem) -> tuple[float, float]:
    """Σs of a fold's rows, and of those in `used`."""
    return problem.weight(combined(parts, fold.test)), problem.weight(combined(parts, fold.used))


def gcv_errors(
    total: np.ndarray, size: int, alphas: np.ndarray, problem: GramProblem, base: slice | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The generalised cross-validation error (RSS/W) / (1 − df/n)² and df, for the whole grid.

    df = tr G (G + alpha·I)⁻¹, plus 1 for an intercept, is the effective dimension; n is the number of rows,
    whatever their weights. The errors have the shape (m, k) and are NaN where the model interpolates
    (1 − df/n < 1e-6), or where rounding leaves no usable model. `base` is the part of the grid that is tried
    in any case, as in `path_errors`. The cost is that of one size of `fold_errors`.

    References
    ----------
    Golub, Heath and Wahba (1979), Technometrics 21(2), p. 216.
    """
    total = leading(total, size, problem.n_targets)
    system = problem.system(total, size)
    path = path_ridge(system.G)
    scale, n_rows, intercept = problem.feature_scale(size), problem.n_rows, problem.fit_intercept
    dimension_at: dict[float, float] = {}

    def errors_at(some: np.ndarray) -> np.ndarray:
        coef = path.solve(system.B, some)
        # By the Gram, since the reduction has taken the place of the system's G.
        residual = held_out_error(total, coef, system.intercept(coef), feature_scale=scale)
        # n centred rows have a rank of n − 1 at most.
        dimensions = path.effective_dimension(some, max(0, n_rows - intercept)) + intercept
        dimension_at.update(zip(some.tolist(), dimensions.tolist(), strict=True))
        freedom = 1 - dimensions / n_rows
        freedom[freedom < _MIN_FREEDOM] = np.nan
        return residual / system.weight / freedom[:, None] ** 2

    errors = path_errors(errors_at, alphas, base)
    return errors, np.array([dimension_at.get(alpha, np.nan) for alpha in alphas.tolist()])


def solution_of(total: np.ndarray, alpha: np.ndarray, problem: GramProblem) -> RidgeSolution:
    """The model of all features at one alpha per target."""
    return _solution(problem.system(total), alpha)


def solution_without(
    total: np.ndarray,
    parts: list[np.ndarray],
    fold: FoldTerms | None,
    alpha: np.ndarray,
    problem: GramProblem,
) -> RidgeSolution:
    """The model of a fold's training rows; None stands for all rows.

    `parts` are as in `combined`. D³/3 flops, and memory for two D × D arrays beside the inputs.
    """
    if fold is None:
        return solution_of(total, alpha, problem)
    # No name keeps the Grams of used and training rows alive: each would be another D × D array beside the
    # factor.
    return _solution(problem.system(training_gram(total, parts, fold, problem)), alpha)


def training_gram(
    total: np.ndarray, parts: list[np.ndarray], fold: FoldTerms, problem: GramProblem
) -> np.ndarray:
    """The Gram of the rows that a fold's model is fitted to."""
    used = problem.with_offset(combined(parts, fold.used))
    return total - used if fold.is_left_out else used


def _solution(system: RidgeSystem, alpha: np.ndarray) -> RidgeSolution:
    coef, intercept = solve_ridge(system, alpha)
    return RidgeSolution(coef, intercept, system.residual(coef), system.yy)


# Few rows: n rows of D > n features are rotated to n columns.
#
# Zᵀ = Q·R, so Z = L·Qᵀ for the triangle L = Rᵀ, and Q has orthonormal columns (Golub and Van Loan, Matrix
# Computations, 4th edition, section 5.2). The ridge model of Z is w = Q·v for the model v of the features L:
# what is not in the rows' span only adds to ‖w‖. So one QR of 2n²D flops makes the Grams of all folds n × n.
# A Cholesky factor of ZZᵀ is as good an L for half of the flops, but has no digits left where rows are alike:
# errors at small alphas differed by 1e-6, relative, and those by QR by 2e-9.


@dataclass(frozen=True, eq=False)
class Rotation:
    """The columns Q of a QR factorisation, as its reflections."""

    reflections: np.ndarray  # (D, n); above the diagonal is R
    tau: np.ndarray

    @classmethod
    def of(cls, Z: np.ndarray) -> Rotation:
        """The rotation of rows Z of n ≤ D features, (n, D)."""
        # Rows side by side are the columns of Zᵀ, as LAPACK takes them; the factor takes their place.
        columns = np.array(Z, dtype=np.float64, order="C").T
        return cls(columns, factor_columns(columns))

    @property
    def rotated(self) -> np.ndarray:
        """L, the rows in n columns."""
        # R is what dgeqrf leaves above the diagonal, and L = Rᵀ.
        return np.tril(self.reflections[: len(self.tau)].T)

    def features(self, coef: np.ndarray) -> np.ndarray:
        """w = Q·v: (n, k) → (D, k)."""
        C = np.zeros((len(self.reflections), coef.shape[1]), order="F")
        C[: len(coef)] = coef
        apply_reflections(self.reflections, self.tau, C)
        return C


def row_grams(Z: np.ndarray, Y: np.ndarray, s: np.ndarray, sums: list[np.ndarray]) -> np.ndarray:
    """The packed Grams of some rows in memory each, (n_sums, p(p + 1)/2)."""
    T = np.hstack([Z, np.ones((len(Z), 1)), Y]) * np.sqrt(s)[:, None]
    parts = (T[rows] for rows in sums)
    # One array on both sides, which NumPy takes for half the flops.
    return np.concatenate([pack((part.T @ part)[None]) for part in parts])


# The choice of alpha: the grid, its noise floor, and the alpha of smallest error.

N_DEFAULT_ALPHAS = 25
# RSS/W is off by about 1e-15 of the targets' mean square, by cancellation; divided by (1 − df/n)² ≥ 1e-12
# that is about 1e-3 of it. Closer to interpolation, GCV is a ratio of two rounding errors.
_MIN_FREEDOM = 1e-6
# GCV replaces the leverage of every row by the mean df/n. Rows far from all others have a leverage near 1
# while df/n is still small: small alphas make their residuals vanish, and GCV prefers these alphas. For
# 13,500 rows in clusters or with heavy tails the test error was 1 to 2 % above that of folds at
# df/n = 0.04, and 4 to 30 % above at 0.12 to 0.15.
_MAX_GCV_SHARE = 1 / 20


def noise_floor(
    weight_sum: float, n_rows: int, *, tile_rows: int, n_features: int, at_zero: float, dtype: np.dtype
) -> float:
    """The alpha below which a Gram of products in `dtype` is noise: 10·u·Σs·√(T/(n·D))·k(0).

    u is the unit roundoff (2⁻²⁴ for float32, 2⁻⁵³ for float64). An entry of ZᵀZ is a sum of n/T tiles with
    independent rounding errors of about u·T·k(0)/D, so its error is about u·√(nT)·k(0)/D. A symmetric matrix
    of such errors has a norm of 2·√D times that; the factor 10 in place of 2 leaves a margin. T = `tile_rows`
    rows are summed in `dtype` before they are added in float64; k(0) = `at_zero` is the mean of ‖z‖².
    """
    unit_roundoff = float(np.finfo(dtype).eps) / 2
    return 10 * unit_roundoff * weight_sum * float(np.sqrt(tile_rows / (n_rows * n_features))) * at_zero


def above_noise(alphas: np.ndarray, floor: float) -> tuple[np.ndarray, int]:
    """The alphas that are not below the noise floor, in their order, and the number of the others."""
    alphas = np.asarray(alphas, dtype=np.float64)
    kept = alphas[alphas >= floor]
    if not len(kept):
        raise InputError(
            f"all alphas are below the rounding noise of the Gram, {floor:.3g}; "
            "use dtype='float64' or larger alphas"
        )
    return kept, len(alphas) - len(kept)


def default_alphas(weight_sum: float, at_zero: float, *, floor: float) -> tuple[np.ndarray, int]:
    """The default grid, ascending, and how many of its values were below the noise floor.

    25 values, geometric from Σs·k(0)·1e-9 to Σs·k(0), which bounds the largest eigenvalue of G.
    """
    return above_noise(np.geomspace(1e-9, 1, N_DEFAULT_ALPHAS) * weight_sum * at_zero, floor)


_STEPS_BELOW, _STEPS_ABOVE = 24, 8
_STEPS_AT_ONCE = 3
# Where the rows fix every coefficient the error is flat down to the rounding noise, and its least value
# wanders there: a decade has to gain this share of the error.
_LEAST_GAIN = 1e-4


def extended(grid: np.ndarray, *, floor: float) -> tuple[np.ndarray, slice]:
    """A default grid with values beyond its ends, in its own steps, and its place among them.

    Nine decades below, but nothing below the noise floor, and three above.
    """
    if len(grid) < 2:
        return grid, slice(0, len(grid))
    step = grid[1] / grid[0]
    below = grid[0] * step ** -np.arange(_STEPS_BELOW, 0, -1.0)
    below = below[below >= floor]
    above = grid[-1] * step ** np.arange(1.0, _STEPS_ABOVE + 1)
    return np.concatenate([below, grid, above]), slice(len(below), len(below) + len(grid))


def path_errors(
    errors_at: Callable[[np.ndarray], np.ndarray], grid: np.ndarray, base: slice | None
) -> np.ndarray:
    """The errors of a grid, (m, k): of its part `base`, and beyond an end as long as that pays.

    A decade at a time is tried, three steps of the default grid, as long as the last decade at that end has
    lowered the mean error by a ten-thousandth. Alphas that are not tried have NaN. The default is to try all.
    """
    first, stop = (0, len(grid)) if base is None else (base.start, base.stop)
    found = errors_at(grid[first:stop])
    while True:
        scores = found.mean(axis=1)
        lower, higher = max(0, first - _STEPS_AT_ONCE), min(len(grid), stop + _STEPS_AT_ONCE)
        if lower < first and _gains(scores[:_STEPS_AT_ONCE], scores[_STEPS_AT_ONCE:]):
            found = np.vstack([errors_at(grid[lower:first]), found])
            first = lower
        elif higher > stop and _gains(scores[-_STEPS_AT_ONCE:], scores[:-_STEPS_AT_ONCE]):
            found = np.vstack([found, errors_at(grid[stop:higher])])
            stop = higher
        else:
            break
    errors = np.full((len(grid), found.shape[1]), np.nan)
    errors[first:stop] = found
    return errors


def _gains(outer: np.ndarray, inner: np.ndarray) -> Any:
    """Whether the best of the outer scores is clearly below the best of the inner ones, by column."""
    best, before = (np.min(some, axis=0, initial=np.inf, where=np.isfinite(some)) for some in (outer, inner))
    return best < (1 - _LEAST_GAIN) * before


def gcv_may_overfit(dimension: float, n_rows: int) -> bool:
    """Whether GCV may be far too optimistic at this effective dimension, or number of features."""
    return dimension > _MAX_GCV_SHARE * n_rows


# The final ridge model by Cholesky.


def cholesky_factor(G: np.ndarray, alpha: float) -> np.ndarray:
    """Lower triangular L with L Lᵀ = G + alpha·I, in one new D × D array.

    Raises PenaltyTooSmall if that is not positive definite, by rounding errors of G.
    """
    M = np.array(G, order="F")
    M[np.diag_indices_from(M)] += alpha
    try:
        return factor(M, overwrite=True)
    except LinAlgError as error:
        raise PenaltyTooSmall(
            f"alpha={alpha:g} is below the rounding noise of the Gram: G + alpha*I is not positive definite; "
            "use dtype='float64' or a stronger penalty"
        ) from error


def solve_ridge(system: RidgeSystem, alpha: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (D, k) and intercepts (k,) at one alpha, or at one per target.

    Targets of equal alpha share a factorisation of D³/3 flops. Memory: one D × D array beside the system.
    """
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), system.yy.shape)
    coef = np.empty_like(system.B)
    for value in np.unique(alphas):
        group, L = alphas == value, cholesky_factor(system.G, value)
        coef[:, group] = cho_solve((L, True), system.B[:, group], check_finite=False)
        del L  # frees its memory before the next one is made
    return coef, system.intercept(coef)


# Principal components.


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """Eigenvectors of the weighted, centred Gram of features.

    Parameters
    ----------
    eigenvalues : ndarray of shape (k,)
        Descending, not negative: Σ s·t² of the rows' coordinates t along each component.
    components : ndarray of shape (k, D)
        Orthonormal rows; the entry of largest magnitude of each is positive.
    mean : ndarray of shape (D,)
        Weighted mean z̄ of the features.
    total : float
        Sum of all D eigenvalues.
    """

    eigenvalues: np.ndarray
    components: np.ndarray
    mean: np.ndarray
    total: float


def principal_components(triangles: np.ndarray, n_components: int) -> PrincipalComponents:
    """The k ≤ D leading components from the packed Gram of the rows [z | 1]; about 4/3·D³ flops.

    Schölkopf, Smola and Müller 1998, "Nonlinear component analysis as a kernel eigenvalue problem", in primal
    form: for the kernel ⟨z, z'⟩ the centred n × n kernel matrix has the nonzero eigenvalues of the D × D
    matrix Σ s(z − z̄)(z − z̄)ᵀ.
    """
    A = unpack(triangles[0])
    if not np.isfinite(A).all():
        raise InputError(NOT_FINITE)
    D = len(A) - 1
    mean = A[D, :D] / A[D, D]
    C = A[:D, :D]
    # Σ s·(z − z̄)(z − z̄)ᵀ = ZᵀSZ − (Σ s·z)·z̄ᵀ, in the memory of A.
    C -= np.outer(A[D, :D], mean)
    total = float(np.trace(C))
    values, V = eigh(C, subset_by_index=(D - n_components, D - 1), overwrite_a=True, check_finite=False)
    components = np.ascontiguousarray(V.T[::-1])
    largest = np.abs(components).argmax(axis=1)
    components *= np.sign(components[np.arange(n_components), largest])[:, None]
    return PrincipalComponents(np.maximum(values[::-1], 0.0), components, mean, max(total, 0.0))
