"""What a sweep would sum for the solvers, from rows in memory."""

import numpy as np

from distrff.solvers.objective import Evaluation, Loss, MarginSums, RowWeights, margin_sums, sided_weights


def gram(Z: np.ndarray, Y: np.ndarray, s: np.ndarray | None = None) -> np.ndarray:
    """Return Σ s·ttᵀ over the rows t = [z | 1 | y]."""
    T = np.column_stack([Z, np.ones(len(Z)), Y])
    if s is not None:
        T *= np.sqrt(s)[:, None]
    return T.T @ T


def sums_at(
    Z: np.ndarray,
    y: np.ndarray,
    s: np.ndarray | None,
    x: np.ndarray,
    loss: Loss,
    proxy: Loss | None = None,
    *,
    fit_intercept: bool = True,
) -> MarginSums:
    """Return the sums of one binary problem at x."""
    proxy = loss if proxy is None else proxy
    F = (Z @ x[:-1] + x[-1] if fit_intercept else Z @ x)[:, None]
    Y, weights = y[:, None], RowWeights.of(s, F.shape)
    return margin_sums(loss, proxy, F, Y, weights, sided_weights(proxy, F, Y, weights) @ Z)


def evaluation(
    C: float,
    Z: np.ndarray,
    y: np.ndarray,
    s: np.ndarray | None,
    x: np.ndarray,
    loss: Loss,
    proxy: Loss | None = None,
    *,
    fit_intercept: bool = True,
) -> Evaluation:
    """Return the evaluation of one binary problem at x."""
    sums = sums_at(Z, y, s, x, loss, proxy, fit_intercept=fit_intercept)
    return Evaluation.of(C, sums, 0, x, fit_intercept=fit_intercept)
