"""Which alpha: the grid, its errors by cross-validation or GCV from Grams alone, and the choice.

A learning curve in the number of features is the same three steps for each nested size:
`cv_errors(..., n_features=D', feature_scale=c)` for every fold (or `gcv`), then `choose_alpha`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from distrff.errors import InputError
from distrff.objective import held_out_error, ridge_system
from distrff.solvers.band import BandRidge

N_DEFAULT_ALPHAS = 25
# RSS/W carries about 1e-15 of the targets' mean square by cancellation; divided by (1 − df/n)² ≥ 1e-12
# that stays near 1e-3 of it. Closer to interpolation than this, GCV is a ratio of two roundings.
_LEAST_FREEDOM = 1e-6
# GCV takes df/n for the leverage of every row. Rows far from all others have one near 1 while df is still a
# small part of n: small alphas make their residuals vanish, and the others pay. Of 13,500 rows in clusters or
# with heavy tails the test error was 1 to 2 % above that of folds at df/n = 0.04, 4 to 30 % at 0.12 to 0.15.
_MOST_GCV_SHARE = 1 / 20


@dataclass(frozen=True, eq=False)
class AlphaChoice:
    """The alpha of least error.

    Attributes
    ----------
    index : int
        Its place in the grid.
    alpha : float
    score : float
        Its weighted mean squared error, averaged over targets.
    scores : ndarray of shape (m,)
        The same for the whole grid; NaN where there is no usable machine.
    """

    index: int
    alpha: float
    score: float
    scores: np.ndarray


def noise_floor(
    weight_sum: float, n_rows: int, *, tile_rows: int, n_features: int, at_zero: float, dtype: np.dtype
) -> float:
    """Return the alpha below which a Gram of products in `dtype` is noise: 10·u·Σs·√(T/(n·D))·k(0).

    u is the unit roundoff (2⁻²⁴ for float32, 2⁻⁵³ for float64). An entry of ZᵀZ is a sum of n/T tiles,
    each rounded to about u·T·k(0)/D independently, so its error is about u·√(nT)·k(0)/D; a symmetric
    matrix of such entries has a norm of 2·√D times that, for which 10 is allowed here.

    Parameters
    ----------
    weight_sum, n_rows : float, int
        Σ s_i and n; Σ s_i = n without weights.
    tile_rows : int
        T, rows whose products are summed in `dtype` before they are added in float64.
    n_features : int
        D, or D' of a nested machine.
    at_zero : float
        k(0), the mean of ‖z‖².
    """
    unit_roundoff = float(np.finfo(dtype).eps) / 2
    return 10 * unit_roundoff * weight_sum * float(np.sqrt(tile_rows / (n_rows * n_features))) * at_zero


def above_noise(alphas: np.ndarray, floor: float) -> tuple[np.ndarray, int]:
    """Return the alphas that are not below the noise floor, in their order, and how many were dropped.

    Raises
    ------
    InputError
        If none is left.
    """
    alphas = np.asarray(alphas, dtype=np.float64)
    kept = alphas[alphas >= floor]
    if not len(kept):
        raise InputError(
            f"all alphas are below the rounding noise of the Gram, {floor:.3g}; "
            "use dtype='float64' or larger alphas"
        )
    return kept, len(alphas) - len(kept)


def default_alphas(weight_sum: float, at_zero: float, *, floor: float) -> tuple[np.ndarray, int]:
    """Return the default grid, ascending, and how many of its values were dropped at the noise floor.

    25 values, geometric from Σs·k(0)·1e-9 to Σs·k(0), which bounds the largest eigenvalue of G.
    """
    return above_noise(np.geomspace(1e-9, 1, N_DEFAULT_ALPHAS) * weight_sum * at_zero, floor)


def cv_errors(
    A_total: np.ndarray,
    A_fold: np.ndarray,
    *,
    alphas: np.ndarray,
    n_targets: int,
    fit_intercept: bool,
    n_features: int | None = None,
    feature_scale: float = 1.0,
) -> tuple[np.ndarray, float]:
    """Return one fold's errors under the machines fitted to all other rows, for the whole grid.

    Parameters
    ----------
    A_total, A_fold : ndarrays of shape (p, p)
        The Grams of all rows and of the fold's; not changed.
    alphas : ndarray of shape (m,)

    Returns
    -------
    errors : ndarray of shape (m, k)
        Weighted sums of squared errors over the fold, in the squared units of the Gram's targets; NaN where
        rounding leaves no usable machine.
    weight : float
        The fold's weight sum.

    Raises
    ------
    InputError
        If the other rows have no weight.

    Notes
    -----
    About 4/3·D³ flops and at most two D × D arrays beside the inputs: the complement and its G, of
    which the second is reduced in place after the first is gone; then three of shape (m·k, p).
    """
    system = ridge_system(
        A_total - A_fold,
        n_targets,
        fit_intercept=fit_intercept,
        n_features=n_features,
        feature_scale=feature_scale,
    )
    coef = BandRidge(system.G, overwrite_G=True).solve(system.B, alphas)
    errors = held_out_error(A_fold, coef, system.intercept(coef), feature_scale=feature_scale)
    position = len(A_fold) - 1 - n_targets
    return errors, float(A_fold[position, position])


def gcv(
    A: np.ndarray,
    alphas: np.ndarray,
    *,
    n_targets: int,
    n_rows: int,
    fit_intercept: bool,
    n_features: int | None = None,
    feature_scale: float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the generalised cross-validation error (RSS/W) / (1 − df/n)² and df, for the whole grid.

    df = tr G (G + alpha·I)⁻¹, plus 1 for an intercept.

    Parameters
    ----------
    A : ndarray of shape (p, p)
        The Gram of all rows; not changed.
    alphas : ndarray of shape (m,)
    n_rows : int
        n, the number of rows in A, whatever their weights.

    Returns
    -------
    errors : ndarray of shape (m, k)
        NaN where the machine interpolates (1 − df/n < 1e-6), or where rounding leaves none.
    dimensions : ndarray of shape (m,)
        df, the effective dimension.

    Notes
    -----
    Like `cv_errors`, with one D × D array beside the input.

    References
    ----------
    Golub, Heath and Wahba (1979), Technometrics 21(2), p. 216.
    """
    system = ridge_system(
        A, n_targets, fit_intercept=fit_intercept, n_features=n_features, feature_scale=feature_scale
    )
    path = BandRidge(system.G, overwrite_G=True)
    coef = path.solve(system.B, alphas)
    residual = held_out_error(A, coef, system.intercept(coef), feature_scale=feature_scale)
    dimensions = path.effective_dimension(alphas, max(0, n_rows - fit_intercept)) + fit_intercept
    freedom = 1 - dimensions / n_rows
    freedom[freedom < _LEAST_FREEDOM] = np.nan
    return residual / system.weight / freedom[:, None] ** 2, dimensions


def gcv_may_overfit(dimension: float, n_rows: int) -> bool:
    """Return whether a machine of this effective dimension, or of at most as many features, may be one whose
    generalised cross-validation error is far too small."""
    return dimension > _MOST_GCV_SHARE * n_rows


def choose_alpha(errors: np.ndarray, weights: np.ndarray, *, alphas: np.ndarray) -> AlphaChoice:
    """Return the alpha, shared by all targets, of least weighted mean squared error.

    The score of an alpha is Σ_folds errors / Σ_folds weights, averaged over the targets. Among equals the
    largest alpha wins; an alpha with NaN in any fold or target cannot.

    Parameters
    ----------
    errors : ndarray of shape (K, m, k)
        Held-out sums of squares of K folds; for GCV its values as one fold of weight 1.
    weights : ndarray of shape (K,)
    alphas : ndarray of shape (m,)

    Raises
    ------
    InputError
        If no alpha is usable.
    """
    scores = np.sum(errors, axis=0).mean(axis=1) / np.sum(weights)
    usable = np.flatnonzero(np.isfinite(scores))
    if not len(usable):
        raise InputError(
            f"none of the {len(alphas)} alphas up to {np.max(alphas):g} gives a usable machine; "
            "give larger alphas, or use dtype='float64'"
        )
    # lexsort orders by its last key first: the score, then falling alpha.
    index = int(usable[np.lexsort((-np.asarray(alphas)[usable], scores[usable]))[0]])
    return AlphaChoice(index, float(alphas[index]), float(scores[index]), scores)
