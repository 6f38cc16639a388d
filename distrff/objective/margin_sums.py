"""What one pass over the rows tells of margin machines: value, gradient, curvature and a dual candidate.

Conventions
-----------
k machines f_j(x) = w_jᵀz(x) + b_j are evaluated at once: Σ s_ij ℓ(f_ij, y_ij) for the loss ℓ that counts,
and for its smooth *proxy* (ℓ itself where it is smooth) the row weights a_ij = −ℓ′_proxy(f_ij, y_ij), which
are the proxy's gradient and a candidate for the dual of ℓ. Sums over a > 0 and over a < 0 are kept apart,
because the dual's constraint Σ s_i a_i = 0 is met by shrinking one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from distrff.losses import Loss

_FEW_ROWS = 8


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
    sided : Sided
    """

    weight: np.ndarray
    value: np.ndarray
    held_out: np.ndarray
    proxy_value: np.ndarray
    proxy_dual: np.ndarray
    curvature: np.ndarray
    sided: Sided

    def __add__(self, other: MarginSums) -> MarginSums:
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "sided"}
        added = {name: part + getattr(other, name) for name, part in parts.items()}
        mine, theirs = self.sided, other.sided
        sided = Sided(mine.weight + theirs.weight, mine.dual + theirs.dual, mine.vector + theirs.vector)
        return MarginSums(**added, sided=sided)

    def gradient(self, machine: int) -> tuple[np.ndarray, float]:
        """Return Σ s·ℓ′_proxy·z and Σ s·ℓ′_proxy of one machine."""
        return -self.sided.vector[machine].sum(axis=0), -float(self.sided.weight[machine].sum())


def margin_sums(
    loss: Loss,
    proxy: Loss,
    F: np.ndarray,
    Y: np.ndarray,
    s: np.ndarray | None,
    Z: np.ndarray,
    held_out: np.ndarray | None = None,
) -> MarginSums:
    """Return the sums over the rows of one tile.

    Parameters
    ----------
    loss, proxy : Loss
        The same one where the loss is smooth.
    F, Y : ndarrays of shape (r, k)
        Values f and targets y.
    s : ndarray of shape (r,) or None
        Weights; None is all ones.
    Z : ndarray of shape (r, D)
    held_out : boolean ndarray of shape (r, k), optional
        Rows that a machine is judged on instead of being fitted to.

    Notes
    -----
    4·r·D·k flops in the dtype of Z; the sums over few numbers a row are float64.
    """
    values = loss.value(F, Y)
    weights = np.ones_like(values) if s is None else np.broadcast_to(s[:, None], values.shape)
    judged = np.zeros((2, F.shape[1]))
    if held_out is not None:
        judged = np.stack([np.where(held_out, weights, 0).sum(axis=0), _sum(held_out * weights, values)])
        weights = np.where(held_out, 0.0, weights)
    a = -proxy.derivative(F, Y)
    smooth = proxy is loss
    proxy_values = values if smooth else proxy.value(F, Y)
    own = -a * F - proxy_values  # the proxy's conjugate where its slope is −a, by Fenchel and Young
    conjugates = weights * (own if smooth else loss.conjugate(a, Y))
    weighted = weights * a
    sides = np.stack([np.maximum(weighted.T, 0), np.minimum(weighted.T, 0)], axis=1)  # (k, 2, r)
    above = np.where(a > 0, conjugates, 0).sum(axis=0)
    return MarginSums(
        weight=weights.sum(axis=0),
        value=_sum(weights, values),
        held_out=judged,
        proxy_value=_sum(weights, proxy_values),
        proxy_dual=_sum(weights, own),
        curvature=_sum(weights, proxy.second_derivative(F, Y)),
        sided=Sided(
            weight=sides.sum(axis=2),
            dual=np.stack([above, conjugates.sum(axis=0) - above], axis=-1),
            vector=pulled_back(sides.reshape(-1, len(F)), Z).reshape(F.shape[1], 2, -1),
        ),
    )


def pulled_back(S: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """Return SZ in float64, multiplied in the dtype of Z: (m, r) × (r, D) → (m, D).

    A few rows are multiplied one by one: BLAS takes two to five times as long for them together.
    """
    S = S.astype(Z.dtype, copy=False)
    product = np.stack([row @ Z for row in S]) if len(S) <= _FEW_ROWS else S @ Z
    return product.astype(np.float64, copy=False)


def _sum(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    return np.einsum("ij,ij->j", weights, values)
