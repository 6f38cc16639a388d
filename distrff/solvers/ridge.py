"""The ridge objective as moments of the rows.

Conventions
-----------
A *Gram* is A = Σ s_i t_i t_iᵀ over rows t = [z | 1 | y], symmetric float64 of shape (p, p), p = D + 1 + k:

* D features z, then the constant 1, then k targets y; s_i ≥ 0 are the sample weights;
* W = A[D, D] = Σ s_i, the weight sum; z̄ = A[:D, D] / W and ȳ = A[D+1:, D] / W, the weighted means.

A nested model uses the leading D' features times a `feature_scale` c (√(D/D') for Fourier features,
1 for Nyström), so its feature row is c·z[:D']; its coefficients refer to those scaled features.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_solve
from scipy.linalg.blas import dger

from distrff.errors import InputError, PenaltyTooSmall
from distrff.solvers.band import path_ridge
from distrff.utils.arrays import Sums, lay_out
from distrff.utils.linalg import factor, inverse_of_triangle, solve_factor, squared, transposed_product


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
        """Return b = ȳ − wᵀz̄, the minimiser for given w: (..., D, k) → (..., k)."""
        return self.y_mean - self.z_mean @ coef

    def residual(self, coef: np.ndarray) -> np.ndarray:
        """Return the weighted residual sum of squares per target, (D, k) → (k,).

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
    """Return the ridge system of a Gram, or of the nested model of its D' leading features.

    Allocates one D' × D' array, G; the Gram is not changed. The rank-one centring is done in place as −v vᵀ
    with v = z̄·√W, which keeps G exactly symmetric.

    Raises
    ------
    InputError
        If the rows have no weight in total, or `n_features` is not in 1..D.
    """
    D = A.shape[0] - 1 - n_targets
    size = D if n_features is None else n_features
    if not 1 <= size <= D:
        raise InputError(f"n_features={size} is not between 1 and the {D} features of the Gram")
    weight = float(A[D, D])
    if not weight > 0:
        raise InputError(no_weight(weight))
    G = np.array(A[:size, :size].T, order="F")
    B = A[:size, D + 1 :] * feature_scale
    yy = np.diagonal(A)[D + 1 :].copy()
    z_mean, y_mean = np.zeros(size), np.zeros(n_targets)
    if feature_scale != 1:
        G *= feature_scale**2
    if fit_intercept:
        z_mean = A[:size, D] * (feature_scale / weight)
        y_mean = A[D + 1 :, D] / weight
        v = z_mean * np.sqrt(weight)
        G = dger(-1.0, v, v, a=G, overwrite_a=1)
        B -= np.outer(z_mean, y_mean * weight)
        yy = np.maximum(yy - weight * y_mean**2, 0)
    return RidgeSystem(G, B, z_mean, y_mean, weight, yy, fit_intercept)


def no_weight(weight: float) -> str:
    """Return the message on rows to fit that have no weight in total."""
    return (
        f"the rows to fit have the total weight {weight:g}: all are in one fold or have zero weight; "
        "give more rows, fewer folds or positive sample weights"
    )


def held_out_error(
    A: np.ndarray, coef: np.ndarray, intercept: np.ndarray, *, feature_scale: float = 1.0
) -> np.ndarray:
    """Return Σ s_i (y_ij − w_jᵀz_i − b_j)² over the rows of a Gram, for m models of k targets, shape (m, k).

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


def ridge_moments(Z: Any, Y: np.ndarray, E: np.ndarray, s: np.ndarray | None) -> RidgeMoments:
    """Return the sums of one tile Z, float64 or one-hot, in 4·r·D·k flops; weights s of None are ones."""
    s = np.ones(Z.shape[0]) if s is None else s
    sY, sE = s[:, None] * Y, s[:, None] * E
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
        """Return the equations of rows whose sums are `m`."""
        if not fit_intercept:
            return cls(m.zy, m.zz, m.ze, np.zeros_like(m.z), np.zeros_like(m.y), m.yy)
        z_mean, y_mean = m.z / m.weight, m.y / m.weight
        return cls(
            B=m.zy - np.outer(z_mean, m.y),
            G_diagonal=np.maximum(m.zz - m.weight * z_mean**2, 0),
            descent=m.ze - np.outer(z_mean, m.e),
            z_mean=z_mean,
            y_mean=y_mean,
            yy=np.maximum(m.yy - m.weight * y_mean**2, 0),
        )

    def intercept(self, coef: np.ndarray) -> np.ndarray:
        """Return b = ȳ − wᵀz̄, the minimiser for given w: (D, k) → (k,)."""
        return self.y_mean - self.z_mean @ coef

    def squared_error(self, coef: np.ndarray, residual: np.ndarray, alpha: np.ndarray) -> np.ndarray:
        """Return Σ s (y − wᵀz − b)² of each target without a pass, from the residual B − (G + alpha·I)·w.

        It takes wᵀGw = wᵀ(B − alpha·w − residual).
        """
        return np.maximum(self.yy - np.einsum("ij,ij->j", coef, self.B + alpha * coef + residual), 0)


NOT_FINITE = (
    "the Gram of the rows is not finite: some values are too large for the products' dtype; "
    "use scale='standard' or dtype='float64'"
)

# Symmetric matrices as lower triangles: half the memory and half the bytes to send.


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


# Ridge from the Grams of folds: the steps that run where the Grams are, each a plain function of arrays.
#
# A learning curve in the number of features takes the same steps for each nested size: `fold_errors` of every
# fold (or `gcv_errors`), then `choose_alpha`.


@dataclass(frozen=True)
class GramProblem:
    """What does not depend on alpha: the rows, targets and nested models of a Gram.

    Parameters
    ----------
    sizes : tuple of int
        Numbers of leading features to fit, ascending; the last is D.
    rescaled : bool
        Whether a nested model's features are multiplied by √(D/D').
    offset : ndarray of shape (k,) or None
        Added to the coded targets: without an intercept the model has to fit the mean as well, which the
        coding subtracted.
    """

    n_rows: int
    n_targets: int
    fit_intercept: bool
    sizes: tuple[int, ...]
    rescaled: bool
    offset: np.ndarray | None = None

    def feature_scale(self, size: int) -> float:
        """Return what the leading `size` features are multiplied by."""
        return float(np.sqrt(self.sizes[-1] / size)) if self.rescaled else 1.0

    def system(self, A: np.ndarray, size: int | None = None) -> RidgeSystem:
        """Return the ridge system of a Gram, of all features or of the leading `size`."""
        scale = 1.0 if size is None else self.feature_scale(size)
        return ridge_system(
            A, self.n_targets, fit_intercept=self.fit_intercept, n_features=size, feature_scale=scale
        )

    def weight(self, A: np.ndarray) -> float:
        """Return Σs of the rows of a Gram."""
        return float(A[-1 - self.n_targets, -1 - self.n_targets])

    def with_offset(self, A: np.ndarray) -> np.ndarray:
        """Return the Gram with the offset added to its targets."""
        return A if self.offset is None else recoded(A, np.ones(self.n_targets), self.offset)


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
    errors : list of ndarray of shape (m, k)
        For each size the weighted sums of squared errors over the fold, in coded units; NaN where rounding
        leaves no usable model.
    weight : float
        Σs of the fold.
    solutions : dict
        By alpha, the coefficients (D, k) and intercepts (k,) of all features in coded units, if they are
        wanted.
    """

    errors: list[np.ndarray]
    weight: float
    solutions: dict[float, tuple[np.ndarray, np.ndarray]]


def recoded(A: np.ndarray, ratio: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return the Gram of [z | 1 | ratio·y + offset], (..., p, p), from that of [z | 1 | y]."""
    k = len(ratio)
    one, A = A.shape[-1] - k - 1, A.copy()
    A[..., one + 1 :] = A[..., one + 1 :] * ratio + A[..., one, None] * offset
    A[..., one + 1 :, :] = A[..., one + 1 :, :] * ratio[:, None] + A[..., one, None, :] * offset[:, None]
    return A


def fold_of(parts: list[np.ndarray], fold: int) -> np.ndarray:
    """Return the Gram of a fold, of shape (p, p), from one part with all folds or a part for each fold.

    Parts are stacks of matrices, full or packed; a packed one is unpacked into a new array.
    """
    A = parts[0][fold] if len(parts) == 1 else parts[fold][0]
    return A if A.ndim == 2 else unpack(A)


def total_gram(parts: list[np.ndarray], problem: GramProblem) -> np.ndarray:
    """Return the Gram of all rows, of shape (p, p), summed in the order of the folds; raise if not finite."""
    n_folds = len(parts[0]) if len(parts) == 1 else len(parts)
    total = fold_of(parts, 0).copy()
    for fold in range(1, n_folds):
        total += fold_of(parts, fold)
    if not np.isfinite(total).all():
        raise InputError(NOT_FINITE)
    return problem.with_offset(total)


def leading(A: np.ndarray, size: int, n_targets: int) -> np.ndarray:
    """Return the Gram of the leading `size` features; A itself for all of them."""
    D = len(A) - 1 - n_targets
    if size == D:
        return A
    # Blocks, as indices of single entries take five times as long.
    return np.block([[A[:size, :size], A[:size, D:]], [A[D:, :size], A[D:, D:]]])


def fold_errors(
    total: np.ndarray,
    parts: list[np.ndarray],
    fold: int,
    grids: list[np.ndarray],
    problem: GramProblem,
    bases: list[slice] | None = None,
    with_solutions: bool = False,
) -> FoldErrors:
    """Return one fold's errors under the models fitted to all other rows, and these if they are wanted.

    Parameters
    ----------
    parts : list of ndarray
        As in `fold_of`.
    grids : list of ndarray of shape (m,)
        The alphas for each size of the problem; none leaves the size out.
    bases : list of slice, optional
        The part of each grid that is tried in any case, as in `path_errors`; by default all of it.

    Notes
    -----
    About 4/3·D³ flops a size. Memory beside the inputs: two D × D arrays, the complement, which is freed
    first, and its G, which is reduced in place; then three arrays of shape (m·k, p).
    """
    held_out = problem.with_offset(fold_of(parts, fold))
    found = FoldErrors([], problem.weight(held_out), {})
    for i, (size, grid) in enumerate(zip(problem.sizes, grids, strict=True)):
        if not len(grid):
            found.errors.append(np.empty((0, problem.n_targets)))
            continue
        base = None if bases is None else bases[i]
        kept = found.solutions if with_solutions and size == problem.sizes[-1] else None
        found.errors.append(errors_on_fold(total, held_out, size, grid, problem, base, kept))
    return found


def errors_on_fold(
    total: np.ndarray,
    held_out: np.ndarray,
    size: int,
    grid: np.ndarray,
    problem: GramProblem,
    base: slice | None,
    solutions: dict[float, tuple[np.ndarray, np.ndarray]] | None,
) -> np.ndarray:
    """Return the errors of one size on a fold's Gram, (m, k), and add its models to `solutions`."""
    # A smaller size neither copies nor multiplies the features that it leaves out.
    of_all, of_fold = (leading(A, size, problem.n_targets) for A in (total, held_out))
    system = problem.system(of_all - of_fold, size)
    path, scale = path_ridge(system.G), problem.feature_scale(size)

    def errors_at(alphas: np.ndarray) -> np.ndarray:
        coef = path.solve(system.B, alphas)
        intercept = system.intercept(coef)
        if solutions is not None:
            solutions.update(zip(alphas.tolist(), zip(coef, intercept, strict=True), strict=True))
        return held_out_error(of_fold, coef, intercept, feature_scale=scale)

    return path_errors(errors_at, grid, base)


def fold_weight(parts: list[np.ndarray], fold: int, problem: GramProblem) -> float:
    """Return Σs of a fold."""
    return problem.weight(fold_of(parts, fold))


def gcv_errors(
    total: np.ndarray, size: int, alphas: np.ndarray, problem: GramProblem, base: slice | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the generalised cross-validation error (RSS/W) / (1 − df/n)² and df, for the whole grid.

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
        residual = held_out_error(total, coef, system.intercept(coef), feature_scale=scale)
        dimensions = path.effective_dimension(some, max(0, n_rows - intercept)) + intercept
        dimension_at.update(zip(some.tolist(), dimensions.tolist(), strict=True))
        freedom = 1 - dimensions / n_rows
        freedom[freedom < _MIN_FREEDOM] = np.nan
        return residual / system.weight / freedom[:, None] ** 2

    errors = path_errors(errors_at, alphas, base)
    return errors, np.array([dimension_at.get(alpha, np.nan) for alpha in alphas.tolist()])


def solution_of(total: np.ndarray, alpha: np.ndarray, problem: GramProblem) -> RidgeSolution:
    """Return the model of all features at one alpha per target."""
    return _solution(problem.system(total), alpha)


def solution_without(
    total: np.ndarray, parts: list[np.ndarray], fold: int | None, alpha: np.ndarray, problem: GramProblem
) -> RidgeSolution:
    """Return the model of all rows but those of a fold; None leaves out none.

    `parts` are as in `fold_of`. D³/3 flops, and memory for two D × D arrays beside the inputs.
    """
    if fold is None:
        return solution_of(total, alpha, problem)
    # No name keeps the fold or the complement alive: each would be another D × D array beside the factor.
    return _solution(problem.system(total - problem.with_offset(fold_of(parts, fold))), alpha)


def _solution(system: RidgeSystem, alpha: np.ndarray) -> RidgeSolution:
    coef, intercept = solve_ridge(system, alpha)
    return RidgeSolution(coef, intercept, system.residual(coef), system.yy)


def posterior_of(total: np.ndarray, alpha: float, problem: GramProblem) -> PosteriorFactor:
    """Return the factor for standard deviations of f(x), with the noise in squared coded units."""
    return posterior_factor(problem.system(total), alpha)


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


@dataclass(frozen=True, eq=False)
class AlphaChoice:
    """The alpha of smallest error.

    Attributes
    ----------
    index : int
        Its position in the grid.
    score : float
        Its weighted mean squared error, averaged over targets.
    scores : ndarray of shape (m,)
        The same for the whole grid; NaN for an alpha without a usable model.
    """

    index: int
    alpha: float
    score: float
    scores: np.ndarray


def noise_floor(
    weight_sum: float, n_rows: int, *, tile_rows: int, n_features: int, at_zero: float, dtype: np.dtype
) -> float:
    """Return the alpha below which a Gram of products in `dtype` is noise: 10·u·Σs·√(T/(n·D))·k(0).

    u is the unit roundoff (2⁻²⁴ for float32, 2⁻⁵³ for float64). An entry of ZᵀZ is a sum of n/T tiles with
    independent rounding errors of about u·T·k(0)/D, so its error is about u·√(nT)·k(0)/D. A symmetric matrix
    of such errors has a norm of 2·√D times that; the factor 10 in place of 2 leaves a margin. T = `tile_rows`
    rows are summed in `dtype` before they are added in float64; k(0) = `at_zero` is the mean of ‖z‖².
    """
    unit_roundoff = float(np.finfo(dtype).eps) / 2
    return 10 * unit_roundoff * weight_sum * float(np.sqrt(tile_rows / (n_rows * n_features))) * at_zero


def above_noise(alphas: np.ndarray, floor: float) -> tuple[np.ndarray, int]:
    """Return the alphas that are not below the noise floor, in their order, and the number of the others."""
    alphas = np.asarray(alphas, dtype=np.float64)
    kept = alphas[alphas >= floor]
    if not len(kept):
        raise InputError(
            f"all alphas are below the rounding noise of the Gram, {floor:.3g}; "
            "use dtype='float64' or larger alphas"
        )
    return kept, len(alphas) - len(kept)


def default_alphas(weight_sum: float, at_zero: float, *, floor: float) -> tuple[np.ndarray, int]:
    """Return the default grid, ascending, and how many of its values were below the noise floor.

    25 values, geometric from Σs·k(0)·1e-9 to Σs·k(0), which bounds the largest eigenvalue of G.
    """
    return above_noise(np.geomspace(1e-9, 1, N_DEFAULT_ALPHAS) * weight_sum * at_zero, floor)


_STEPS_BELOW, _STEPS_ABOVE = 24, 8
_STEPS_AT_ONCE = 3
# Where the rows fix every coefficient the error is flat down to the rounding noise, and its least value
# wanders there: a decade has to gain this share of the error.
_LEAST_GAIN = 1e-4


def extended(grid: np.ndarray, *, floor: float) -> tuple[np.ndarray, slice]:
    """Return a default grid with values beyond its ends, in its own steps, and its place among them.

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
    """Return the errors of a grid, (m, k): of its part `base`, and beyond an end as long as that pays.

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


def _gains(outer: np.ndarray, inner: np.ndarray) -> bool:
    """Return whether the best of the outer scores is clearly below the best of the inner ones."""
    best, before = (np.min(some, initial=np.inf, where=np.isfinite(some)) for some in (outer, inner))
    return bool(best < (1 - _LEAST_GAIN) * before)


def gcv_may_overfit(dimension: float, n_rows: int) -> bool:
    """Return whether GCV may be far too optimistic at this effective dimension, or number of features."""
    return dimension > _MAX_GCV_SHARE * n_rows


def choose_alpha(errors: np.ndarray, weights: np.ndarray, *, alphas: np.ndarray) -> AlphaChoice:
    """Return the alpha, shared by all targets, of smallest weighted mean squared error.

    The score of an alpha is Σ_folds errors / Σ_folds weights, averaged over the targets. Of equal scores the
    largest alpha wins; an alpha with NaN in any fold or target never does. `errors` of shape (K, m, k) are
    the held-out sums of squares of K folds; GCV errors count as one fold of weight 1.
    """
    scores = np.sum(errors, axis=0).mean(axis=1) / np.sum(weights)
    usable = np.flatnonzero(np.isfinite(scores))
    if not len(usable):
        raise InputError(
            f"none of the {len(alphas)} alphas up to {np.max(alphas):g} gives a usable model; "
            "give larger alphas, or use dtype='float64'"
        )
    # lexsort orders by its last key first: the score, then falling alpha.
    index = int(usable[np.lexsort((-np.asarray(alphas)[usable], scores[usable]))[0]])
    return AlphaChoice(index, float(alphas[index]), float(scores[index]), scores)


# The final ridge model by Cholesky, and the posterior spread of its predictions.


@dataclass(frozen=True, eq=False)
class PosteriorFactor:
    """What the standard deviation of f(x) takes.

    std² = σ̂²·‖L⁻¹(z − z̄)‖² + σ̂²/W, with L Lᵀ = G + alpha·I; without an intercept the second term is absent
    and z̄ = 0. It is the uncertainty of the coefficients alone: far from the data it is too small if there
    are few features (D ≪ n), which cannot tell these rows from others.

    Attributes
    ----------
    L : ndarray of shape (D, D)
        Lower triangular.
    z_mean : ndarray of shape (D,)
    noise : ndarray of shape (k,)
        σ̂² = RSS / (W − effective dimension), per target.
    intercept_variance : float
        1/W, or 0 without an intercept; in units of σ̂².
    effective_dimension : float
        tr G (G + alpha·I)⁻¹, plus 1 for an intercept.
    """

    L: np.ndarray
    z_mean: np.ndarray
    noise: np.ndarray
    intercept_variance: float
    effective_dimension: float

    def __post_init__(self) -> None:
        lay_out(self, "L", "z_mean", "noise")

    def std(self, Z: np.ndarray) -> np.ndarray:
        """Return the standard deviation of f at feature rows, (r, D) → (r, k); D² flops a row."""
        U = solve_factor(self.L, (Z - self.z_mean).T, overwrite=True)
        spread = np.einsum("ij,ij->j", U, U) + self.intercept_variance
        return np.sqrt(np.outer(spread, self.noise))

    def std_at(self, block_map: Any, X: np.ndarray) -> np.ndarray:
        """Return the standard deviation of f at rows, (r, k)."""
        return self.std(block_map.apply(X).astype(np.float64))


def cholesky_factor(G: np.ndarray, alpha: float) -> np.ndarray:
    """Return lower triangular L with L Lᵀ = G + alpha·I, in one new D × D array.

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
    """Return coefficients (D, k) and intercepts (k,) at one alpha, or at one per target.

    Targets of equal alpha share a factorisation of D³/3 flops. Memory: one D × D array beside the system.
    """
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), system.yy.shape)
    coef = np.empty_like(system.B)
    for value in np.unique(alphas):
        group, L = alphas == value, cholesky_factor(system.G, value)
        coef[:, group] = cho_solve((L, True), system.B[:, group], check_finite=False)
        del L  # frees its memory before the next one is made
    return coef, system.intercept(coef)


def posterior_factor(system: RidgeSystem, alpha: float) -> PosteriorFactor:
    """Return the factor for standard deviations of predictions, of the model at one alpha.

    The effective dimension is D − alpha·tr(G + alpha·I)⁻¹ = D − alpha·‖L⁻¹‖²_F. 2/3·D³ flops, and two D × D
    arrays beside the system.

    Raises
    ------
    InputError
        If G + alpha·I is not positive definite, or the weight sum does not exceed the effective
        dimension, so that the noise cannot be estimated.
    """
    L = cholesky_factor(system.G, alpha)
    coef = cho_solve((L, True), system.B, check_finite=False)
    dimension = len(L) - alpha * float(np.linalg.norm(inverse_of_triangle(L))) ** 2 + system.fit_intercept
    freedom = system.weight - dimension
    if not freedom > 0:
        raise InputError(
            f"the noise cannot be estimated: the sample weights sum to {system.weight:g}, not above "
            f"the model's effective dimension {dimension:.6g}; give more rows, weights that count rows, "
            "or a larger alpha"
        )
    noise = system.residual(coef) / freedom
    intercept_variance = 1 / system.weight if system.fit_intercept else 0.0
    return PosteriorFactor(L, system.z_mean, noise, intercept_variance, dimension)
