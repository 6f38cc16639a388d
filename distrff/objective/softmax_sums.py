"""What one pass over the rows tells of softmax machines, whose outputs share one loss.

A machine f(x) = Wᵀz(x) + b has k outputs; a row of class c costs ℓ(f, c) = log Σ_j exp(f_j/σ) − f_c/σ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import logsumexp

from distrff.objective.row_weights import RowWeights, weighted_sum


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

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> SoftmaxSums:
        """Return the sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        of_z = [feature_sums(slope[:-1].T).T for slope in self.slope]
        return replace(self, slope=np.concatenate([np.stack(of_z), self.slope[:, -1:]], axis=1))


def softmax_slopes(F: np.ndarray, classes: np.ndarray, weights: RowWeights, *, sigma: float) -> np.ndarray:
    """Return s·(p − e_c)/σ of each row, of the shape (r, m, k) of F."""
    return _slopes(_probabilities(F, sigma)[0], classes, weights, sigma)


def softmax_sums(
    F: np.ndarray, classes: np.ndarray, weights: RowWeights, vector: np.ndarray, *, sigma: float
) -> SoftmaxSums:
    """Return the sums over r rows.

    Parameters
    ----------
    F : ndarray of shape (r, m, k)
        Values of m machines.
    classes : ndarray of int of shape (r,)
        From 0 to k − 1.
    weights : RowWeights
    vector : ndarray of shape (m, k, D)
        `softmax_slopes` times the rows' features.
    sigma : float
    """
    P, total = _probabilities(F, sigma)
    values = total - np.take_along_axis(F, classes[:, None, None], axis=2)[:, :, 0] / sigma
    fitted = weights.fitted
    curvature = (fitted * (P * (1 - P)).mean(axis=2)).sum(axis=0) / sigma**2
    by_intercept = _slopes(P, classes, weights, sigma).sum(axis=0)[:, None]
    return SoftmaxSums(
        weight=fitted.sum(axis=0),
        value=weighted_sum(fitted, values),
        held_out=weights.judged(values),
        curvature=curvature,
        slope=np.concatenate([vector.transpose(0, 2, 1), by_intercept], axis=1),
    )


def _probabilities(F: np.ndarray, sigma: float) -> tuple[np.ndarray, np.ndarray]:
    """Return p of shape (r, m, k), and the logarithm of what they were divided by."""
    F = F / sigma
    total = logsumexp(F, axis=2)
    return np.exp(F - total[:, :, None]), total


def _slopes(P: np.ndarray, classes: np.ndarray, weights: RowWeights, sigma: float) -> np.ndarray:
    own = classes[:, None, None] == np.arange(P.shape[2])
    return (P - own) * (weights.fitted[:, :, None] / sigma)
