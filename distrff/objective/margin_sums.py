"""What one pass over the rows tells of margin machines: value, gradient, curvature and a dual candidate.

Conventions
-----------
k machines f_j(x) = w_jᵀz(x) + b_j are evaluated at once: Σ s_ij ℓ(f_ij, y_ij) for the loss ℓ that counts,
and for its smooth *proxy* (ℓ itself where it is smooth) the row weights a_ij = −ℓ′_proxy(f_ij, y_ij), which
are the proxy's gradient and a candidate for the dual of ℓ. Sums over a > 0 and over a < 0 are kept apart,
because the dual's constraint Σ s_i a_i = 0 is met by shrinking one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from distrff.losses import Loss
from distrff.objective.row_weights import RowWeights, weighted_sum


@dataclass(frozen=True, eq=False)
class Sided:
    """Sums over rows with a > 0 and with a < 0: arrays whose axis of length 2 is the side."""

    weight: np.ndarray
    """Σ s·a, (k, 2)"""
    dual: np.ndarray
    """Σ s·ℓ*(−a), (k, 2)"""
    vector: np.ndarray
    """Σ s·a·z, (k, 2, D)"""


@dataclass(frozen=True, eq=False)
class MarginSums:
    """Sums over rows at one point (w_j, b_j) of each of k machines.

    Attributes
    ----------
    weight, value : ndarrays of shape (k,)
        Σ s and Σ s·ℓ(f, y) over the rows that a machine is fitted to.
    held_out : ndarray of shape (2, k)
        The same two over the rows that are held out of it.
    proxy_value, proxy_dual : ndarrays of shape (k,)
        Σ s·ℓ_proxy(f, y) and Σ s·ℓ_proxy*(−a).
    curvature : ndarray of shape (k,)
        Σ s·ℓ″_proxy.
    n_bending : ndarray of shape (k,)
        Rows with s·ℓ″_proxy > 0.
    sided : Sided
    """

    weight: np.ndarray
    value: np.ndarray
    held_out: np.ndarray
    proxy_value: np.ndarray
    proxy_dual: np.ndarray
    curvature: np.ndarray
    n_bending: np.ndarray
    sided: Sided

    def __add__(self, other: MarginSums) -> MarginSums:
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sided"}
        added = {name: part + getattr(other, name) for name, part in parts.items()}
        mine, theirs = self.sided, other.sided
        sided = Sided(mine.weight + theirs.weight, mine.dual + theirs.dual, mine.vector + theirs.vector)
        return MarginSums(**added, sided=sided)

    def of_features(self, feature_sums: Callable[[np.ndarray], np.ndarray]) -> MarginSums:
        """Return the sums over z for those over z's basis; `feature_sums` takes vectors in rows."""
        vector = self.sided.vector
        of_z = feature_sums(vector.reshape(-1, vector.shape[2])).reshape(*vector.shape[:2], -1)
        return replace(self, sided=replace(self.sided, vector=of_z))

    def gradient(self, machine: int) -> tuple[np.ndarray, float]:
        """Return Σ s·ℓ′_proxy·z and Σ s·ℓ′_proxy of one machine."""
        return -self.sided.vector[machine].sum(axis=0), -float(self.sided.weight[machine].sum())


def sided_weights(proxy: Loss, F: np.ndarray, Y: np.ndarray, weights: RowWeights) -> np.ndarray:
    """Return s·a of each row, those above zero apart from those below: shape (k, 2, r)."""
    weighted = (-weights.fitted * proxy.derivative(F, Y)).T
    return np.stack([np.maximum(weighted, 0), np.minimum(weighted, 0)], axis=1)


def margin_sums(
    loss: Loss, proxy: Loss, F: np.ndarray, Y: np.ndarray, weights: RowWeights, vector: np.ndarray
) -> MarginSums:
    """Return the sums over r rows.

    Parameters
    ----------
    loss, proxy : Loss
        The same one where the loss is smooth.
    F, Y : ndarrays of shape (r, k)
        Values f and targets y.
    weights : RowWeights
    vector : ndarray of shape (k, 2, D)
        `sided_weights` times the rows' features.
    """
    fitted = weights.fitted
    values = loss.value(F, Y)
    a = -proxy.derivative(F, Y)
    smooth = proxy is loss
    proxy_values = values if smooth else proxy.value(F, Y)
    own = -a * F - proxy_values  # the proxy's conjugate where its slope is −a, by Fenchel and Young
    conjugates = fitted * (own if smooth else loss.conjugate(a, Y))
    weighted = fitted * a
    above = np.maximum(weighted, 0).sum(axis=0)
    bends = fitted * proxy.second_derivative(F, Y)
    dual_above = np.where(a > 0, conjugates, 0).sum(axis=0)
    return MarginSums(
        weight=fitted.sum(axis=0),
        value=weighted_sum(fitted, values),
        held_out=weights.judged(values),
        proxy_value=weighted_sum(fitted, proxy_values),
        proxy_dual=weighted_sum(fitted, own),
        curvature=bends.sum(axis=0),
        n_bending=np.count_nonzero(bends, axis=0),
        sided=Sided(
            weight=np.stack([above, np.minimum(weighted, 0).sum(axis=0)], axis=-1),
            dual=np.stack([dual_above, conjugates.sum(axis=0) - dual_above], axis=-1),
            vector=vector,
        ),
    )
