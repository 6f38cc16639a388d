"""Ridge from the Grams of folds: the steps that run where the Grams are, each a plain function of arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError
from distrff.objective import ridge_system
from distrff.solvers.cholesky import PosteriorFactor, posterior_factor, solve_ridge
from distrff.solvers.packed import unpack
from distrff.solvers.ridge_path import cv_errors, gcv


@dataclass(frozen=True)
class GramProblem:
    """What is asked of a Gram, whatever the alpha.

    Parameters
    ----------
    n_rows, n_targets : int
    fit_intercept : bool
    sizes : tuple of int
        Numbers of leading features to look at, ascending; the last is D.
    rescaled : bool
        Whether a nested machine's features are to be multiplied by √(D/D').
    offset : ndarray of shape (k,) or None
        Added to the coded targets; a machine without intercept needs back what was
        subtracted from them.
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


@dataclass(frozen=True)
class RidgeMachine:
    """One solution, in the units of the coded targets.

    Parameters
    ----------
    coef : ndarray of shape (D, k)
    intercept : ndarray of shape (k,)
    residual : ndarray of shape (k,)
        Weighted residual sums of squares.
    total : ndarray of shape (k,)
        Weighted squared deviations of the targets (from their mean, with an intercept).
    """

    coef: np.ndarray
    intercept: np.ndarray
    residual: np.ndarray
    total: np.ndarray


def recoded(A: np.ndarray, ratio: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return the Gram of [z | 1 | ratio·y + offset] from that of [z | 1 | y].

    Parameters
    ----------
    A : ndarray of shape (..., p, p)
    ratio, offset : ndarray of shape (k,)
    """
    k = len(ratio)
    one, A = A.shape[-1] - k - 1, A.copy()
    A[..., one + 1 :] = A[..., one + 1 :] * ratio + A[..., one, None] * offset
    A[..., one + 1 :, :] = A[..., one + 1 :, :] * ratio[:, None] + A[..., one, None, :] * offset[:, None]
    return A


def fold_of(parts: list[np.ndarray], fold: int) -> np.ndarray:
    """Return the Gram of a fold, of shape (p, p), from parts that hold all folds or one each.

    Parts are stacks of matrices, full or packed; a packed one is unpacked into a new array.
    """
    A = parts[0][fold] if len(parts) == 1 else parts[fold][0]
    return A if A.ndim == 2 else unpack(A)


def total_gram(parts: list[np.ndarray], problem: GramProblem) -> np.ndarray:
    """Return the Gram of all rows, of shape (p, p), added in the order of the folds.

    Raises
    ------
    InputError
        If it is not finite: columns or targets are too large for the dtype of the products.
    """
    n_folds = len(parts[0]) if len(parts) == 1 else len(parts)
    total = fold_of(parts, 0).copy()
    for fold in range(1, n_folds):
        total += fold_of(parts, fold)
    if not np.isfinite(total).all():
        raise InputError(
            "the Gram of the rows is not finite: some values are too large for the products' dtype; "
            "use scale='standard' or dtype='float64'"
        )
    return _with_offset(total, problem)


def _with_offset(A: np.ndarray, problem: GramProblem) -> np.ndarray:
    return A if problem.offset is None else recoded(A, np.ones(problem.n_targets), problem.offset)


def fold_errors(
    total: np.ndarray, parts: list[np.ndarray], fold: int, grids: list[np.ndarray], problem: GramProblem
) -> tuple[list[np.ndarray], float]:
    """Return the held-out errors of one fold over each size's grid of alphas, and the fold's weight.

    Returns
    -------
    errors : list of ndarray of shape (n_alphas, k)
        One a size of the problem: summed squares in coded units.
    weight : float
    """
    held_out = _with_offset(fold_of(parts, fold), problem)
    errors, weight = [], 0.0
    for size, alphas in zip(problem.sizes, grids, strict=True):
        at_size, weight = cv_errors(
            total,
            held_out,
            alphas=alphas,
            n_targets=problem.n_targets,
            fit_intercept=problem.fit_intercept,
            n_features=size,
            feature_scale=problem.feature_scale(size),
        )
        errors.append(at_size)
    return errors, weight


def fold_weight(parts: list[np.ndarray], fold: int, problem: GramProblem) -> float:
    """Return Σs of a fold."""
    one = -1 - problem.n_targets
    return float(fold_of(parts, fold)[one, one])


def gcv_errors(
    total: np.ndarray, size: int, alphas: np.ndarray, problem: GramProblem
) -> tuple[np.ndarray, np.ndarray]:
    """Return what `gcv` does for one size: errors of shape (n_alphas, k), and effective dimensions."""
    return gcv(
        total,
        alphas,
        n_targets=problem.n_targets,
        n_rows=problem.n_rows,
        fit_intercept=problem.fit_intercept,
        n_features=size,
        feature_scale=problem.feature_scale(size),
    )


def final_machine(total: np.ndarray, alpha: np.ndarray, problem: GramProblem) -> RidgeMachine:
    """Return the machine of all features at one alpha a target."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    coef, intercept = solve_ridge(system, alpha)
    return RidgeMachine(coef, intercept, system.residual(coef), system.yy)


def posterior_of(total: np.ndarray, alpha: float, problem: GramProblem) -> PosteriorFactor:
    """Return what standard deviations of f(x) need; its noise is in squared coded units."""
    system = ridge_system(total, problem.n_targets, fit_intercept=problem.fit_intercept)
    return posterior_factor(system, alpha)
