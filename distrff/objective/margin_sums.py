"""What one pass over the rows tells of margin machines: value, gradient, curvature and dual candidates.

Conventions
-----------
k machines f_j(x) = w_jᵀz(x) + b_j, one a target, are evaluated at once: Σ s_i ℓ(f_ij, y_ij) for the loss ℓ
that counts, and for each of c *proxies* of it (ℓ itself if it is smooth, else smoothed versions) the row
weights a_ij = −ℓ′_proxy(f_ij, y_ij), which are the proxy's gradient and a candidate for the dual of ℓ. Sums
over a > 0 and over a < 0 are kept apart, because the dual's constraint Σ s_i a_i = 0 is met by
shrinking one of them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from distrff.losses import Loss


@dataclass(frozen=True, eq=False)
class Sided:
    """Sums over rows with a > 0 and with a < 0: arrays whose axis of length 2 is the side."""

    weight: np.ndarray
    """Σ s·a, (c, k, 2)"""
    dual: np.ndarray
    """Σ s·ℓ*(−a), (c, k, 2)"""
    vector: np.ndarray
    """Σ s·a·z, (c, k, 2, D)"""


@dataclass(frozen=True, eq=False)
class MarginSums:
    """Sums over rows at one point (w_j, b_j) of each of k machines, with c proxies of the loss.

    Attributes
    ----------
    value : ndarray of shape (k,)
        Σ s·ℓ(f, y).
    proxy_value, proxy_dual : ndarrays of shape (c, k)
        Σ s·ℓ_proxy(f, y) and Σ s·ℓ_proxy*(−a).
    curvature : ndarray of shape (c, k)
        Σ s·ℓ″_proxy.
    sided : Sided
    """

    value: np.ndarray
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

    def gradient(self, proxy: int, output: int) -> tuple[np.ndarray, float]:
        """Return Σ s·ℓ′_proxy·z and Σ s·ℓ′_proxy of one machine."""
        return -self.sided.vector[proxy, output].sum(axis=0), -float(self.sided.weight[proxy, output].sum())


def margin_sums(
    loss: Loss, proxies: tuple[Loss, ...], F: np.ndarray, Y: np.ndarray, s: np.ndarray | None, Z: np.ndarray
) -> MarginSums:
    """Return the sums over the rows of one tile.

    Parameters
    ----------
    F, Y : ndarrays of shape (r, k)
        Values f and targets y.
    s : ndarray of shape (r,) or None
        Weights; None is all ones.
    Z : ndarray of shape (r, D)

    Notes
    -----
    4·r·D·k flops a proxy, in the dtype of Z; the sums over few numbers a row are float64.
    """
    weights = np.ones((len(F), 1)) if s is None else s[:, None]
    values = loss.value(F, Y)
    proxy_value, proxy_dual, curvature, weight, dual, vector = [], [], [], [], [], []
    for proxy in proxies:
        a = -proxy.derivative(F, Y)
        above = a > 0
        proxy_values = values if proxy == loss else proxy.value(F, Y)
        own = -a * F - proxy_values  # the proxy's conjugate where its slope is −a, by Fenchel and Young
        conjugates = own if proxy == loss else loss.conjugate(a, Y)
        proxy_value.append((weights * proxy_values).sum(axis=0))
        proxy_dual.append((weights * own).sum(axis=0))
        curvature.append((weights * proxy.second_derivative(F, Y)).sum(axis=0))
        by_side = np.stack([above, ~above], axis=-1) * weights[:, :, None]  # (r, k, 2)
        sides = a[:, :, None] * by_side
        weight.append(sides.sum(axis=0))
        dual.append((conjugates[:, :, None] * by_side).sum(axis=0))
        flat = sides.reshape(len(F), -1).astype(Z.dtype, copy=False)
        vector.append((flat.T @ Z).reshape(F.shape[1], 2, -1).astype(np.float64, copy=False))
    return MarginSums(
        (weights * values).sum(axis=0),
        np.stack(proxy_value),
        np.stack(proxy_dual),
        np.stack(curvature),
        Sided(np.stack(weight), np.stack(dual), np.stack(vector)),
    )
