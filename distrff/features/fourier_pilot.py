"""The pilot of Fourier features: a small ridge from its Gram."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh

from distrff.features.frequencies import draw_frequencies
from distrff.features.pilot import Pilot, PilotRows
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels import Kernel
from distrff.random_streams import child_seed

PILOT_COMPONENTS = 1024
# From the rounding noise of a float32 Gram of so many rows upwards.
_ALPHAS_PER_ROW = np.logspace(-7.5, 0, 16)


class FourierPilot:
    """Ridge on at most 1024 iid Fourier features.

    Parameters
    ----------
    rows : PilotRows
    n_components : int
        Of the machine; the pilot has no more.
    """

    def __init__(self, rows: PilotRows, *, n_components: int) -> None:
        self._rows = rows
        self._seed = child_seed(rows.seed, "length scale pilot")
        self._n_frequencies = max(1, min(n_components, PILOT_COMPONENTS) // 2)

    @property
    def description(self) -> str:
        return f"a ridge on {2 * self._n_frequencies} features"

    def held_out_error(self, kernel: Kernel) -> float:
        """Return the least weighted mean squared error on the held-out rows over all alphas."""
        T = self._augmented_features(kernel)
        held_out, train = T[: self._rows.n_held_out], T[self._rows.n_held_out :]
        A_train = (train.T @ train).astype(np.float64)
        A_held_out = (held_out.T @ held_out).astype(np.float64)
        return _least_error(A_train, A_held_out, self._rows.Y.shape[1])

    def _augmented_features(self, kernel: Kernel) -> np.ndarray:
        """Return the rows [z | 1 | y] · √s in float32."""
        X, Y, m = self._rows.X, self._rows.Y, self._n_frequencies
        W = draw_frequencies(kernel, m, X.shape[1], sampling="iid", seed=self._seed)
        D = 2 * m
        T = np.empty((len(X), D + 1 + Y.shape[1]), np.float32)
        paired_cos_sin((X @ W).astype(np.float32), T[:, :D], float(np.sqrt(1.0 / m)))
        T[:, D] = 1.0
        T[:, D + 1 :] = Y
        T *= np.sqrt(self._rows.s)[:, None].astype(np.float32)
        return T


class FourierPiloted:
    """Part of maps of n_components whose kernel's automatic width is judged by Fourier features."""

    n_components: int

    def _pilot(self, rows: PilotRows) -> Pilot:
        return FourierPilot(rows, n_components=int(self.n_components))

    def _pilot_flops(self, n_rows: int, n_columns: int) -> float:
        D = float(min(self.n_components, PILOT_COMPONENTS))
        return n_rows * D**2 + 9 * D**3


def _least_error(A: np.ndarray, A_held_out: np.ndarray, n_targets: int) -> float:
    """Return the least held-out error of ridge over the grid of alphas, from two Grams of [z | 1 | y]."""
    D = len(A) - 1 - n_targets
    weight = A[D, D]
    mean, y_mean = A[:D, D] / weight, A[D, D + 1 :] / weight
    G = A[:D, :D] - weight * np.outer(mean, mean)
    B = A[:D, D + 1 :] - weight * np.outer(mean, y_mean)
    eigenvalues, Q = eigh(G, overwrite_a=True, driver="evd")
    rotated = Q.T @ B
    alphas = weight * _ALPHAS_PER_ROW
    shrunk = rotated[:, None, :] / (np.maximum(eigenvalues, 0.0)[:, None] + alphas)[:, :, None]
    coef = (Q @ shrunk.reshape(D, -1)).reshape(shrunk.shape)
    V = np.zeros((len(A), len(alphas), n_targets))
    V[:D] = coef
    V[D] = y_mean - np.einsum("d,dat->at", mean, coef)
    V[D + 1 + np.arange(n_targets), :, np.arange(n_targets)] = -1.0
    flat = V.reshape(len(A), -1)
    errors = np.einsum("pv,pv->v", flat, A_held_out @ flat).reshape(len(alphas), n_targets)
    return float(np.maximum(errors, 0.0).sum(axis=1).min() / (n_targets * max(A_held_out[D, D], 1e-300)))
