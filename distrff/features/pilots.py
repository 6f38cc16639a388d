"""The pilot of Fourier features: a small ridge from its Gram."""

from __future__ import annotations

import numpy as np
from scipy.linalg import eigh, eigh_tridiagonal

from distrff.features.bandwidth import Pilot, PilotRows
from distrff.features.bins import BinIds, Grids, occupied_bins
from distrff.features.frequencies import draw_frequencies
from distrff.features.specification import rows_in_memory
from distrff.features.trigonometry import paired_cos_sin
from distrff.kernels.base import Kernel
from distrff.utils.products import OneHotTile
from distrff.utils.random import child_seed

PILOT_COMPONENTS = 1024
# From the rounding noise of a float32 Gram of so many rows upwards.
_FOURIER_ALPHAS_PER_ROW = np.logspace(-7.5, 0, 16)


class FourierPilot:
    """Ridge on at most 1024 iid Fourier features.

    Parameters
    ----------
    rows : PilotRows
    n_components : int
        Of the model; the pilot has no more.
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
    alphas = weight * _FOURIER_ALPHAS_PER_ROW
    shrunk = rotated[:, None, :] / (np.maximum(eigenvalues, 0.0)[:, None] + alphas)[:, :, None]
    coef = (Q @ shrunk.reshape(D, -1)).reshape(shrunk.shape)
    V = np.zeros((len(A), len(alphas), n_targets))
    V[:D] = coef
    V[D] = y_mean - np.einsum("d,dat->at", mean, coef)
    V[D + 1 + np.arange(n_targets), :, np.arange(n_targets)] = -1.0
    flat = V.reshape(len(A), -1)
    errors = np.einsum("pv,pv->v", flat, A_held_out @ flat).reshape(len(alphas), n_targets)
    return float(np.maximum(errors, 0.0).sum(axis=1).min() / (n_targets * max(A_held_out[D, D], 1e-300)))


# The pilot of random binning: kernel ridge on a few grids, for all penalties at once.

PILOT_GRIDS = 64
# Penalties that a space of so many products cannot tell from none end as that does: by stopping early.
_MOST_STEPS = 16
_PRESUMED_OUTPUTS = 8
_BINNING_ALPHAS_PER_ROW = np.logspace(-7, 0, 15)


class BinningPilot:
    """Ridge on the bins of at most 64 grids, in its dual form.

    With S the weights of the rows that are not held out and K their shares of common bins, the model is
    f(x) = Σ_i k(x, x_i)·s_i^½·u_i, (S^½KS^½ + alpha·I)u = S^½y. All alphas have one Krylov space, which the
    Lanczos process spans by one product with K for each dimension, and in which K is a tridiagonal T: u is
    V(T + alpha·I)⁻¹Vᵀb (Golub and Van Loan, Matrix Computations, 4th edition, section 10.1).

    Parameters
    ----------
    rows : PilotRows
    n_grids : int
        Of the model; the pilot has no more.

    Notes
    -----
    n·P look-ups, then at most 16 products of 4·n·P·k flops.
    """

    def __init__(self, rows: PilotRows, *, n_grids: int) -> None:
        self._rows = rows
        self._seed = child_seed(rows.seed, "length scale pilot")
        self._n_grids = min(n_grids, PILOT_GRIDS)

    @property
    def description(self) -> str:
        return f"a ridge on the bins of {self._n_grids} grids"

    def held_out_error(self, kernel: Kernel) -> float:
        """Return the least weighted mean squared error on the held-out rows over all alphas."""
        rows, n_held_out = self._rows, self._rows.n_held_out
        root = np.sqrt(rows.s)[:, None]
        Z = self._bins(kernel)
        B = root[n_held_out:] * rows.Y[n_held_out:]
        F = self._held_out_values(Z, B, root[n_held_out:], rows.s[n_held_out:].sum())
        squares = rows.s[:n_held_out] @ np.square(rows.Y[:n_held_out, :, None] - F).transpose(2, 0, 1)
        return float(squares.mean(axis=1).min() / rows.s[:n_held_out].sum())

    def _bins(self, kernel: Kernel) -> OneHotTile:
        grids = Grids.draw(kernel, self._n_grids, self._rows.X.shape[1], self._seed)
        bins = occupied_bins(grids, rows_in_memory(self._rows.X, None))
        ids = BinIds(bins["keys"], bins["ends"]).find(grids.keys(self._rows.X))
        return OneHotTile(ids, float(np.sqrt(1.0 / self._n_grids)), len(bins["keys"]))

    def _held_out_values(self, Z: OneHotTile, B: np.ndarray, root: np.ndarray, weight: float) -> np.ndarray:
        """Return the values on the held-out rows, (n_held_out, k, n_alphas).

        `root` is S^½ and `weight` the sum of S.
        """
        n_held_out, (n_train, k) = self._rows.n_held_out, B.shape
        train = Z[np.arange(n_held_out, len(Z))]
        size = np.linalg.norm(B, axis=0)
        v, before, beta = B / np.where(size > 0, size, 1.0), np.zeros_like(B), np.zeros(k)
        diagonal, off_diagonal, values = [], [], []
        for _ in range(min(_MOST_STEPS, n_train)):
            coef = np.zeros((Z.n_features, k))
            train.add_transposed_product(coef.T, (root * v).T)
            F = Z.values(coef)
            values.append(F[:n_held_out])
            w = root * F[n_held_out:] - beta * before
            diagonal.append(np.einsum("ij,ij->j", w, v))
            w -= diagonal[-1] * v
            beta = np.linalg.norm(w, axis=0)
            off_diagonal.append(beta)
            v, before = w / np.where(beta > 0, beta, 1.0), v
        found = np.empty((n_held_out, k, len(_BINNING_ALPHAS_PER_ROW)))
        alphas = weight * _BINNING_ALPHAS_PER_ROW
        for j in range(k):
            eigenvalues, Q = eigh_tridiagonal([a[j] for a in diagonal], [b[j] for b in off_diagonal[:-1]])
            shrunk = (size[j] * Q[0])[:, None] / (np.maximum(eigenvalues, 0)[:, None] + alphas)
            found[:, j] = np.stack([F[:, j] for F in values], axis=1) @ (Q @ shrunk)
        return found


def binning_pilot_flops(n_rows: int, n_columns: int, n_grids: int) -> float:
    """Return about how many flops one answer takes for a handful of outputs."""
    return float(n_rows) * min(n_grids, PILOT_GRIDS) * (3 * n_columns + 4 * _PRESUMED_OUTPUTS * _MOST_STEPS)
