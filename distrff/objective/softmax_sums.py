"""What one pass over the rows tells of softmax machines, whose outputs share one loss.

A machine f(x) = Wᵀz(x) + b has k outputs; a row of class c costs ℓ(f, c) = log Σ_j exp(f_j/σ) − f_c/σ.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from scipy.special import logsumexp


@dataclass(frozen=True, eq=False)
class SoftmaxSums:
    """Sums over rows at one point of each of m machines.

    Attributes
    ----------
    weight, value : ndarrays of shape (m,)
        Σ s and Σ s·ℓ over the rows that a machine is fitted to.
    held_out : ndarray of shape (2, m)
        The same two over the rows that are held out of it.
    curvature : ndarray of shape (m,)
        Σ s·Σ_j p_j(1 − p_j)/(kσ²), the mean of the diagonal of ℓ″.
    slope : ndarray of shape (m, D + 1, k)
        Σ s·z̃(p − e_c)ᵀ/σ for z̃ = [z | 1].
    """

    weight: np.ndarray
    value: np.ndarray
    held_out: np.ndarray
    curvature: np.ndarray
    slope: np.ndarray

    def __add__(self, other: SoftmaxSums) -> SoftmaxSums:
        return SoftmaxSums(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


def softmax_sums(
    F: np.ndarray,
    classes: np.ndarray,
    s: np.ndarray | None,
    Z: np.ndarray,
    held_out: np.ndarray | None = None,
    *,
    sigma: float,
) -> SoftmaxSums:
    """Return the sums over the rows of one tile.

    Parameters
    ----------
    F : ndarray of shape (r, m, k)
        Values of m machines.
    classes : ndarray of int of shape (r,)
        From 0 to k − 1.
    s : ndarray of shape (r,) or None
        Weights; None is all ones.
    Z : ndarray of shape (r, D)
    held_out : boolean ndarray of shape (r, m), optional
    sigma : float

    Notes
    -----
    2·r·D·k·m flops in the dtype of Z.
    """
    F = F / sigma
    total = logsumexp(F, axis=2)
    values = total - np.take_along_axis(F, classes[:, None, None], axis=2)[:, :, 0]
    weights = np.ones_like(values) if s is None else np.broadcast_to(s[:, None], values.shape)
    judged = np.zeros((2, values.shape[1]))
    if held_out is not None:
        away = np.where(held_out, weights, 0.0)
        judged = np.stack([away.sum(axis=0), (away * values).sum(axis=0)])
        weights = weights - away
    P = np.exp(F - total[:, :, None])
    curvature = (weights * (P * (1 - P)).mean(axis=2)).sum(axis=0) / sigma**2
    P -= classes[:, None, None] == np.arange(F.shape[2])
    P *= weights[:, :, None] / sigma
    flat = P.reshape(len(P), -1)
    by_z = (Z.T @ flat.astype(Z.dtype, copy=False)).astype(np.float64, copy=False)
    slope = np.concatenate([by_z, flat.sum(axis=0)[None]]).reshape(-1, *F.shape[1:]).transpose(1, 0, 2)
    return SoftmaxSums(weights.sum(axis=0), (weights * values).sum(axis=0), judged, curvature, slope)
