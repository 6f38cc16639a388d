"""Ridge of no more rows than features: folds and alphas on n × n products of rows, not on D × D Grams.

With C = S^½(Z − z̄) and R = S^½(Y − ȳ) of the rows that a model is fitted to (uncentred without an intercept),

    (CCᵀ + alpha·I) U = R,  W = CᵀU,  f(x) = ȳ + (z − z̄)ᵀW.

It is the same model as that of the normal equations (Golub and Van Loan, Matrix Computations, 4th edition,
section 2.1.4). K = ZZᵀ of all rows serves every fold: the products CCᵀ and those with held-out rows are parts
of K, centred.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from scipy.linalg import cho_solve

from distrff.errors import InputError
from distrff.solvers.ridge import (
    NOT_FINITE,
    FoldErrors,
    FoldGrams,
    GramProblem,
    PosteriorFactor,
    RidgeSolution,
    cholesky_factor,
    errors_on_fold,
    leading,
    no_weight,
    path_errors,
    path_ridge,
    posterior_of,
)


@dataclass(frozen=True, eq=False)
class RidgeRows:
    """Rows of a ridge problem, in float64.

    Attributes
    ----------
    Z : ndarray of shape (n, D)
    Y : ndarray of shape (n, k)
        Coded targets.
    s : ndarray of shape (n,)
        Weights.
    is_fitted, is_judged : ndarrays of bool of shape (n, n_folds)
        Whether each fold's model is fitted to a row, and whether the fold holds it out.
    K : ndarray of shape (n, n)
        ZZᵀ.
    """

    Z: np.ndarray
    Y: np.ndarray
    s: np.ndarray
    is_fitted: np.ndarray
    is_judged: np.ndarray
    K: np.ndarray

    def targets(self, problem: GramProblem) -> np.ndarray:
        """The coded targets with the problem's offset."""
        return self.Y if problem.offset is None else self.Y + problem.offset


def ridge_rows(
    Z: np.ndarray, Y: np.ndarray, s: np.ndarray, is_fitted: np.ndarray, is_judged: np.ndarray
) -> RidgeRows:
    """The rows with their products; raise InputError if these are not finite."""
    Z = np.ascontiguousarray(Z, dtype=np.float64)
    return RidgeRows(Z, Y, s, is_fitted, is_judged, products_of_rows(Z))


def products_of_rows(Z: np.ndarray) -> np.ndarray:
    """K = ZZᵀ; raise InputError if it is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        K = Z @ Z.T
    if not np.isfinite(K).all():
        raise InputError(NOT_FINITE)
    return K


def gram_of_rows(
    Z: np.ndarray,
    Y: np.ndarray,
    s: np.ndarray,
    is_fitted: np.ndarray,
    is_judged: np.ndarray,
    problem: GramProblem,
) -> np.ndarray:
    """The Gram Σ s·ttᵀ of a nested map: the largest that has no more features than rows.

    Counted are the most rows that a model of a fold is fitted to, if the fold holds any out. The offset is
    added to the targets. The Gram of all 1024 features of 1000 rows would take longer than a fold does.
    """
    n_left = is_fitted[:, is_judged.any(axis=0)].sum(axis=0).max(initial=0)
    small = max((size for size in problem.sizes if size <= n_left), default=0)
    Y = Y if problem.offset is None else Y + problem.offset
    return _gram(np.asarray(Z[:, :small], np.float64), Y, s)


def _gram(Z: np.ndarray, Y: np.ndarray, s: np.ndarray) -> np.ndarray:
    root = np.sqrt(s)[:, None]
    T = np.hstack([Z * root, root, Y * root])
    return T.T @ T


def _gram_of_some(rows: RidgeRows, chosen: np.ndarray, size: int, problem: GramProblem) -> np.ndarray:
    return _gram(rows.Z[chosen, :size], rows.targets(problem)[chosen], rows.s[chosen])


@dataclass(frozen=True, eq=False)
class _Training:
    """The rows that a fold's model is fitted to, for features times `scale`, and their products CCᵀ.

    `share` is s/Σs, which stands for the mean; zeros without an intercept.
    """

    training: np.ndarray  # their numbers
    root: np.ndarray
    share: np.ndarray
    mean: np.ndarray  # ⟨z_i, z̄⟩ of these rows
    square: float  # ‖z̄‖²
    scale: float
    H: np.ndarray  # CCᵀ, in Fortran order
    R: np.ndarray
    y_mean: np.ndarray

    @classmethod
    def of(cls, rows: RidgeRows, fold: int | None, scale: float, problem: GramProblem) -> Self:
        """The training rows of a fold, or all; raise InputError if they have no weight."""
        training = np.arange(len(rows.s)) if fold is None else np.flatnonzero(rows.is_fitted[:, fold])
        s, Y = rows.s[training], rows.targets(problem)[training]
        weight = float(s.sum())
        if not weight > 0:
            raise InputError(no_weight(weight))
        root, share = np.sqrt(s), s / weight if problem.fit_intercept else np.zeros(len(s))
        # Symmetric: its transpose is the same, in Fortran order.
        H = (rows.K.copy() if fold is None else rows.K.take(training, 0).take(training, 1)).T
        mean = H @ share
        square, y_mean = float(mean @ share), share @ Y
        H -= mean[:, None] - square
        H -= mean
        H *= root[:, None] * scale**2
        H *= root
        return cls(training, root, share, mean, square, scale, H, root[:, None] * (Y - y_mean), y_mean)

    def models(self, Z: np.ndarray, U: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """W = CᵀU, (m, D, k), and the intercepts, (m, k), for m solutions; Z is of all rows."""
        m, _, k = U.shape
        # Zeros for the other rows, as a copy of Z without them would take as long as the product.
        spread, share = np.zeros((len(Z), m, k)), np.zeros(len(Z))
        spread[self.training] = (U * self.root[:, None]).transpose(1, 0, 2)
        share[self.training] = self.share
        z_mean = share @ Z
        coef = (Z.T @ spread.reshape(len(Z), m * k)).reshape(-1, m, k).transpose(1, 0, 2)
        coef -= z_mean[:, None] * spread.sum(axis=0)[:, None]
        return coef, self.y_mean - z_mean @ coef

    def products_with(self, K: np.ndarray, others: np.ndarray) -> np.ndarray:
        """(z − z̄)ᵀCᵀ for some other rows."""
        H = K.take(others, 0).take(self.training, 1)
        H -= (H @ self.share)[:, None] - self.square
        H -= self.mean
        H *= self.root * self.scale**2
        return H


def row_fold_errors(
    total: np.ndarray,
    rows: RidgeRows,
    fold: int,
    grids: list[np.ndarray],
    problem: GramProblem,
    bases: list[slice] | None = None,
    with_solutions: bool = False,
) -> FoldErrors:
    """The errors of `distrff.solvers.ridge.fold_errors`, of `rows` and their `gram_of_rows`.

    A size beyond that of `total` takes 4/3·m³ flops for the m rows that are left in place of 4/3·D³. One
    reduction of all n rows would serve every fold as well: without its rows I the residuals are C_II⁻¹(C y)_I
    with C = (K + alpha·I)⁻¹, centred. But its block takes 2·n·|I|² flops for each alpha and fold, for 25
    alphas of 1000 rows more than five reductions of 800 rows.
    """
    held_out, by_features = rows.is_judged[:, fold], len(total) - 1 - problem.n_targets
    tried = [size for size, grid in zip(problem.sizes, grids, strict=True) if len(grid)]
    small = max((size for size in tried if size <= by_features), default=0)
    of_fold = _gram_of_some(rows, held_out, small, problem)
    left_out = ~rows.is_fitted[:, fold]
    used = of_fold if np.array_equal(left_out, held_out) else _gram_of_some(rows, left_out, small, problem)
    grams = FoldGrams(leading(total, small, problem.n_targets), used, of_fold)
    found = FoldErrors([], float(rows.s[held_out].sum()), {})
    for i, (size, grid) in enumerate(zip(problem.sizes, grids, strict=True)):
        base = None if bases is None else bases[i]
        kept = found.solutions if with_solutions and size == problem.sizes[-1] else None
        if not len(grid):
            errors = np.empty((0, problem.n_targets))
        elif size <= by_features:
            errors = errors_on_fold(grams, size, grid, problem, base, kept)
        else:
            errors = _errors_by_rows(rows, fold, size, grid, problem, base, kept)
        found.errors.append(errors)
    return found


def _errors_by_rows(
    rows: RidgeRows,
    fold: int,
    size: int,
    grid: np.ndarray,
    problem: GramProblem,
    base: slice | None,
    solutions: dict[float, tuple[np.ndarray, np.ndarray]] | None,
) -> np.ndarray:
    if size < rows.Z.shape[1]:
        part = rows.Z[:, :size]
        rows = replace(rows, Z=part, K=part @ part.T)
    held_out = np.flatnonzero(rows.is_judged[:, fold])
    left = _Training.of(rows, fold, problem.feature_scale(size), problem)
    across, s = left.products_with(rows.K, held_out), rows.s[held_out]
    residual, path = rows.targets(problem)[held_out] - left.y_mean, path_ridge(left.H)

    def errors_at(alphas: np.ndarray) -> np.ndarray:
        U = path.solve(left.R, alphas)
        m, n, k = U.shape
        if solutions is not None:
            solutions.update(zip(alphas.tolist(), zip(*left.models(rows.Z, U), strict=True), strict=True))
        F = (across @ U.transpose(1, 0, 2).reshape(n, m * k)).reshape(-1, m, k)
        return s @ np.square(residual[:, None] - F).transpose(1, 0, 2)

    return path_errors(errors_at, grid, base)


def row_solution_without(
    total: np.ndarray, rows: RidgeRows, fold: int | None, alpha: np.ndarray, problem: GramProblem
) -> RidgeSolution:
    """The solution of `distrff.solvers.ridge.solution_without`; `total` is not needed."""
    left = _Training.of(rows, fold, 1.0, problem)
    U = np.empty_like(left.R)
    alphas = np.broadcast_to(np.asarray(alpha, dtype=np.float64), left.y_mean.shape)
    for value in np.unique(alphas):
        group = alphas == value
        U[:, group] = cho_solve((cholesky_factor(left.H, value), True), left.R[:, group], check_finite=False)
    # What is left of a row is R − CCᵀU = alpha·U.
    residual, total_squares = np.square(alphas * U).sum(axis=0), np.square(left.R).sum(axis=0)
    (coef,), (intercept,) = left.models(rows.Z, U[None])
    return RidgeSolution(coef, intercept, residual, total_squares)


def without_products(rows: RidgeRows) -> RidgeRows:
    """The rows alone, which is all that `row_posterior` takes."""
    return replace(rows, K=np.empty((0, 0)))


def row_posterior(rows: RidgeRows, alpha: float, problem: GramProblem) -> PosteriorFactor:
    """The posterior of `distrff.solvers.ridge.posterior_of`: its factor is of D × D, and so is the Gram."""
    return posterior_of(_gram(rows.Z, rows.targets(problem), rows.s), alpha, problem)
