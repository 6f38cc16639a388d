"""Rows of features with at most one entry in each block of columns, and that a constant."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from distrff.compiled import compiled, in_own_thread


@dataclass(frozen=True, eq=False)
class OneHotTile:
    """Z of r rows as the numbers of its columns that are not zero.

    Parameters
    ----------
    columns : ndarray of shape (n_blocks, r), int32
        Which column of each block a row is in; −1 for none.
    value : float
        What is there.
    n_features : int
        D.
    """

    columns: np.ndarray
    value: float
    n_features: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.columns.shape[1], self.n_features

    def __len__(self) -> int:
        return self.columns.shape[1]

    def __getitem__(self, rows: np.ndarray) -> OneHotTile:
        return replace(self, columns=self.columns[:, rows])

    def squared(self) -> OneHotTile:
        """Return the squares of all entries."""
        return replace(self, value=self.value**2)

    def values(self, coef: np.ndarray) -> np.ndarray:
        """Return Z·coef, summed in float64: (D, k) → (r, k)."""
        compile_one_hot()
        F = np.zeros((len(self), coef.shape[1]))
        _gather(self.columns, np.ascontiguousarray(coef), F)
        F *= self.value
        return F

    def add_pulled_back(self, sums: np.ndarray, S: np.ndarray) -> None:
        """Add S·Z to the float64 `sums`, of shape (m, D), for S of shape (m, r).

        Fastest where the m sums of a column are neighbours in memory.
        """
        compile_one_hot()
        _scatter(self.columns, np.multiply(S.T, self.value, order="C"), sums.T)


@cache
def compile_one_hot() -> None:
    """Compile both products, or load them from Numba's cache, before they are needed."""
    in_own_thread(_compile_all)


def _compile_all() -> None:
    columns = np.zeros((1, 1), np.int32)
    for dtype in (np.float32, np.float64):
        _gather(columns, np.zeros((1, 1), dtype), np.zeros((1, 1)))
    for sums in (np.zeros((2, 2)), np.zeros((2, 2)).T):
        _scatter(columns, np.zeros((1, 2)), sums)


@compiled()
def _gather(columns, coef, F):
    """F += Z·coef for value 1: block by block, whose coefficients stay in a cache."""
    for b in range(len(columns)):
        for i in range(columns.shape[1]):
            j = columns[b, i]
            if j >= 0:
                for q in range(F.shape[1]):
                    F[i, q] += coef[j, q]


@compiled()
def _scatter(columns, S, sums):
    """sums += Zᵀ·S for value 1."""
    for b in range(len(columns)):
        for i in range(columns.shape[1]):
            j = columns[b, i]
            if j >= 0:
                for q in range(S.shape[1]):
                    sums[j, q] += S[i, q]
